//! What gets past the guard, as attackers who know of it would try: docs/attacks.md has what it means.

use std::time::Duration;

use crate::c_server::CServer;
use crate::experiment::{Experiment, ONE_HOLD};

const SECONDS: Duration = Duration::from_secs(20);

/// An execve is one call, and the new program has a profile of its own: a response that ends it is needed.
#[test]
fn a_shell_in_the_servers_place_is_only_held_up() {
    let mut it = Experiment::new(CServer::new("FORK"));
    for kind in ["EXECVE", "FORK"] {
        it.server.send_code(kind);
        it.attack_unguarded();
        let held = it.attack_guarded("--guard=enforce", SECONDS);
        assert!(held.took.is_some() && !held.moments.is_empty(), "{kind}: {:?}", held.took);
        it.server.forget_effect();
        for response in ["--respond deny", "--suspend-execve 1"] {
            let ended = it.attack_guarded(&format!("--guard=enforce {response}"), SECONDS);
            assert!(ended.took.is_none(), "{kind}, {response}: {:?}", ended.took);
        }
    }
}

/// A false alarm before it may hold it all the same.
const ATTEMPTS: usize = 3;

/// Arguments are not looked at.
#[test]
fn calls_in_the_usual_order_are_not_seen() {
    let it = Experiment::new(CServer::new("READ"));
    // Its end is unusual, but it has what it wanted then.
    let gets_past = |_| {
        it.server.forget_effect();
        it.attack_guarded("--guard=enforce", SECONDS).took.is_some_and(|took| took < ONE_HOLD)
    };
    assert!((0..ATTEMPTS).any(gets_past), "held {ATTEMPTS} times");
}

/// Its calls come a little differently each time.
const LESSONS: usize = 20;

#[test]
fn what_was_done_in_training_is_normal() {
    let it = Experiment::new(CServer::new("SYSTEM"));
    it.learn_attack(LESSONS);
    it.server.forget_effect();
    let gets_past = |_| it.attack_guarded("--guard=enforce", SECONDS).took.is_some();
    assert!((0..ATTEMPTS).any(gets_past), "held {ATTEMPTS} times");
}
