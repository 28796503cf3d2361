//! `tollgate daemon` for all processes, which needs a machine without other users.

use crate::harness::daemon::GuardDaemon;
use crate::harness::guarded_program::Guarded;
use crate::harness::job::state;
use crate::harness::{Job, eventually, words};

#[test]
fn any_new_process_is_held_and_no_other() {
    let it = Guarded::normal(&["routine 100 0"]);
    let running = GuardDaemon::job(&it, "--guard=enforce --respond stop").start();
    eventually("the daemon", || running.read("err").contains("guarding every process"));
    let daemon = GuardDaemon::of(running, &it);
    let command = [it.program.clone().into()].into_iter().chain(words("routine 100 6")).collect();
    let anomalous = Job::of(command).in_own_session().start();
    eventually("the hold", || state(anomalous.pid()) == Some('T'));
    let status = daemon.status();
    let held = status["held"].as_array().expect("a list");
    assert_eq!(
        (held.len(), held[0]["pid"].as_u64()),
        (1, Some(anomalous.pid().into())),
        "{status}"
    );
    daemon.request("off --daemon");
    anomalous.finish().success();
    // The daemon only reports processes of the tests' own session.
    daemon.request("on");
    let mut own = Job::of(vec![it.program.clone().into()]);
    own.command.args(words("routine 100 6"));
    own.finish().success();
    assert!(daemon.events().iter().any(|event| event["restraint"] == "never held"));
    daemon.running.signal(libc::SIGTERM);
    daemon.running.finish().success();
}
