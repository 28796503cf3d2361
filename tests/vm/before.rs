//! The guard holds calls before they take effect, where the security modules' hooks may be used.

use crate::harness::deeds::{ANYWHERE, Innocent, WITH_LSM};

#[test]
fn held_calls_take_effect_when_they_are_let_go() {
    let innocent = Innocent::new();
    let (write, held) = WITH_LSM.split_last().expect("there are some");
    innocent.are_held_before(ANYWHERE.iter().chain(held), |deed, event| {
        assert_eq!(event["effect"], "before", "{}", deed.name);
        println!("{} is held before it takes effect", deed.name);
    });
    assert_eq!(innocent.is_held_at_its_end(write)["effect"], "end");
    innocent.end();
}

#[test]
fn a_denied_execve_fails_and_the_program_goes_on() {
    let innocent = Innocent::new();
    let guard = innocent.is_refused(&WITH_LSM[0]);
    assert_eq!((guard.number("refused"), guard.number("killed")), (1, 0), "{}", guard.0);
    let event = &guard.events()[0];
    assert_eq!((&event["action"], &event["effect"]), (&"deny".into(), &"before".into()), "{event}");
    innocent.end();
}

/// The programs on these hooks are part of a generation.
mod alone {
    use super::*;

    #[test]
    fn calls_are_held_by_another_generation() {
        let innocent = Innocent::new();
        let (_, held) = WITH_LSM.split_last().expect("there are some");
        innocent.see_another_generation();
        innocent.is_held_before(&held[0]);
        innocent.end();
    }
}
