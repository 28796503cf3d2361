//! Tests of the guard that do not depend on the kernel, or that make many calls, children and
//! threads. Each run loads a gate, which takes seconds in the VM.

use crate::harness::guarded_program::{GuardSection, Guarded};
use crate::harness::job::{copy, kill, state};
use crate::harness::{Job, eventually, tollgate};

#[test]
fn signal_handlers_are_not_anomalies() {
    let it = Guarded::normal(&["alarms 60000", "alarms 60000"]);
    let guard = it.run("--guard=watch", "alarms 250000");
    assert!(guard.number("calls") > 1_000_000);
    assert_eq!(guard.number("anomalies"), 0, "{:?}", guard.events());
}

#[test]
fn ten_thousand_children_are_all_tested() {
    let it = Guarded::normal(&["fork 100"]);
    let guard = it.run("--guard=watch", "fork 10000");
    // fork, wait4 and the child's exit.
    assert!(guard.number("calls") >= 30_000, "{}", guard.0);
    assert_eq!(guard.number("anomalies"), 0, "{:?}", guard.events().first());
}

#[test]
fn thousand_execves_are_all_tested() {
    let it = Guarded::normal(&["fork-exec 20"]);
    let guard = it.run("--guard=watch", "fork-exec 1000");
    // The calls of each child, before and after its execve.
    assert!(guard.number("calls") >= 10_000, "{}", guard.0);
    assert_eq!(guard.number("anomalies"), 0, "{:?}", guard.events().first());
}

#[test]
fn two_thousand_threads_count_every_call() {
    let guard = Guarded::new().run("--guard=learn", "threads 2000 100");
    assert!(guard.number("calls") >= 200_000, "{}", guard.0);
}

/// Its other calls are the same both times.
#[test]
#[ignore = "a minute of nothing but calls; make bench runs it"]
fn no_call_in_a_hundred_million_is_lost() {
    let it = Guarded::normal(&["calls 1000"]);
    let calls = |command: &str| it.run("--guard=watch", command).number("calls");
    let (few, many) = (calls("calls 1000"), calls("calls 100001000"));
    assert_eq!(many - few, 100_000_000);
}

#[test]
fn tolerized_normalized_and_reset_programs_learn() {
    let it = Guarded::normal(&["routine 100 0"]);
    it.run_transition("tolerize");
    assert_eq!(it.run("--guard=watch", "routine 100 6").number("anomalies"), 0);
    it.run_transition("normalize");
    assert_eq!(it.run("--guard=watch", "routine 100 6").number("anomalies"), 0);
    // A reset removes everything that was learned.
    it.run_transition("reset");
    let anew = it.run("--guard=watch", "routine 100 6");
    assert_eq!((anew.number("anomalies"), &anew.program()["state"]), (0, &"training".into()));
}

/// Only the command's own program has its baseline before it starts.
#[test]
fn calls_before_the_baseline_are_counted() {
    let it = Guarded::normal(&["calls 1000"]);
    let script = format!("{} calls 1000000; true", it.program.display());
    let has_early_and_later_calls = || {
        let mut job =
            Job::run("--guard=watch", vec!["sh".into(), "-c".into(), script.clone().into()]);
        job.command.env("TOLLGATE_STORE", it.folder.path().join("store"));
        let guard = GuardSection::of(&job.finish().success());
        assert_eq!((&guard.program()["state"], guard.number("anomalies")), (&"normal".into(), 0));
        (1..guard.number("calls")).contains(&guard.number("early_calls"))
    };
    // On a busy machine, the baseline may come before the program's first call or after its last.
    eventually("its baseline comes while it calls", has_early_and_later_calls);
}

#[test]
fn frozen_profile_becomes_normal() {
    let it = Guarded::new();
    let run =
        || it.run("--guard=watch --normal-wait 10ms", "routine 20000 0").program()["state"].clone();
    assert_ne!(run(), "normal");
    eventually("it is normal", || run() == "normal");
}

#[test]
fn programs_are_identified_by_content() {
    let it = Guarded::normal(&["routine 100 0"]);
    let elsewhere = it.folder.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).expect("a folder");
    copy(&it.program, &elsewhere.join("guarded"));
    let other = Guarded { folder: it.folder, program: elsewhere.join("guarded") };
    assert!(other.run("--guard=watch", "routine 100 6").number("anomalies") >= 6);
    let mut changed = std::fs::read(&other.program).expect("it can be read");
    changed.push(0);
    std::fs::write(&other.program, changed).expect("it can be written");
    let anew = other.run("--guard=watch", "routine 100 6");
    assert_eq!((anew.number("anomalies"), &anew.program()["state"]), (0, &"training".into()));
}

#[test]
fn held_fork_succeeds_after_release() {
    let it = Guarded::normal(&["routine 100 0"]);
    let ran = it.job("--guard=enforce --delay-cap 1ms", "fork 5").finish().success();
    let guard = GuardSection::of(&ran);
    let forks = guard.events().iter().filter(|event| event["call"] == "clone").count();
    // One event for each, because the kernel restarts the call after the stop, and a restarted call
    // is not a new one. If a hold ends before its stop begins, the guard cannot recognize the same
    // call.
    assert!((5..=20).contains(&forks), "{forks} forks in {}", guard.0);
}

#[test]
fn inner_session_does_not_escape_the_guard() {
    let it = Guarded::normal(&["routine 100 0"]);
    let is_tested = || {
        let mut outer = Job::run("--guard=watch", vec![tollgate().into()]);
        outer.command.env("TOLLGATE_STORE", it.folder.path().join("store"));
        let inner = outer.path("inner");
        outer.command.args(["run", "-o"]).arg(inner).arg("--").arg(&it.program);
        outer.command.args(["routine", "1000000", "6"]);
        GuardSection::of(&outer.finish().success()).number("anomalies") >= 6
    };
    // The program is not the outer session's command, so it does not wait for its baseline, which
    // may be late on a busy machine.
    eventually("it is tested before it ends", is_tested);
}

#[test]
fn very_long_normal_wait_stays_frozen() {
    let it = Guarded::new();
    // The maximum, in seconds.
    let run = |rounds: &str| it.run("--guard=watch --normal-wait 5124095576030430h", rounds);
    run("routine 100 0");
    assert_eq!(run("routine 20000 0").program()["state"], "frozen");
}

#[test]
fn very_long_delay_is_held() {
    let it = Guarded::normal(&["routine 100 0"]);
    let ages = "--guard=enforce --delay-factor 99999999999h --delay-cap 99999999999h";
    let running = it.job(ages, "routine 100 6").start();
    let guarded = running.child_running("guarded");
    for _ in 0..5 {
        eventually("the hold", || state(guarded) == Some('T'));
        kill(guarded as i32, libc::SIGCONT);
    }
    kill(guarded as i32, libc::SIGKILL);
    assert!(running.finish().exits_with(137).out.is_empty(), "it went on");
}
