//! The plugin hooks of this machine, and their specifications (docs/ecode.md).

mod calls;
#[cfg(test)]
mod generated_tests;
mod network;
mod tasks;
mod tracepoints;

use ecode::{
    CALL, DenyReturn, FieldSource, HookError, HookField, HookProgram, HookProvider, HookSpec,
    HookVariant, Integer, ReturnPolicy, Type,
};
use kernel::plugin::offset_of;

/// Where offsets in kernel types come from. Reading the types takes milliseconds and megabytes.
/// `ToCheck` avoids that for a caller that does not load the program: only numbers in the compiled
/// program differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OffsetSource {
    ToLoad,
    ToCheck,
}

const NAMES: [&str; 16] = [
    CALL,
    "enter",
    "exit",
    "guard",
    "verdict",
    "fork",
    "exec",
    "end",
    "connect",
    "bind",
    "socket",
    "xdp",
    "ingress",
    "egress",
    "tracepoint",
    "timer",
];

/// For hooks that cannot deny anything.
const OBSERVES: ReturnPolicy = ReturnPolicy::Chained { goes_on: 0, stops: None };

impl HookProvider for OffsetSource {
    fn names(&self) -> Vec<String> {
        NAMES.map(String::from).into()
    }

    fn has_separate_attach_points(&self, hook: &str) -> bool {
        matches!(hook, "xdp" | "ingress" | "egress" | "tracepoint" | "timer")
    }

    fn spec(&self, hook: &str, selected: &[String]) -> Result<HookSpec, HookError> {
        match hook {
            "enter" => calls::spec(*self, "tp_btf/sys_enter", selected),
            "exit" => calls::spec(*self, calls::EXIT, selected),
            "verdict" => calls::verdict_spec(*self, selected),
            "guard" => Ok(HookSpec {
                return_policy: denying_policy(0, 1, false),
                ..calls::spec(*self, "guard", selected)?
            }),
            "tracepoint" => tracepoints::spec(one(
                selected,
                "a tracepoint, for example \"sched:sched_switch\"",
            )?),
            "timer" => timer(one(selected, "an interval, for example \"100ms\"")?),
            "xdp" | "ingress" | "egress" => {
                one(selected, "a network device, for example \"eth0\"")?;
                Ok(network::packets(hook))
            }
            _ if !selected.is_empty() => Err((Some(0), format!("`{hook}` does not select events"))),
            CALL => Ok(HookSpec {
                fields: Vec::new(),
                entries: vec![unconditional_program("syscall", Vec::new())],
                return_policy: ReturnPolicy::Returned,
                unavailable: None,
                packet: None,
            }),
            "fork" | "exec" | "end" => tasks::spec(*self, hook),
            _ => Ok(network::sockets(hook)),
        }
    }
}

impl OffsetSource {
    /// The offset of a member in its struct.
    fn offset_of(self, structure: &'static str, member: &'static str) -> Result<u16, HookError> {
        match self {
            Self::ToLoad => offset_of(structure, member).map_err(|error| (None, error.to_string())),
            Self::ToCheck => Ok(0),
        }
    }
}

fn one<'a>(selected: &'a [String], what: &str) -> Result<&'a str, HookError> {
    match selected {
        [one] => Ok(one),
        [] => Err((None, format!("this hook needs {what}"))),
        [_, ..] => Err((Some(1), "a handler can have only one of these".into())),
    }
}

/// A timer, with an interval that the kernel can keep.
fn timer(every: &str) -> Result<HookSpec, HookError> {
    const MIN_TIMER_US: u128 = 100;
    match kernel::plugin::interval(every) {
        Some(interval) if interval.as_micros() >= MIN_TIMER_US => {
            Ok(observing_spec(Vec::new(), vec![unconditional_program("perf_event", Vec::new())]))
        }
        Some(_) => Err((Some(0), format!("the shortest interval of a timer is {MIN_TIMER_US}us"))),
        None => {
            Err((Some(0), format!("`{every}` is not an interval: write a number and s, ms or us")))
        }
    }
}

fn observing_spec(fields: Vec<HookField>, entries: Vec<HookProgram>) -> HookSpec {
    HookSpec { fields, entries, return_policy: OBSERVES, unavailable: None, packet: None }
}

/// A program with one variant and no conditions.
fn unconditional_program(section: &'static str, fields: Vec<FieldSource>) -> HookProgram {
    HookProgram { section, variants: vec![HookVariant { conditions: Vec::new(), fields }] }
}

fn field(name: &str, bits: u8, is_signed: bool) -> HookField {
    HookField { name: name.into(), ty: Type::Integer(Integer { bits, is_signed }) }
}

/// A return policy by which a handler's value refuses.
fn denying_policy(goes_on: i32, value: i32, sets_errno: bool) -> ReturnPolicy {
    ReturnPolicy::Chained { goes_on, stops: Some(DenyReturn { value, sets_errno }) }
}
