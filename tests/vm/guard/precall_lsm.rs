//! Pre-call holds where the LSM hooks can be used.

use crate::harness::side_effects::{ANYWHERE, SideEffect, UnseenProgram, WITH_LSM};

/// Those of [`WITH_LSM`] that stand for the others in the portable set: one call for each shape of
/// a hook.
const PORTABLE: [&str; 8] =
    ["execve", "create", "rename", "unlink-i386", "mmap", "kill-group", "setuid", "bpf"];

/// In an emulated machine, each takes seconds to start.
const AT_ONCE: usize = 3;

#[track_caller]
fn are_held(side_effects: impl Iterator<Item = &'static SideEffect>) -> UnseenProgram {
    let innocent = UnseenProgram::new();
    innocent.are_held_before(AT_ONCE, side_effects, |side_effect, event| {
        assert_eq!(event["effect"], "before", "{}", side_effect.name);
        println!("{} is held before it takes effect", side_effect.name);
    });
    innocent
}

/// The calls that can be held before they take effect, and one that cannot.
fn with_lsm() -> (&'static SideEffect, &'static [SideEffect]) {
    WITH_LSM.split_last().expect("there are some")
}

/// Both in one test, because an emulated machine needs a minute or two to load the gate.
#[test]
fn held_calls_take_effect_on_release_and_denied_ones_fail() {
    let (write, held) = with_lsm();
    let portable = held.iter().filter(|side_effect| PORTABLE.contains(&side_effect.name));
    let innocent = are_held(portable.chain(&ANYWHERE[..1]));
    assert_eq!(innocent.is_held_at_its_end(write)["effect"], "end");

    let execve = &held[0];
    let guard = innocent.is_refused(execve);
    assert_eq!((guard.number("refused"), guard.number("killed")), (1, 0), "{}", guard.0);
    let event = &guard.events()[0];
    assert_eq!((&event["action"], &event["effect"]), (&"deny".into(), &"before".into()), "{event}");
    innocent.end();
}

#[test]
fn other_held_calls_take_effect_on_release() {
    let (_, held) = with_lsm();
    let others = held.iter().filter(|side_effect| !PORTABLE.contains(&side_effect.name));
    are_held(others.chain(&ANYWHERE[1..])).end();
}

/// The programs at these hooks are part of a generation.
mod alone {
    use super::*;

    #[test]
    fn holds_survive_a_change_of_generation() {
        let innocent = UnseenProgram::new();
        let (_, held) = with_lsm();
        innocent.load_another_generation();
        innocent.is_held_before(&held[0]);
        innocent.end();
    }
}
