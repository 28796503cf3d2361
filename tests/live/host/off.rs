//! `tollgate guard off` lets go everybody on the machine, whoever holds them. Its machine here is a mount namespace.

use crate::harness::guarded::{Guard, Guarded};
use crate::harness::job::{Running, state};
use crate::harness::{Job, eventually, tollgate, words};

/// `tollgate guard off` where this one runs, with a socket at which no daemon listens.
fn off(where_it_runs: &Running, options: &str) -> String {
    let line = format!("nsenter --mount --target {}", where_it_runs.pid());
    let off = [tollgate().into(), "guard".into(), "off".into()];
    let command = words(&line).into_iter().chain(off).chain(words(options)).collect();
    let mut job = Job::of(command);
    job.command.env("TOLLGATE_SOCKET", where_it_runs.path("no-socket"));
    job.finish().success().text()
}

#[test]
fn who_is_held_by_a_run_is_let_go_and_nobody_is_held_again() {
    let it = Guarded::normal(&["routine 100 0"]);
    let running = it
        .job("--guard=enforce --respond stop --anomaly-limit 1000", "routine 100 300")
        .in_own_bpf_fs()
        .start();
    let guarded = running.child_running("guarded");
    eventually("the hold", || state(guarded) == Some('T'));
    let said = off(&running, "--daemon");
    assert!(said.contains("no daemon listens at"), "{said}");
    assert_eq!(state(guarded), Some('T'));
    let said = off(&running, "");
    let words = format!("off until its end: the guard of process {}; let go of 1 process", running.pid());
    assert!(said.contains(&words), "{said}");
    let ran = running.finish().success();
    assert!(ran.err.contains("switched off by `tollgate guard off`"), "{}", ran.err);
    let guard = Guard::of(&ran);
    assert_eq!((guard.number("holds"), guard.number("anomalies") > 200), (1, true), "{}", guard.0);
}
