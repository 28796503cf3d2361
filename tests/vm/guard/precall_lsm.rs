//! Pre-call holds where the LSM hooks can be used.

use crate::harness::side_effects::{ANYWHERE, UnseenProgram, WITH_LSM};

#[test]
fn held_calls_take_effect_on_release() {
    let innocent = UnseenProgram::new();
    let (write, held) = WITH_LSM.split_last().expect("there are some");
    innocent.are_held_before(ANYWHERE.iter().chain(held), |side_effect, event| {
        assert_eq!(event["effect"], "before", "{}", side_effect.name);
        println!("{} is held before it takes effect", side_effect.name);
    });
    assert_eq!(innocent.is_held_at_its_end(write)["effect"], "end");
    innocent.end();
}

#[test]
fn denied_execve_fails_and_the_program_continues() {
    let innocent = UnseenProgram::new();
    let guard = innocent.is_refused(&WITH_LSM[0]);
    assert_eq!((guard.number("refused"), guard.number("killed")), (1, 0), "{}", guard.0);
    let event = &guard.events()[0];
    assert_eq!((&event["action"], &event["effect"]), (&"deny".into(), &"before".into()), "{event}");
    innocent.end();
}

/// The programs at these hooks are part of a generation.
mod alone {
    use super::*;

    #[test]
    fn holds_survive_a_change_of_generation() {
        let innocent = UnseenProgram::new();
        let (_, held) = WITH_LSM.split_last().expect("there are some");
        innocent.load_another_generation();
        innocent.is_held_before(&held[0]);
        innocent.end();
    }
}
