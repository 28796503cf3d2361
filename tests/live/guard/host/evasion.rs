//! Programs that try to evade their baseline or to exhaust the guard.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use serde_json::Value;

use crate::harness::cgroup::TestCgroup;
use crate::harness::daemon::{CommandServer, GuardDaemon};
use crate::harness::eventually;
use crate::harness::guarded_program::Guarded;
use crate::harness::job::{copy, kill, stop};
use crate::harness::report::none_lost;

/// The content of a baseline, without how often it was used.
fn knowledge(baseline: &Value) -> Vec<Value> {
    ["digest", "state", "pairs", "windows"].map(|field| baseline[field].clone()).into()
}

#[test]
fn replaced_program_gets_a_new_baseline() {
    let (it, cgroup) = (Guarded::normal(&["routine 100 0"]), TestCgroup::new());
    // Learns what a command server does.
    let teacher = GuardDaemon::start(&it, &cgroup, "--guard=learn");
    let mut old = CommandServer::start(&it, &cgroup);
    eventually("it is learned", || {
        old.send_and_wait(&[b'u'; 500]);
        teacher.program().is_some_and(|program| program["calls"].as_u64() > Some(5000))
    });
    teacher.running.signal(libc::SIGTERM);
    teacher.running.finish().success();
    it.run_transition("normalize");
    let before = it.stored();

    let daemon = GuardDaemon::start(&it, &cgroup, "--guard=watch");
    let refused = fs::OpenOptions::new().write(true).open(&it.program).expect_err("it runs");
    assert_eq!(refused.kind(), ErrorKind::ExecutableFileBusy);
    fs::rename(it.changed_copy("new"), &it.program).expect("it can be replaced");
    let mut new = CommandServer::start(&it, &cgroup);
    let known = || {
        let status = daemon.status();
        let all = status["programs"].as_array().expect("programs").iter();
        let mut all: Vec<_> =
            all.map(|one| (one["state"].clone(), one["anomalies"].clone())).collect();
        all.sort_by_key(|(state, _)| state.to_string());
        all
    };
    eventually("both are met", || {
        new.send_and_wait(b"xuxu");
        old.send_and_wait(&[b'u'; 300]);
        known().len() == 2
    });
    assert_eq!(known(), [("normal".into(), 0.into()), ("training".into(), 0.into())]);
    old.send_and_wait(b"x");
    eventually("the old one is tested as ever", || !daemon.events().is_empty());
    daemon.running.signal(libc::SIGTERM);
    daemon.running.finish().success();
    let after = it.stored();
    assert_eq!(after.len(), 2, "{after:?}");
    let of_old =
        after.iter().find(|one| one["digest"] == before[0]["digest"]).expect("it is there");
    assert_eq!((&of_old["state"], &of_old["paths"]), (&before[0]["state"], &before[0]["paths"]));
    let is_training = |one: &&Value| one["state"] == "training" || one["state"] == "frozen";
    assert_eq!(after.iter().filter(is_training).count(), 1);
}

/// The gate identifies a file by its times as well, and has room for 4,096 names. For each program
/// that is not selected, the daemon synchronizes with the kernel.
#[test]
#[ignore = "four minutes; make bench runs it"]
fn touched_file_does_not_exhaust_program_keys() {
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let daemon =
        GuardDaemon::start(&it, &cgroup, &format!("--guard=watch --exe {}", it.program.display()));
    let other = it.folder.path().join("other");
    copy(&it.program, &other);
    let mut server = CommandServer::of(&other, &cgroup, 0);
    // The daemon refreshes its list of processes twice a second.
    std::thread::sleep(Duration::from_secs(1));
    for n in 0..4500 {
        fs::set_permissions(&other, fs::Permissions::from_mode(0o700 + n % 2)).expect("it is ours");
        server.send_and_wait(b"e");
        // When it has replied, the earlier programs have names. At most 64 profiles are created in
        // advance.
        if n % 25 == 0 {
            daemon.request("status");
        }
    }
    let mut late = CommandServer::start(&it, &cgroup);
    eventually("it is guarded", || {
        late.send_and_wait(&[b'u'; 500]);
        daemon.program().is_some()
    });
    none_lost(&daemon.status());
}

/// Checks the digest of a program of this size once it is guarded.
fn digest_of_one_with(size: u64, is_expected: impl Fn(&Value) -> bool) {
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let program = it.changed_copy("long");
    fs::File::options()
        .write(true)
        .open(&program)
        .and_then(|file| file.set_len(size))
        .expect("sparse");
    let daemon = GuardDaemon::start(&it, &cgroup, "--guard=watch");
    let mut server = CommandServer::of(&program, &cgroup, 0);
    eventually("it is met", || {
        server.send_and_wait(b"u");
        daemon.program_named("long").is_some_and(|long| is_expected(&long["digest"]))
    });
}

#[test]
fn terabyte_program_blocks_nobody() {
    digest_of_one_with(1 << 40, Value::is_null);
}

#[test]
fn long_program_is_identified() {
    digest_of_one_with(32 << 20, Value::is_string);
}

/// After more than 30 anomalies, pH would learn them. Here they count once in an interval, also if
/// they are made in several runs.
#[test]
fn isolated_anomalies_of_many_runs_count_once() {
    let it = Guarded::normal(&["routine 100 0"]);
    let mut anomalies = 0;
    while anomalies <= 30 {
        let guard = it.run("--guard=watch", "routine 100 1");
        let new = guard.number("anomalies");
        assert!((1..=5).contains(&new), "{new} anomalies in a run");
        assert_eq!(guard.number("counted_anomalies"), 1, "after {anomalies} others");
        anomalies += new;
    }
    assert_eq!(it.stored()[0]["state"], "normal", "after {anomalies} anomalies");
}

/// More than 12 anomalies in 128 calls are an attack: the guard never learns them.
#[test]
fn dense_anomalies_are_never_learned() {
    let it = Guarded::normal(&["routine 100 0"]);
    let before = knowledge(&it.stored()[0]);
    for _ in 0..5 {
        assert!(it.run("--guard=watch", "routine 100 40").number("anomalies") >= 40);
        assert_eq!(knowledge(&it.stored()[0]), before);
    }
}

/// Each of these is anomalous if it is not in the baseline.
#[test]
fn fork_exec_and_thread_anomalies_are_each_held() {
    let it = Guarded::normal(&["routine 100 0"]);
    for (command, least) in
        [("short-processes 300", 300), ("fork-exec 100", 100), ("short-threads 300", 300)]
    {
        let guard = it.run("--guard=enforce --delay-cap 1ms --anomaly-limit 1000000000", command);
        assert!(guard.number("holds") >= least, "{command}: {}", guard.0);
    }
}

#[test]
fn anomaly_flood_is_counted_as_loss() {
    let (it, cgroup) = (Guarded::normal(&["routine 100 0"]), TestCgroup::new());
    let daemon = GuardDaemon::start(&it, &cgroup, "--guard=watch --anomaly-limit 1000000000");
    let mut server = CommandServer::start(&it, &cgroup);
    let counted =
        || daemon.program().map_or(0, |program| program["anomalies"].as_u64().expect("a number"));
    eventually("it is guarded", || {
        server.send_and_wait(b"x");
        counted() > 0
    });
    // The stopped daemon does not read the events.
    stop(daemon.running.pid());
    (0..20).for_each(|_| server.send_and_wait(&[b'x'; 1000]));
    kill(daemon.running.pid() as i32, libc::SIGCONT);
    eventually("each is reported or lost", || {
        let lost = daemon.status()["losses"]["guard events not reported (buffer full)"]
            .as_u64()
            .unwrap_or(0);
        lost > 0 && lost + counted() >= 20_000
    });
}
