//! Describes the response of a guard.

use kernel::{precall, wire};

use super::policy::{Mode, Policy};

const KILL_AT_EXECVE: &str = "kill at an execve, before the new program runs";

/// Describes the response, and when it takes effect in a gate with `enabled`.
pub fn response_text(policy: &Policy, enabled: u32) -> String {
    let calls = precall::enforced_call_names(enabled).join(", ");
    let (restriction, denial) = match enabled {
        lsm if lsm & wire::GUARD_LSM != 0 => ("", "refuse an execve"),
        cgroup if cgroup & wire::GUARD_CGROUP != 0 => {
            (" (sockets: only IPv4 and IPv6; sends: only UDP with an address)", KILL_AT_EXECVE)
        }
        _ => ("", KILL_AT_EXECVE),
    };
    let when =
        format!("before {calls}{restriction}; at the end of other calls, or at once if they sleep");
    match policy.wire.response {
        wire::GUARD_DELAY => format!("delay {when}"),
        wire::GUARD_DENY => format!("{denial}, and delay {when}"),
        wire::GUARD_STOP => format!("stop {when}"),
        wire::GUARD_KILL => "kill, before the call returns".into(),
        _ => match policy.mode {
            Mode::Learn => "none; nothing is tested".into(),
            _ => "none".into(),
        },
    }
}
