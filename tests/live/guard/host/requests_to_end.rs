//! A held process that is requested to end can end, also if it handles the request.

use libc::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::harness::guarded_program::Guarded;
use crate::harness::job::{children, kill, state};
use crate::harness::{Job, eventually};

const STOP: &str = "--guard=enforce --respond stop --anomaly-limit 4294967295";

fn learned() -> Guarded {
    Guarded::normal(&["ends-on-request 0 100 0", "ends-on-request 1 100 0"])
}

/// From a terminal, each of these signals comes to the whole process group, and so to the process
/// and to Tollgate.
#[test]
fn held_process_with_a_handler_ends_on_request() {
    let it = learned();
    for signal in [SIGTERM, SIGINT, SIGHUP, SIGQUIT] {
        let running = it.job(STOP, "ends-on-request 0 100 50").start();
        let guarded = running.child_running("guarded");
        eventually("the hold", || state(guarded) == Some('T'));
        kill(guarded as i32, signal);
        assert_eq!(running.finish().success().text(), "saved\n", "{signal}");
    }
}

#[test]
fn command_with_a_handler_ends_when_tollgate_is_requested_to_end() {
    let it = learned();
    for signal in [SIGTERM, SIGINT, SIGHUP, SIGQUIT] {
        let running = it.job(STOP, "ends-on-request 0 100 50").start();
        let guarded = running.child_running("guarded");
        eventually("the hold", || state(guarded) == Some('T'));
        running.signal(signal);
        assert_eq!(running.finish().success().text(), "saved\n", "{signal}");
    }
}

/// A shell runs its trap only when its foreground child has ended, and the child gets no signal.
#[test]
fn command_ends_whose_held_child_gets_no_signal() {
    let it = learned();
    let script =
        format!("trap 'echo trapped; exit 3' TERM; {} routine 100 50", it.program.display());
    let mut job = Job::run(STOP, ["sh", "-c", &script].map(Into::into).into());
    job.command.env("TOLLGATE_STORE", it.folder.path().join("store"));
    let running = job.start();
    let shell = running.child_running("sh");
    let child = || children(shell).first().copied();
    eventually("the hold", || child().is_some_and(|child| state(child) == Some('T')));
    running.signal(SIGTERM);
    assert!(running.finish().exits_with(3).text().ends_with("trapped\n"));
}

/// Otherwise, an attacker would free himself of all holds.
#[test]
fn process_cannot_request_its_own_end() {
    let it = learned();
    let running = it.job(STOP, "ends-on-request 1 100 50").start();
    let guarded = running.child_running("guarded");
    eventually("the hold", || state(guarded) == Some('T'));
    kill(guarded as i32, libc::SIGKILL);
    running.finish().exits_with(137);
}
