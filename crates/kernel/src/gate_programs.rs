//! The gate's programs at the kernel's hooks: the table of `bpf/wire/programs.h`.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use crate::probe::Types;
use crate::wire;

/// What the kernel must have for a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Requirement {
    Nothing,
    /// Messages are visible at these hooks.
    Messages(MessageHooks),
    /// The hook, which not all kernels have.
    Tracepoint,
    /// The root of cgroup v2 is mounted.
    Cgroup2,
}

/// A program: a line of `bpf/wire/programs.h`.
#[derive(Debug)]
pub(crate) struct GateProgram {
    /// The program's name without its prefix, which is `gate_` or, for the floor's program of the
    /// same line, `floor_`.
    pub stem: &'static str,
    /// The kernel's name of the hook. If a function takes the place of a tracepoint, this is the
    /// tracepoint's name.
    pub hook: &'static str,
    /// Extensions that need the program: bits of [`wire::gate_mask`], or 0 if every gate has the
    /// program.
    used_by: u32,
    /// Extensions that have another program in its place: bits of [`wire::gate_mask`].
    unless: u32,
    pub needs: Requirement,
}

/// All programs, in the order of `wire::gate_program`. They are attached in this order.
const GATE_PROGRAMS: [GateProgram; wire::GATE_PROGRAMS as usize] =
    include!(concat!(env!("OUT_DIR"), "/gate_programs.rs"));

impl GateProgram {
    /// The programs of a gate with these extensions ([`wire::gate_mask`]) on this kernel, in the
    /// order of attaching.
    pub fn used(enabled: u32) -> impl Iterator<Item = &'static Self> {
        GATE_PROGRAMS.iter().filter(move |program| program.is_used(enabled) && program.is_here())
    }

    fn is_used(&self, enabled: u32) -> bool {
        (self.used_by == 0 || enabled & self.used_by != 0) && enabled & self.unless == 0
    }

    /// Whether this kernel has the hook. The root of cgroup v2 is checked when programs are loaded.
    fn is_here(&self) -> bool {
        match self.needs {
            Requirement::Messages(hooks) => hooks == MessageHooks::detect(),
            Requirement::Tracepoint => has_tracepoint(self.hook),
            Requirement::Nothing | Requirement::Cgroup2 => true,
        }
    }
}

/// A tracepoint that the gate attaches programs to, by the index of its first program. If the
/// kernel does not have the tracepoint, a function takes its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct GateHook(usize);

impl GateHook {
    /// The beginning of a call.
    pub const SYS_ENTER: Self = Self(wire::PROGRAM_sys_enter as usize);
    /// The end of a call.
    pub const SYS_EXIT: Self = Self(wire::PROGRAM_sys_exit as usize);

    /// All hooks that this kernel has, except those at the root of cgroup v2, in the order of
    /// attaching.
    pub fn all() -> impl Iterator<Item = Self> {
        let is_tracepoint = |program: &GateProgram| match program.needs {
            Requirement::Tracepoint => program.is_here(),
            Requirement::Nothing | Requirement::Messages(_) => true,
            Requirement::Cgroup2 => false,
        };
        let is_first = |index: usize| {
            GATE_PROGRAMS[..index].iter().all(|program| program.hook != GATE_PROGRAMS[index].hook)
        };
        (0..GATE_PROGRAMS.len())
            .filter(move |index| is_tracepoint(&GATE_PROGRAMS[*index]) && is_first(*index))
            .map(Self)
    }

    fn programs(self) -> impl Iterator<Item = &'static GateProgram> {
        GATE_PROGRAMS.iter().filter(move |program| program.hook == self.name())
    }

    fn is_used(self, enabled: u32) -> bool {
        self.programs().any(|program| program.is_used(enabled))
    }

    /// The hooks of a gate with these extensions ([`wire::gate_mask`]), in the order of attaching.
    pub fn used(enabled: u32) -> Vec<Self> {
        Self::all().filter(|hook| hook.is_used(enabled)).collect()
    }

    /// The kernel's name of the tracepoint.
    pub fn name(self) -> &'static str {
        GATE_PROGRAMS[self.0].hook
    }

    /// The hook's first program that this kernel can have: the one without plugins.
    pub(crate) fn program(self) -> &'static GateProgram {
        self.programs().find(|program| program.is_here()).expect("a hook is that of a program")
    }
}

/// The hooks at which programs see messages over sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MessageHooks {
    /// `sock_recv_length` and `sock_send_length`: since v6.3, 6e6eda44b939 ("sock: add tracepoint
    /// for send recv length").
    Tracepoints,
    /// The end of `sock_recvmsg`, and `security_socket_sendmsg`, which is called before a message
    /// is sent.
    Functions,
}

impl MessageHooks {
    fn detect() -> Self {
        if has_tracepoint("sock_recv_length") { Self::Tracepoints } else { Self::Functions }
    }
}

/// Whether this kernel has a tracepoint that not all kernels have.
fn has_tracepoint(name: &str) -> bool {
    // Reading all of the kernel's types takes some milliseconds, and so does each search.
    static HERE: OnceLock<BTreeSet<&str>> = OnceLock::new();
    let here = HERE.get_or_init(|| {
        let Ok(types) = Types::read() else { return BTreeSet::new() };
        let is_searched = |program: &&GateProgram| {
            matches!(program.needs, Requirement::Tracepoint | Requirement::Messages(_))
        };
        let hooks = GATE_PROGRAMS.iter().filter(is_searched).map(|program| program.hook);
        hooks.filter(|hook| types.has_tracepoint(hook)).collect()
    });
    here.contains(name)
}

/// Whether this kernel reports the requests of io_uring, which the lens counts.
pub fn reports_requests() -> bool {
    let begins = ["io_uring_submit_req", "io_uring_submit_sqe"];
    begins.into_iter().any(has_tracepoint) && has_tracepoint("io_uring_complete")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::mem::MaybeUninit;

    use libbpf_rs::OpenObject;
    use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};

    use super::*;
    use crate::skeletons::floor::FloorSkelBuilder;
    use crate::skeletons::gate::GateSkelBuilder;

    /// The sections of an object's programs, by their names.
    fn sections(object: &OpenObject) -> BTreeMap<String, String> {
        let text = |text: &std::ffi::OsStr| text.to_string_lossy().into_owned();
        object.progs().map(|program| (text(program.name()), text(program.section()))).collect()
    }

    #[test]
    fn programs_are_in_the_sections_of_the_table() {
        let (mut gate, mut floor) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        let gate = GateSkelBuilder::default().open(&mut gate).expect("the object is valid");
        let floor = FloorSkelBuilder::default().open(&mut floor).expect("the object is valid");
        let (gate, floor) = (sections(gate.open_object()), sections(floor.open_object()));
        for program in &GATE_PROGRAMS {
            let section = &gate[&format!("gate_{}", program.stem)];
            // The floor has its sections from the table.
            match floor.get(&format!("floor_{}", program.stem)) {
                Some(floor) => assert_eq!(section, floor),
                None => assert!(section.ends_with(&format!("/{}", program.hook)), "{section}"),
            }
        }
        assert!(GateHook::all().all(|hook| {
            hook.programs().any(|program| floor.contains_key(&format!("floor_{}", program.stem)))
        }));
    }

    /// Every combination of the extensions that the table names.
    fn masks() -> impl Iterator<Item = u32> {
        let named = |bits, program: &GateProgram| bits | program.used_by | program.unless;
        let all = GATE_PROGRAMS.iter().fold(0, named);
        (0..=all).filter(move |mask| mask & !all == 0)
    }

    /// The programs of a kernel that reports messages in this way.
    fn available(messages: MessageHooks) -> impl Iterator<Item = &'static GateProgram> {
        GATE_PROGRAMS.iter().filter(move |program| match program.needs {
            Requirement::Messages(needed) => needed == messages,
            Requirement::Nothing | Requirement::Tracepoint | Requirement::Cgroup2 => true,
        })
    }

    #[test]
    fn one_program_is_used_at_each_hook() {
        for messages in [MessageHooks::Tracepoints, MessageHooks::Functions] {
            for enabled in masks() {
                let used = |program: &&GateProgram| program.is_used(enabled);
                let needed =
                    |program: &&GateProgram| program.used_by == 0 || enabled & program.used_by != 0;
                let hooks: Vec<_> =
                    available(messages).filter(used).map(|program| program.hook).collect();
                // A hook is still needed if another program takes the place of its first one.
                let distinct: BTreeSet<_> =
                    available(messages).filter(needed).map(|program| program.hook).collect();
                let mut sorted = hooks.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, Vec::from_iter(distinct), "{enabled:#x}");
                // The order of attaching.
                let at = |name| hooks.iter().position(|hook| *hook == name);
                assert_eq!(at("sched_switch"), Some(0), "{enabled:#x}");
                assert!(at("sys_exit") < at("sys_enter"), "{enabled:#x}: {hooks:?}");
            }
        }
    }
}
