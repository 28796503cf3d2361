//! A held process that is requested to end can end, also if it handles the request.

use libc::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::harness::guarded_program::Guarded;
use crate::harness::job::{children, kill, state};
use crate::harness::{Job, Running, eventually};

const STOP: &str = "--guard=enforce --respond stop --anomaly-limit 4294967295";

fn learned() -> Guarded {
    Guarded::normal(&["ends-on-request 0 100 0", "ends-on-request 1 100 0"])
}

/// Starts a program, and waits until it is held.
#[track_caller]
fn held(it: &Guarded, command: &str) -> (Running, i32) {
    let running = it.job(STOP, command).start();
    let guarded = running.child_running("guarded");
    eventually("the hold", || state(guarded) == Some('T'));
    (running, guarded as i32)
}

/// `request` sends the signal to the process or to Tollgate. From a terminal, each of these signals
/// comes to the whole process group, and so to both.
#[track_caller]
fn ends_on_each_request(request: impl Fn(&Running, i32, i32)) {
    let it = learned();
    for signal in [SIGTERM, SIGINT, SIGHUP, SIGQUIT] {
        let (running, guarded) = held(&it, "ends-on-request 0 100 50");
        request(&running, guarded, signal);
        assert_eq!(running.finish().success().text(), "saved\n", "{signal}");
    }
}

#[test]
fn held_process_with_a_handler_ends_on_request() {
    ends_on_each_request(|_, guarded, signal| kill(guarded, signal));
}

#[test]
fn command_with_a_handler_ends_when_tollgate_is_requested_to_end() {
    ends_on_each_request(|running, _, signal| running.signal(signal));
}

/// A shell runs its trap only when its foreground child has ended, and the child gets no signal.
#[test]
fn command_ends_whose_held_child_gets_no_signal() {
    let it = learned();
    // The child's baseline is loaded while it makes its usual calls, which take a second or more.
    let script =
        format!("trap 'echo trapped; exit 3' TERM; {} routine 1000000 50", it.program.display());
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
    let (running, guarded) = held(&it, "ends-on-request 1 100 50");
    kill(guarded, libc::SIGKILL);
    running.finish().exits_with(137);
}
