//! The guard on real processes: it learns a program, tells what it never did before, and holds it.

use std::time::{Duration, Instant};

use crate::harness::guarded::{Guard, Guarded};
use crate::harness::job::{is_running, kill, processes, state};
use crate::harness::{Running, eventually};

const DELAYS: &str = "--guard=enforce --delay-factor 1ms";

#[test]
fn what_was_learned_is_usual_and_the_rest_is_not() {
    let it = Guarded::normal(&["routine 100 0"]);
    let usual = it.run("--guard=watch", "routine 50000 0");
    assert_eq!((usual.number("anomalies"), usual.number("early_calls")), (0, 0));
    assert_eq!(usual.program()["state"], "normal");
    assert!(usual.number("calls") >= 200_000, "{}", usual.0);
    assert!(usual.number("bytes") <= 24 << 10, "{}", usual.0);
    let unusual = it.run("--guard=watch", "routine 100 6");
    // Each of the six, and the usual ones after them while their windows have one.
    assert!(unusual.number("anomalies") >= 6, "{}", unusual.0);
    assert_eq!(unusual.number("holds"), 0);
    let first = &unusual.events()[0];
    assert_eq!(
        (&first["call"], &first["lfc"], &first["action"]),
        (&"getgid".into(), &1.into(), &"observe".into())
    );
    let before: Vec<_> = first["sequence"].as_array().expect("calls").iter().rev().skip(1).take(2).collect();
    assert_eq!(before, ["getppid", "getuid"]);
    assert!(first["expected"].as_array().expect("calls").contains(&"getuid".into()), "{first}");
}

#[test]
fn unusual_calls_are_held_longer_and_longer() {
    let it = Guarded::normal(&["routine 100 0"]);
    let began = Instant::now();
    let guard = it.run(DELAYS, "routine 100 6");
    let held: Vec<_> =
        guard.events().iter().map(|event| event["held_ns"].as_u64().expect("a time") / 1_000_000).collect();
    assert_eq!(held[..6], [2, 4, 8, 16, 32, 64]);
    // There is no stopping a process that ends.
    let lasting = guard.events().iter().filter(|event| event["call"] != "exit_group");
    let all = Duration::from_nanos(lasting.map(|event| event["held_ns"].as_u64().expect("a time")).sum());
    assert!(began.elapsed() >= all, "held for {all:?} of {:?}", began.elapsed());
    assert!(guard.number("holds") > 6, "the calls after them, too: {}", guard.0);
}

/// Held until somebody lets it go.
fn held(it: &Guarded) -> (Running, u32) {
    let running = it.job("--guard=enforce --respond stop", "routine 100 100").start();
    let guarded = running.child_running("guarded");
    eventually("the hold", || state(guarded) == Some('T'));
    (running, guarded)
}

#[test]
fn a_continue_of_somebody_else_does_not_free_it() {
    let it = Guarded::normal(&["routine 100 0"]);
    let (running, guarded) = held(&it);
    for _ in 0..20 {
        kill(guarded as i32, libc::SIGCONT);
        eventually("the hold again", || state(guarded) == Some('T'));
    }
    kill(guarded as i32, libc::SIGKILL);
    let ran = running.finish().exits_with(137);
    assert!(ran.out.is_empty(), "it went on: {:?}", ran.text());
}

#[test]
fn nobody_stays_held_when_tollgate_is_killed() {
    let it = Guarded::normal(&["routine 100 0"]);
    for milliseconds in [0, 20] {
        let (running, guarded) = held(&it);
        std::thread::sleep(Duration::from_millis(milliseconds));
        kill(running.pid() as i32, libc::SIGKILL);
        let began = Instant::now();
        eventually("its end", || !is_running(guarded));
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        assert_eq!(running.finish().exits_with(137).text(), "done\n");
    }
}

/// The warden of this Tollgate.
fn warden_of(owner: u32) -> Option<u32> {
    let is_warden = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.windows(8 + owner.to_string().len()).any(|part| part == format!("\0warden\0{owner}").as_bytes())
    };
    processes().into_iter().find(is_warden)
}

#[test]
fn a_warden_that_is_killed_has_a_successor() {
    let it = Guarded::normal(&["routine 100 0"]);
    let (running, guarded) = held(&it);
    let first = warden_of(running.pid()).expect("a warden");
    kill(first as i32, libc::SIGKILL);
    eventually("another warden", || warden_of(running.pid()).is_some_and(|warden| warden != first));
    assert_eq!(state(guarded), Some('T'));
    kill(running.pid() as i32, libc::SIGKILL);
    running.finish().exits_with(137);
    eventually("its end", || !is_running(guarded));
}

#[test]
fn a_held_program_ends_when_it_is_asked_to() {
    let it = Guarded::normal(&["routine 100 0"]);
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let (running, _) = held(&it);
        running.signal(signal);
        let ran = running.finish().exits_with(128 + signal);
        assert!(ran.out.is_empty());
        assert_eq!(Guard::of(&ran).number("holds"), 1);
    }
}

#[test]
fn unusual_programs_are_killed_where_that_is_the_response() {
    let it = Guarded::normal(&["routine 100 0"]);
    let ran = it.job("--guard=enforce --respond kill", "routine 100 6").finish().exits_with(137);
    assert!(ran.out.is_empty());
    let guard = Guard::of(&ran);
    assert_eq!((guard.number("killed"), guard.number("holds")), (1, 0));
}

#[test]
fn an_unusual_execve_never_runs_the_new_program() {
    // It forks and executes in earnest, which a routine never does.
    let it = Guarded::normal(&["routine 100 0"]);
    let ran = it.job("--guard=enforce --respond deny --delay-cap 1ms", "fork-exec 1").finish();
    assert_ne!(ran.status, 0);
    let guard = Guard::of(&ran);
    // As the kernel can.
    assert_eq!(guard.number("killed") + guard.number("refused"), 1, "{}", guard.0);
    let denied: Vec<_> = guard.events().iter().filter(|event| event["action"] == "deny").collect();
    assert_eq!(denied[0]["call"], "execve");
    // A child goes on with a copy of its parent's sequence.
    let sequence = denied[0]["sequence"].as_array().expect("calls");
    assert!(sequence.iter().any(|call| call == "clone"), "{sequence:?}");
}

#[test]
fn who_is_held_at_an_execve_runs_the_new_program_then() {
    let it = Guarded::normal(&["routine 100 0"]);
    let guard = Guard::of(&it.job("--guard=enforce --delay-cap 1ms", "fork-exec 1").finish().success());
    let held = |event: &&serde_json::Value| event["call"] == "execve" && event["held_ns"].as_u64() > Some(0);
    assert!(guard.events().iter().any(|event| held(&event)), "{}", guard.0);
}
