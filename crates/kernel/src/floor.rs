//! Empty programs on the gate's hooks: nothing that uses these hooks can cost less. Variants do
//! what some programs need at each call, and are the lower bound for those.

use std::mem::MaybeUninit;
use std::sync::OnceLock;

use libbpf_rs::Link;
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};

use crate::error::{ErrorContext, Result};
use crate::probe::Types;
use crate::skeletons::floor::{FloorSkel, FloorSkelBuilder};
use crate::wire;

/// A tracepoint that the gate hooks, by the kernel's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum GateHook {
    SchedSwitch,
    SchedProcessFork,
    SchedProcessExec,
    SchedProcessExit,
    SchedProcessFree,
    SignalDeliver,
    SignalGenerate,
    SockRecvLength,
    SockSendLength,
    InetSockSetState,
    NetifRx,
    SysExit,
    SysEnter,
}

/// How a program sees messages over sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageHooks {
    /// `sock_recv_length` and `sock_send_length`: since v6.3, 6e6eda44b939 ("sock: add tracepoint
    /// for send recv length").
    Tracepoints,
    /// The end of `sock_recvmsg`, and `security_socket_sendmsg`, which comes before a message is on
    /// its way.
    Functions,
}

impl MessageHooks {
    pub fn detect() -> Self {
        // Reading all of the kernel's types takes some milliseconds.
        static HERE: OnceLock<MessageHooks> = OnceLock::new();
        *HERE.get_or_init(|| {
            let has = Types::read().is_ok_and(|types| types.has_tracepoint("sock_recv_length"));
            if has { Self::Tracepoints } else { Self::Functions }
        })
    }
}

impl GateHook {
    /// In the order in which they are attached: calls last, as in the gate.
    pub const ALL: [Self; wire::GATE_HOOKS as usize] = [
        Self::SchedSwitch,
        Self::SchedProcessFork,
        Self::SchedProcessExec,
        Self::SchedProcessExit,
        Self::SchedProcessFree,
        Self::SignalDeliver,
        Self::SignalGenerate,
        Self::SockRecvLength,
        Self::SockSendLength,
        Self::InetSockSetState,
        Self::NetifRx,
        Self::SysExit,
        Self::SysEnter,
    ];

    /// Whether a gate with these extensions ([`wire::gate_mask`]) hooks it.
    pub fn is_used(self, enabled: u32) -> bool {
        match self {
            Self::SignalDeliver => enabled & wire::GUARD != 0,
            Self::SignalGenerate => enabled & (wire::GUARD | wire::SERVICE) != 0,
            Self::SysExit => enabled & (wire::LENS | wire::SERVICE_FILES | wire::PLUGIN_EXIT) != 0,
            Self::SchedProcessFree
            | Self::SockRecvLength
            | Self::SockSendLength
            | Self::InetSockSetState
            | Self::NetifRx => enabled & wire::SERVICE != 0,
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
            Self::SchedProcessFree => "sched_process_free",
            Self::SockRecvLength => "sock_recv_length",
            Self::SockSendLength => "sock_send_length",
            Self::InetSockSetState => "inet_sock_set_state",
            Self::NetifRx => "netif_rx",
            Self::SignalDeliver => "signal_deliver",
            Self::SignalGenerate => "signal_generate",
            Self::SysExit => "sys_exit",
            Self::SysEnter => "sys_enter",
        }
    }
}

/// What otherwise empty programs do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FloorProgram {
    Nothing,
    /// They read the clock at entry and exit of a call.
    Clocks,
    /// At entry they have a chain of plugins, which is empty.
    Place,
}

/// Attached until dropped.
pub struct Floor {
    _links: Vec<Link>,
    _skeleton: FloorSkel<'static>,
}

impl Floor {
    pub fn attach(hooks: &[GateHook], only: FloorProgram) -> Result<Self> {
        // A skeleton borrows its object: some bytes that stay until the process ends, even for
        // thousands of blocks.
        let object = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut skeleton =
            FloorSkelBuilder::default().open(object).doing("reading the floor's programs")?;
        let messages = MessageHooks::detect();
        let is_used = hooks
            .iter()
            .any(|hook| matches!(hook, GateHook::SockRecvLength | GateHook::SockSendLength));
        let programs = &mut skeleton.progs;
        let (received, sent) = match messages {
            MessageHooks::Tracepoints => (&mut programs.floor_received, &mut programs.floor_sent),
            MessageHooks::Functions => {
                (&mut programs.floor_received_exit, &mut programs.floor_sent_entry)
            }
        };
        received.set_autoload(is_used);
        sent.set_autoload(is_used);
        programs.floor_packet.set_autoload(is_used);
        let skeleton = skeleton.load().doing("loading the floor's programs")?;
        let programs = &skeleton.progs;
        let attach = |hook: &GateHook| {
            let program = match (hook, only) {
                (GateHook::SchedSwitch, _) => &programs.floor_switch,
                (GateHook::SchedProcessFork, _) => &programs.floor_fork,
                (GateHook::SchedProcessExec, _) => &programs.floor_exec,
                (GateHook::SchedProcessExit, _) => &programs.floor_task_exit,
                (GateHook::SchedProcessFree, _) => &programs.floor_task_free,
                (GateHook::InetSockSetState, _) => &programs.floor_tcp,
                (GateHook::NetifRx, _) => &programs.floor_packet,
                (GateHook::SockRecvLength, _) => match messages {
                    MessageHooks::Tracepoints => &programs.floor_received,
                    MessageHooks::Functions => &programs.floor_received_exit,
                },
                (GateHook::SockSendLength, _) => match messages {
                    MessageHooks::Tracepoints => &programs.floor_sent,
                    MessageHooks::Functions => &programs.floor_sent_entry,
                },
                (GateHook::SignalDeliver, _) => &programs.floor_signal,
                (GateHook::SignalGenerate, _) => &programs.floor_continue,
                (GateHook::SysExit, FloorProgram::Clocks) => &programs.clock_exit,
                (GateHook::SysExit, _) => &programs.floor_exit,
                (GateHook::SysEnter, FloorProgram::Nothing) => &programs.floor_enter,
                (GateHook::SysEnter, FloorProgram::Clocks) => &programs.clock_enter,
                (GateHook::SysEnter, FloorProgram::Place) => &programs.chain_enter,
            };
            program.attach_trace().doing("attaching the floor")
        };
        let links = hooks.iter().map(attach).collect::<Result<_>>()?;
        Ok(Self { _links: links, _skeleton: skeleton })
    }
}
