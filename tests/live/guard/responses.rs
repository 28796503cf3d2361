//! The guard with real processes: it learns a program, reports what it never did before, and holds
//! it.

use std::time::{Duration, Instant};

use crate::harness::guarded_program::{GuardSection, Guarded};
use crate::harness::job::{is_running, kill, processes, state};
use crate::harness::{Running, eventually};

const DELAYS: &str = "--guard=enforce --delay-factor 1ms";

#[test]
fn only_unlearned_calls_are_anomalies() {
    let it = Guarded::normal(&["routine 100 0"]);
    let normal = it.run("--guard=watch", "routine 50000 0");
    assert_eq!((normal.number("anomalies"), normal.number("early_calls")), (0, 0));
    assert_eq!(normal.program()["state"], "normal");
    assert!(normal.number("calls") >= 200_000, "{}", normal.0);
    assert!(normal.number("bytes") <= 24 << 10, "{}", normal.0);
    let anomalous = it.run("--guard=watch", "routine 100 6");
    // Each of the six calls, and the normal calls whose windows contain one of them.
    assert!(anomalous.number("anomalies") >= 6, "{}", anomalous.0);
    assert_eq!(anomalous.number("holds"), 0);
    let first = &anomalous.events()[0];
    assert_eq!(
        (&first["call"], &first["lfc"], &first["action"]),
        (&"getgid".into(), &1.into(), &"observe".into())
    );
    let before: Vec<_> =
        first["sequence"].as_array().expect("calls").iter().rev().skip(1).take(2).collect();
    assert_eq!(before, ["getppid", "getuid"]);
    assert!(first["expected"].as_array().expect("calls").contains(&"getuid".into()), "{first}");
}

#[test]
fn response_delay_doubles() {
    let it = Guarded::normal(&["routine 100 0"]);
    let began = Instant::now();
    let guard = it.run(DELAYS, "routine 100 6");
    let held: Vec<_> = guard
        .events()
        .iter()
        .map(|event| event["held_ns"].as_u64().expect("a time") / 1_000_000)
        .collect();
    assert_eq!(held[..6], [2, 4, 8, 16, 32, 64]);
    let times = guard.events().iter().map(|event| event["held_ns"].as_u64().expect("a time"));
    let all = Duration::from_nanos(times.sum());
    assert!(began.elapsed() >= all, "held for {all:?} of {:?}", began.elapsed());
    assert!(guard.number("holds") > 6, "the calls after them, too: {}", guard.0);
}

/// Starts a process that is held until it is released.
fn held(it: &Guarded) -> (Running, u32) {
    let running = it.job("--guard=enforce --respond stop", "routine 100 100").start();
    let guarded = running.child_running("guarded");
    eventually("the hold", || state(guarded) == Some('T'));
    (running, guarded)
}

#[test]
fn foreign_sigcont_does_not_release() {
    let it = Guarded::normal(&["routine 100 0"]);
    let (running, guarded) = held(&it);
    for _ in 0..20 {
        kill(guarded as i32, libc::SIGCONT);
        eventually("the hold again", || state(guarded) == Some('T'));
    }
    eventually("the message", || {
        running.read("err").contains("others have continued held processes 20 times, now guarded")
    });
    kill(guarded as i32, libc::SIGKILL);
    let ran = running.finish().exits_with(137);
    assert!(ran.out.is_empty(), "it went on: {:?}", ran.text());
    // Some terminals continue each process that stops.
    assert_eq!(GuardSection::of(&ran).0["foreign_continues"], 20);
}

#[test]
fn killed_tollgate_leaves_nobody_held() {
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

/// Finds the watchdog of this Tollgate.
fn watchdog_of(owner: u32) -> Option<u32> {
    let is_watchdog = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.windows(10 + owner.to_string().len())
            .any(|part| part == format!("\0watchdog\0{owner}").as_bytes())
    };
    processes().into_iter().find(is_watchdog)
}

#[test]
fn killed_watchdog_is_replaced() {
    let it = Guarded::normal(&["routine 100 0"]);
    let (running, guarded) = held(&it);
    let first = watchdog_of(running.pid()).expect("a watchdog");
    kill(first as i32, libc::SIGKILL);
    eventually("another watchdog", || {
        watchdog_of(running.pid()).is_some_and(|watchdog| watchdog != first)
    });
    assert_eq!(state(guarded), Some('T'));
    kill(running.pid() as i32, libc::SIGKILL);
    running.finish().exits_with(137);
    eventually("its end", || !is_running(guarded));
}

#[test]
fn sigterm_ends_a_held_program() {
    let it = Guarded::normal(&["routine 100 0"]);
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let (running, _) = held(&it);
        running.signal(signal);
        let ran = running.finish().exits_with(128 + signal);
        assert!(ran.out.is_empty());
        assert_eq!(GuardSection::of(&ran).number("holds"), 1);
    }
}

#[test]
fn response_kill() {
    let it = Guarded::normal(&["routine 100 0"]);
    let ran = it.job("--guard=enforce --respond kill", "routine 100 6").finish().exits_with(137);
    assert!(ran.out.is_empty());
    let guard = GuardSection::of(&ran);
    assert_eq!((guard.number("killed"), guard.number("holds")), (1, 0));
}

#[test]
fn response_deny_at_execve() {
    // The workload really forks and executes, which the routine never does.
    let it = Guarded::normal(&["routine 100 0"]);
    let ran = it.job("--guard=enforce --respond deny --delay-cap 1ms", "fork-exec 1").finish();
    assert_ne!(ran.status, 0);
    let guard = GuardSection::of(&ran);
    // Which of the two depends on the kernel.
    assert_eq!(guard.number("killed") + guard.number("refused"), 1, "{}", guard.0);
    let denied: Vec<_> = guard.events().iter().filter(|event| event["action"] == "deny").collect();
    assert_eq!(denied[0]["call"], "execve");
    // A child starts with a copy of its parent's sequence.
    let sequence = denied[0]["sequence"].as_array().expect("calls");
    assert!(sequence.iter().any(|call| call == "clone"), "{sequence:?}");
}

#[test]
fn held_execve_runs_after_release() {
    let it = Guarded::normal(&["routine 100 0"]);
    let guard = GuardSection::of(
        &it.job("--guard=enforce --delay-cap 1ms", "fork-exec 1").finish().success(),
    );
    let held = |event: &&serde_json::Value| {
        event["call"] == "execve" && event["held_ns"].as_u64() > Some(0)
    };
    assert!(guard.events().iter().any(|event| held(&event)), "{}", guard.0);
}
