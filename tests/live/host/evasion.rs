//! Programs that try to get away from their baseline, or to wear the guard out.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use serde_json::Value;

use crate::harness::cgroup::ControlGroup;
use crate::harness::daemon::{Daemon, Servant};
use crate::harness::eventually;
use crate::harness::guarded::Guarded;
use crate::harness::job::{copy, kill, stop};
use crate::harness::report::none_lost;

/// What there is to know of a baseline; not how often it was used.
fn knowledge(baseline: &Value) -> Vec<Value> {
    ["digest", "state", "pairs", "windows"].map(|field| baseline[field].clone()).into()
}

#[test]
fn a_program_that_replaces_itself_starts_anew_and_the_old_one_stays_what_it_is() {
    let (it, group) = (Guarded::normal(&["routine 100 0"]), ControlGroup::new());
    // It is to know what a servant does.
    let teacher = Daemon::start(&it, &group, "--guard=learn");
    let mut old = Servant::start(&it, &group);
    eventually("it is learned", || {
        old.serve(&[b'u'; 500]);
        teacher.program().is_some_and(|program| program["calls"].as_u64() > Some(5000))
    });
    teacher.running.signal(libc::SIGTERM);
    teacher.running.finish().success();
    it.change("normalize");
    let before = it.stored();

    let daemon = Daemon::start(&it, &group, "--guard=watch");
    let refused = fs::OpenOptions::new().write(true).open(&it.program).expect_err("it runs");
    assert_eq!(refused.kind(), ErrorKind::ExecutableFileBusy);
    fs::rename(it.changed("new"), &it.program).expect("it can be replaced");
    let mut new = Servant::start(&it, &group);
    let known = || {
        let status = daemon.status();
        let all = status["programs"].as_array().expect("programs").iter();
        let mut all: Vec<_> = all.map(|one| (one["state"].clone(), one["anomalies"].clone())).collect();
        all.sort_by_key(|(state, _)| state.to_string());
        all
    };
    eventually("both are met", || {
        new.serve(b"xuxu");
        old.serve(&[b'u'; 300]);
        known().len() == 2
    });
    assert_eq!(known(), [("normal".into(), 0.into()), ("training".into(), 0.into())]);
    old.serve(b"x");
    eventually("the old one is tested as ever", || !daemon.events().is_empty());
    daemon.running.signal(libc::SIGTERM);
    daemon.running.finish().success();
    let after = it.stored();
    assert_eq!(after.len(), 2, "{after:?}");
    let of_old = after.iter().find(|one| one["digest"] == before[0]["digest"]).expect("it is there");
    assert_eq!((&of_old["state"], &of_old["paths"]), (&before[0]["state"], &before[0]["paths"]));
    let is_training = |one: &&Value| one["state"] == "training" || one["state"] == "frozen";
    assert_eq!(after.iter().filter(is_training).count(), 1);
}

/// The gate knows a file by its times, too, and has room for 4,096 names. Each that is not chosen has the daemon wait
/// for the kernel.
#[test]
#[ignore = "four minutes; make bench runs it"]
fn a_file_that_is_touched_without_end_takes_no_other_programs_place() {
    let (it, group) = (Guarded::new(), ControlGroup::new());
    let daemon = Daemon::start(&it, &group, &format!("--guard=watch --exe {}", it.program.display()));
    let other = it.folder.path().join("other");
    copy(&it.program, &other);
    let mut servant = Servant::of(&other, &group, 0);
    // The daemon looks for new processes twice a second.
    std::thread::sleep(Duration::from_secs(1));
    for n in 0..4500 {
        fs::set_permissions(&other, fs::Permissions::from_mode(0o700 + n % 2)).expect("it is ours");
        servant.serve(b"e");
        // When it has answered, those before have their names. No more than 64 profiles are made ahead.
        if n % 25 == 0 {
            daemon.ask("status");
        }
    }
    let mut late = Servant::start(&it, &group);
    eventually("it is guarded", || {
        late.serve(&[b'u'; 500]);
        daemon.program().is_some()
    });
    none_lost(&daemon.status());
}

/// What becomes of its digest once it is guarded.
fn digest_of_one_with(size: u64, is_expected: impl Fn(&Value) -> bool) {
    let (it, group) = (Guarded::new(), ControlGroup::new());
    let program = it.changed("long");
    fs::File::options().write(true).open(&program).and_then(|file| file.set_len(size)).expect("sparse");
    let daemon = Daemon::start(&it, &group, "--guard=watch");
    let mut servant = Servant::of(&program, &group, 0);
    eventually("it is met", || {
        servant.serve(b"u");
        daemon.program_called("long").is_some_and(|long| is_expected(&long["digest"]))
    });
}

#[test]
fn a_program_of_a_terabyte_keeps_nobody_waiting() {
    digest_of_one_with(1 << 40, Value::is_null);
}

#[test]
fn a_long_program_is_known_all_the_same() {
    digest_of_one_with(32 << 20, Value::is_string);
}

/// More than 30 anomalies one by one, and the program has changed, says pH: it learns.
#[test]
fn slow_training_is_told_of_until_its_limit_and_learned_then() {
    let it = Guarded::normal(&["routine 100 0"]);
    let mut told = 0;
    while told <= 30 {
        assert_eq!(it.stored()[0]["state"], "normal", "after {told} anomalies");
        let new = it.run("--guard=watch", "routine 100 1").number("anomalies");
        assert!((1..=5).contains(&new), "{new} anomalies in a run");
        told += new;
    }
    assert_ne!(it.stored()[0]["state"], "normal", "after {told} anomalies");
    assert_eq!(it.run("--guard=watch", "routine 100 1").number("anomalies"), 0);
}

/// More than 12 among 128 calls, and it is an attack: nothing of it is learned, however often it comes.
#[test]
fn what_is_dense_is_never_learned() {
    let it = Guarded::normal(&["routine 100 0"]);
    let before = knowledge(&it.stored()[0]);
    for _ in 0..5 {
        assert!(it.run("--guard=watch", "routine 100 40").number("anomalies") >= 40);
        assert_eq!(knowledge(&it.stored()[0]), before);
    }
}

/// To a baseline that knows nothing of it, each of these is unusual.
#[test]
fn who_forks_executes_and_starts_threads_is_held_for_each_and_ends() {
    let it = Guarded::normal(&["routine 100 0"]);
    for (command, least) in [("short-processes 300", 300), ("fork-exec 100", 100), ("short-threads 300", 300)]
    {
        let guard = it.run("--guard=enforce --delay-cap 1ms --anomaly-limit 1000000000", command);
        assert!(guard.number("holds") >= least, "{command}: {}", guard.0);
    }
}

#[test]
fn unusual_calls_that_come_too_fast_are_lost_and_counted() {
    let (it, group) = (Guarded::normal(&["routine 100 0"]), ControlGroup::new());
    let daemon = Daemon::start(&it, &group, "--guard=watch --anomaly-limit 1000000000");
    let mut servant = Servant::start(&it, &group);
    let told = || daemon.program().map_or(0, |program| program["anomalies"].as_u64().expect("a number"));
    eventually("it is guarded", || {
        servant.serve(b"x");
        told() > 0
    });
    // Nobody takes them in.
    stop(daemon.running.pid());
    (0..20).for_each(|_| servant.serve(&[b'x'; 1000]));
    kill(daemon.running.pid() as i32, libc::SIGCONT);
    eventually("each is told or lost", || {
        let lost = daemon.status()["losses"]["guard events not reported (buffer full)"].as_u64().unwrap_or(0);
        lost > 0 && lost + told() >= 20_000
    });
}
