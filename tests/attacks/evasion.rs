//! Attacks that evade the guard, by an attacker who knows how it works; docs/attacks.md discusses
//! them.

use std::time::Duration;

use crate::c_server::CServer;
use crate::experiment::{Experiment, ONE_HOLD};

const SECONDS: Duration = Duration::from_secs(20);

/// An execve is one call, and the new program has a profile of its own: only a response that ends
/// the process stops this attack.
#[test]
fn exec_of_a_shell_is_only_delayed() {
    let mut it = Experiment::new(CServer::new("FORK"));
    for kind in ["EXECVE", "FORK"] {
        it.server.send_code(kind);
        it.attack_unguarded();
        let held = it.attack_guarded("--guard=enforce", SECONDS);
        assert!(held.took.is_some() && !held.moments.is_empty(), "{kind}: {:?}", held.took);
        it.server.remove_effect();
        for response in ["--respond deny", "--suspend-execve 1"] {
            let ended = it.attack_guarded(&format!("--guard=enforce {response}"), SECONDS);
            assert!(ended.took.is_none(), "{kind}, {response}: {:?}", ended.took);
        }
    }
}

/// A false alarm before the attack may still hold it.
const ATTEMPTS: usize = 3;

/// The guard does not test arguments.
#[test]
fn mimicry_is_not_detected() {
    let it = Experiment::new(CServer::new("READ"));
    // The end of the attack is anomalous, but it has read the secret before.
    let gets_past = |_| {
        it.server.remove_effect();
        it.attack_guarded("--guard=enforce", SECONDS).took.is_some_and(|took| took < ONE_HOLD)
    };
    assert!((0..ATTEMPTS).any(gets_past), "held {ATTEMPTS} times");
}

/// The order of its calls varies slightly from attack to attack.
const LESSONS: usize = 20;

#[test]
fn attack_during_training_becomes_normal() {
    let it = Experiment::new(CServer::new("SYSTEM"));
    it.learn_attack(LESSONS);
    it.server.remove_effect();
    let gets_past = |_| it.attack_guarded("--guard=enforce", SECONDS).took.is_some();
    assert!((0..ATTEMPTS).any(gets_past), "held {ATTEMPTS} times");
}
