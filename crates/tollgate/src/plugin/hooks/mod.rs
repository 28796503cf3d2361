//! The plugin hooks of this machine, and their specifications (docs/ecode.md).

mod call_names;
mod calls;
#[cfg(test)]
mod generated_tests;
mod network;
mod parts;
mod tasks;
mod tracepoints;

use ecode::{CALL, HookError, HookProvider, HookSpec, ReturnPolicy};

pub use parts::OffsetSource;
use parts::{denying_policy, observing_spec, unconditional_program};

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
                network::check_device(one(selected, "a network device, for example \"eth0\"")?)?;
                Ok(network::packets(hook))
            }
            _ if !selected.is_empty() => {
                Err((Some(0), format!("`on {hook}` takes nothing in parentheses")))
            }
            CALL => Ok(HookSpec {
                fields: Vec::new(),
                programs: vec![unconditional_program("syscall", Vec::new())],
                return_policy: ReturnPolicy::Returned,
                unreadable: Vec::new(),
                unavailable: None,
                packet: None,
                warnings: Vec::new(),
            }),
            "fork" | "exec" | "end" => tasks::spec(*self, hook),
            _ => Ok(network::sockets(hook)),
        }
    }
}

fn one<'a>(selected: &'a [String], what: &str) -> Result<&'a str, HookError> {
    match selected {
        [one] => Ok(one),
        [] => Err((None, format!("this hook needs {what}"))),
        [_, ..] => {
            Err((Some(1), "this hook takes only one value: write a handler for each".into()))
        }
    }
}

/// The specification of a timer. Fails if the interval is too short for the kernel to keep up.
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
