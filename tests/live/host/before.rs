//! The guard holds some calls before they take effect also without the security modules' hooks.

use crate::harness::deeds::{ANYWHERE, Innocent};
use crate::harness::guarded::Guarded;

#[test]
fn held_calls_on_sockets_take_effect_when_they_are_let_go() {
    let innocent = Innocent::new();
    innocent.are_held_before(&ANYWHERE, |_, event| {
        let effect = event["effect"].as_str().expect("it is held");
        assert!(effect.starts_with("before"), "{event}");
    });
    innocent.end();
}

/// Where one thread's stop is on its way, another's call must not be undone without one of its own.
#[test]
fn threads_that_are_held_at_once_see_nothing_of_it() {
    let it = Guarded::normal(&["sockets-in-threads 4 0"]);
    let options = "--guard=enforce --delay-cap 1us --anomaly-limit 1000000";
    let guard = it.run(options, "sockets-in-threads 4 1000");
    assert!(guard.number("holds") > 4000, "{}", guard.0);
}

/// The programs on these hooks are part of a generation.
mod alone {
    use super::*;

    #[test]
    fn calls_are_held_by_another_generation() {
        let innocent = Innocent::new();
        innocent.see_another_generation();
        innocent.is_held_before(&ANYWHERE[0]);
        innocent.end();
    }
}
