//! Empty programs on the gate's hooks: what nobody who hooks them can go below. Also with a clock reading at
//! enter and exit: what nobody who times calls can go below.

use std::mem::MaybeUninit;

use libbpf_rs::Link;
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};

use crate::error::{Doing, Result};
use crate::skeletons::floor::{FloorSkel, FloorSkelBuilder};
use crate::wire;

/// A tracepoint that the gate hooks, by the kernel's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hook {
    SchedSwitch,
    SchedProcessFork,
    SchedProcessExec,
    SchedProcessExit,
    SignalDeliver,
    SignalGenerate,
    SysExit,
    SysEnter,
}

impl Hook {
    /// In the order they are attached: calls last, as the gate does.
    pub const ALL: [Self; wire::GATE_HOOKS as usize] = [
        Self::SchedSwitch,
        Self::SchedProcessFork,
        Self::SchedProcessExec,
        Self::SchedProcessExit,
        Self::SignalDeliver,
        Self::SignalGenerate,
        Self::SysExit,
        Self::SysEnter,
    ];

    /// Whether a gate with these extensions ([`wire::gate_mask`]) hooks it.
    pub fn is_used(self, enabled: u32) -> bool {
        match self {
            Self::SignalDeliver | Self::SignalGenerate => enabled & wire::GUARD != 0,
            Self::SysExit => enabled & wire::LENS != 0,
            _ => true,
        }
    }

    /// The hooks of a gate with these extensions.
    pub fn used(enabled: u32) -> Vec<Self> {
        Self::ALL.into_iter().filter(|hook| hook.is_used(enabled)).collect()
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::SchedSwitch => "sched_switch",
            Self::SchedProcessFork => "sched_process_fork",
            Self::SchedProcessExec => "sched_process_exec",
            Self::SchedProcessExit => "sched_process_exit",
            Self::SignalDeliver => "signal_deliver",
            Self::SignalGenerate => "signal_generate",
            Self::SysExit => "sys_exit",
            Self::SysEnter => "sys_enter",
        }
    }
}

/// Attached until dropped.
pub struct Floor {
    _links: Vec<Link>,
    _skeleton: FloorSkel<'static>,
}

impl Floor {
    pub fn attach(hooks: &[Hook], clocks: bool) -> Result<Self> {
        // A skeleton borrows its object, some bytes that stay until the process ends, also of thousands of blocks.
        let object = Box::leak(Box::new(MaybeUninit::uninit()));
        let skeleton = FloorSkelBuilder::default().open(object).doing("reading the floor's programs")?;
        let skeleton = skeleton.load().doing("loading the floor's programs")?;
        let programs = &skeleton.progs;
        let attach = |hook: &Hook| {
            let program = match (hook, clocks) {
                (Hook::SchedSwitch, _) => &programs.floor_switch,
                (Hook::SchedProcessFork, _) => &programs.floor_fork,
                (Hook::SchedProcessExec, _) => &programs.floor_exec,
                (Hook::SchedProcessExit, _) => &programs.floor_task_exit,
                (Hook::SignalDeliver, _) => &programs.floor_signal,
                (Hook::SignalGenerate, _) => &programs.floor_continue,
                (Hook::SysExit, false) => &programs.floor_exit,
                (Hook::SysExit, true) => &programs.clock_exit,
                (Hook::SysEnter, false) => &programs.floor_enter,
                (Hook::SysEnter, true) => &programs.clock_enter,
            };
            program.attach_trace().doing("attaching the floor")
        };
        let links = hooks.iter().map(attach).collect::<Result<_>>()?;
        Ok(Self { _links: links, _skeleton: skeleton })
    }
}
