//! Pre-call holds of some calls without the LSM hooks.

use crate::harness::guarded_program::Guarded;
use crate::harness::side_effects::{ANYWHERE, UnseenProgram};

#[test]
fn held_socket_calls_take_effect_on_release() {
    let innocent = UnseenProgram::new();
    innocent.are_held_before(ANYWHERE.len(), &ANYWHERE, |_, event| {
        let effect = event["effect"].as_str().expect("it is held");
        assert!(effect.starts_with("before"), "{event}");
    });
    innocent.end();
}

/// While the stop of one thread is pending, the call of another thread must not be undone without a
/// stop of its own.
#[test]
fn simultaneously_held_threads_see_no_error() {
    let it = Guarded::normal(&["sockets-in-threads 4 0"]);
    let options = "--guard=enforce --delay-cap 1us --anomaly-limit 1000000";
    let guard = it.run(options, "sockets-in-threads 4 1000");
    assert!(guard.number("holds") > 4000, "{}", guard.0);
}

/// The programs at these hooks are part of a generation.
mod alone {
    use super::*;

    #[test]
    fn holds_survive_a_change_of_generation() {
        let innocent = UnseenProgram::new();
        innocent.load_another_generation();
        innocent.is_held_before(&ANYWHERE[0]);
        innocent.end();
    }
}
