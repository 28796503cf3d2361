//! The hooks that there are on this machine, and what they offer (docs/ecode.md).

mod calls;
#[cfg(test)]
mod generated;
mod network;
mod tasks;
mod tracepoints;

use ecode::{CALL, Ending, Entry, Field, Hooks, Integer, Offer, Refusal, Source, Stop, Type, Way};
use kernel::plugins::offset_of;

/// What the kernel's types say takes milliseconds and megabytes to find out, so whoever only wants to know what is in a plugin leaves
/// that out: it changes nothing but numbers in the compiled program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Machine {
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

/// Nothing is denied there.
const OBSERVES: Ending = Ending::Chained { goes_on: 0, stops: None };

impl Hooks for Machine {
    fn names(&self) -> Vec<String> {
        NAMES.map(String::from).into()
    }

    fn splits(&self, hook: &str) -> bool {
        matches!(hook, "xdp" | "ingress" | "egress" | "tracepoint" | "timer")
    }

    fn offer(&self, hook: &str, selected: &[String]) -> Result<Offer, Refusal> {
        match hook {
            "enter" => calls::offer(*self, "tp_btf/sys_enter", selected),
            "exit" => calls::offer(*self, calls::EXIT, selected),
            "verdict" => calls::verdicts(*self, selected),
            "guard" => Ok(Offer { ending: refuses(0, 1, false), ..calls::offer(*self, "guard", selected)? }),
            "tracepoint" => tracepoints::offer(one(selected, "which one: \"sched:sched_switch\", say")?),
            "timer" => timer(one(selected, "how often: \"100ms\", say")?),
            "xdp" | "ingress" | "egress" => {
                one(selected, "a network device: \"eth0\", say")?;
                Ok(network::packets(hook))
            }
            _ if !selected.is_empty() => Err((Some(0), format!("`{hook}` has no events to select"))),
            CALL => Ok(Offer {
                fields: Vec::new(),
                entries: vec![always("syscall", Vec::new())],
                ending: Ending::Returned,
                lacks: None,
                packet: None,
            }),
            "fork" | "exec" | "end" => tasks::offer(*self, hook),
            _ => Ok(network::sockets(hook)),
        }
    }
}

impl Machine {
    /// Of a member in its struct.
    fn offset_of(self, structure: &'static str, member: &'static str) -> Result<u16, Refusal> {
        match self {
            Self::ToLoad => offset_of(structure, member).map_err(|error| (None, error.to_string())),
            Self::ToCheck => Ok(0),
        }
    }
}

fn one<'a>(selected: &'a [String], what: &str) -> Result<&'a str, Refusal> {
    match selected {
        [one] => Ok(one),
        [] => Err((None, format!("this hook wants to know {what}"))),
        [_, ..] => Err((Some(1), "one handler is for one of these".into())),
    }
}

/// Not more often than the kernel can.
fn timer(every: &str) -> Result<Offer, Refusal> {
    const LEAST_US: u128 = 100;
    match kernel::plugins::interval(every) {
        Some(interval) if interval.as_micros() >= LEAST_US => {
            Ok(observes(Vec::new(), vec![always("perf_event", Vec::new())]))
        }
        Some(_) => Err((Some(0), format!("a timer runs every {LEAST_US}us at most"))),
        None => Err((Some(0), format!("`{every}` is no time: a number and s, ms or us"))),
    }
}

fn observes(fields: Vec<Field>, entries: Vec<Entry>) -> Offer {
    Offer { fields, entries, ending: OBSERVES, lacks: None, packet: None }
}

/// Whatever happens.
fn always(section: &'static str, fields: Vec<Source>) -> Entry {
    Entry { section, ways: vec![Way { conditions: Vec::new(), fields }] }
}

fn field(name: &str, bits: u8, is_signed: bool) -> Field {
    Field { name: name.into(), of: Type::Integer(Integer { bits, is_signed }) }
}

/// A handler's number refuses.
fn refuses(goes_on: i32, value: i32, sets_errno: bool) -> Ending {
    Ending::Chained { goes_on, stops: Some(Stop { value, sets_errno }) }
}
