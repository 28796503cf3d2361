//! `tollgate daemon` for all processes, which needs a machine without other users.

use crate::harness::cgroup::TestCgroup;
use crate::harness::daemon::{CommandServer, GuardDaemon};
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

fn daemon_of(it: &Guarded, options: &str) -> GuardDaemon {
    GuardDaemon::start_ready(GuardDaemon::job(it, options), it)
}

fn end(daemon: GuardDaemon) {
    daemon.running.signal(libc::SIGTERM);
    daemon.running.finish().success();
}

/// A program with its daemon, which kills it at its first anomaly.
fn selecting() -> (Guarded, GuardDaemon) {
    let it = Guarded::normal(&["routine 100 0"]);
    let selection = format!("--guard=enforce --respond kill --exe {}", it.program.display());
    let daemon = daemon_of(&it, &selection);
    (it, daemon)
}

fn is_killed_at_an_anomaly(it: &Guarded) -> bool {
    let mut job = Job::of(vec![it.program.clone().into()]);
    job.command.args(words("routine 100 6"));
    job.in_own_session().finish().status == 128 + libc::SIGKILL
}

/// The program of each daemon has its guard, whichever daemon began last.
#[test]
fn daemons_guard_the_programs_that_they_select() {
    let (it, daemon) = selecting();
    let other = Guarded::named("other");
    let others =
        [format!("--guard=watch --exe {}", other.program.display()), "--guard=watch".into()];
    for options in others {
        let later = daemon_of(&other, &options);
        assert!(is_killed_at_an_anomaly(&it), "beside {options}");
        let mut job = Job::of(vec![other.program.clone().into()]);
        job.command.args(words("routine 100 6"));
        job.in_own_session().finish().success();
        eventually("the other one learns", || later.program_named("other").is_some());
        end(later);
        assert!(is_killed_at_an_anomaly(&it), "after {options}");
    }
    assert_eq!(daemon.program_named("other"), None);
    end(daemon);
}

/// A process that another daemon guards is guarded by this one when the other one has ended.
#[test]
fn daemon_gets_the_processes_of_one_that_ends() {
    let (it, none) = (Guarded::normal(&["routine 100 0"]), TestCgroup::new());
    let first = daemon_of(&Guarded::named("other"), "--guard=watch");
    let mut server = CommandServer::start(&it, &none);
    let options = format!("--guard=enforce --respond stop --exe {}", it.program.display());
    let daemon = daemon_of(&it, &options);
    server.send_and_wait(b"xxxx");
    end(first);
    server.send(b"x");
    eventually("the hold", || {
        let is_held = server.is_stopped();
        // Its calls before the daemon has it are not tested.
        if !is_held && server.pending_replies() == 0 {
            server.send(b"x");
        }
        is_held
    });
    assert_eq!(daemon.status()["held"][0]["pid"], server.pid());
    daemon.request("off --daemon");
    eventually("it runs again", || server.pending_replies() == 0);
    end(daemon);
}
