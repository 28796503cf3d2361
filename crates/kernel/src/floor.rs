//! Empty programs on the gate's hooks: what nobody who hooks them can go below. Also with what some need at a call: below that, nobody
//! who needs it can go.

use std::mem::MaybeUninit;
use std::sync::OnceLock;

use libbpf_rs::Link;
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};

use crate::error::{Doing, Result};
use crate::probe::Types;
use crate::skeletons::floor::{FloorSkel, FloorSkelBuilder};
use crate::wire;

/// A tracepoint that the gate hooks, by the kernel's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hook {
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

/// By what a program sees messages over sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Messages {
    /// `sock_recv_length` and `sock_send_length`: since v6.3, 6e6eda44b939 ("sock: add tracepoint for send recv length").
    Tracepoints,
    /// The end of `sock_recvmsg`, and `security_socket_sendmsg`, which comes before a message is on its way.
    Functions,
}

impl Messages {
    pub fn here() -> Self {
        // Reading all of the kernel's types takes some milliseconds.
        static HERE: OnceLock<Messages> = OnceLock::new();
        *HERE.get_or_init(|| {
            let has = Types::read().is_ok_and(|types| types.has_tracepoint("sock_recv_length"));
            if has { Self::Tracepoints } else { Self::Functions }
        })
    }
}

impl Hook {
    /// In the order they are attached: calls last, as the gate does.
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
pub enum Only {
    Nothing,
    /// At enter and exit of a call the clock is read.
    Clocks,
    /// At enter is a place for plugins, of which there are none.
    Place,
}

/// Attached until dropped.
pub struct Floor {
    _links: Vec<Link>,
    _skeleton: FloorSkel<'static>,
}

impl Floor {
    pub fn attach(hooks: &[Hook], only: Only) -> Result<Self> {
        // A skeleton borrows its object, some bytes that stay until the process ends, also of thousands of blocks.
        let object = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut skeleton = FloorSkelBuilder::default().open(object).doing("reading the floor's programs")?;
        let messages = Messages::here();
        let is_used = hooks.iter().any(|hook| matches!(hook, Hook::SockRecvLength | Hook::SockSendLength));
        let programs = &mut skeleton.progs;
        let (received, sent) = match messages {
            Messages::Tracepoints => (&mut programs.floor_received, &mut programs.floor_sent),
            Messages::Functions => (&mut programs.floor_received_exit, &mut programs.floor_sent_entry),
        };
        received.set_autoload(is_used);
        sent.set_autoload(is_used);
        programs.floor_packet.set_autoload(is_used);
        let skeleton = skeleton.load().doing("loading the floor's programs")?;
        let programs = &skeleton.progs;
        let attach = |hook: &Hook| {
            let program = match (hook, only) {
                (Hook::SchedSwitch, _) => &programs.floor_switch,
                (Hook::SchedProcessFork, _) => &programs.floor_fork,
                (Hook::SchedProcessExec, _) => &programs.floor_exec,
                (Hook::SchedProcessExit, _) => &programs.floor_task_exit,
                (Hook::SchedProcessFree, _) => &programs.floor_task_free,
                (Hook::InetSockSetState, _) => &programs.floor_tcp,
                (Hook::NetifRx, _) => &programs.floor_packet,
                (Hook::SockRecvLength, _) => match messages {
                    Messages::Tracepoints => &programs.floor_received,
                    Messages::Functions => &programs.floor_received_exit,
                },
                (Hook::SockSendLength, _) => match messages {
                    Messages::Tracepoints => &programs.floor_sent,
                    Messages::Functions => &programs.floor_sent_entry,
                },
                (Hook::SignalDeliver, _) => &programs.floor_signal,
                (Hook::SignalGenerate, _) => &programs.floor_continue,
                (Hook::SysExit, Only::Clocks) => &programs.clock_exit,
                (Hook::SysExit, _) => &programs.floor_exit,
                (Hook::SysEnter, Only::Nothing) => &programs.floor_enter,
                (Hook::SysEnter, Only::Clocks) => &programs.clock_enter,
                (Hook::SysEnter, Only::Place) => &programs.place_enter,
            };
            program.attach_trace().doing("attaching the floor")
        };
        let links = hooks.iter().map(attach).collect::<Result<_>>()?;
        Ok(Self { _links: links, _skeleton: skeleton })
    }
}
