//! `tollgate daemon`: it guards a control group of the test's own, and an operator talks to it.

use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::cgroup::ControlGroup;
use crate::harness::daemon::{Daemon, Servant};
use crate::harness::guarded::Guarded;
use crate::harness::job::{copy, kill, stop};
use crate::harness::metrics::Metrics;
use crate::harness::{Job, NOBODY, eventually};

const STOPS: &str = "--guard=enforce --respond stop";

/// A daemon, and a program that it has learned to know while it worked.
fn learned(it: &Guarded, group: &ControlGroup, options: &str) -> (Daemon, Servant) {
    let daemon = Daemon::start(it, group, options);
    let mut servant = joined(it, group, &daemon);
    daemon.ask("normalize guarded");
    servant.serve(&[b'u'; 1000]);
    assert_eq!(daemon.program().expect("it is known")["state"], "normal");
    (daemon, servant)
}

/// Another process, once the daemon guards it.
fn joined(it: &Guarded, group: &ControlGroup, daemon: &Daemon) -> Servant {
    let mut servant = Servant::start(it, group);
    let calls = || daemon.program().and_then(|program| program["calls"].as_u64()).unwrap_or(0);
    let before = calls();
    // A thread tells of its usual calls every 1,024.
    eventually("it is guarded", || {
        servant.serve(&[b'u'; 500]);
        calls() > before + 1000
    });
    servant
}

#[track_caller]
fn hold(servant: &mut Servant) {
    servant.tell(b"xxxx");
    eventually("the hold", || servant.is_stopped());
}

#[track_caller]
fn runs_again(servant: &mut Servant) {
    let began = Instant::now();
    eventually("it runs again", || servant.unanswered() == 0 && !servant.is_stopped());
    // A process with this many BPF maps takes the kernel seconds to end on a busy machine.
    assert!(began.elapsed() < Duration::from_secs(20), "after {:?}", began.elapsed());
}

#[test]
fn what_it_holds_an_operator_releases() {
    let (it, group) = (Guarded::new(), ControlGroup::new());
    let (daemon, mut servant) = learned(&it, &group, &format!("{STOPS} --anomaly-limit 1000"));
    assert_eq!(daemon.events(), Vec::<Value>::new());
    hold(&mut servant);
    let status = daemon.status();
    let held = &status["held"].as_array().expect("a list")[0];
    assert_eq!((held["pid"].as_u64(), &held["left_ns"]), (Some(servant.pid().into()), &Value::Null));
    assert!(daemon.ask("status").text().contains("held now: 1 process"));
    kill(servant.pid() as i32, libc::SIGCONT);
    eventually("the hold again", || servant.is_stopped());
    assert_eq!(daemon.ask(&format!("release {}", servant.pid())).text().lines().count(), 1);
    // Its next unusual call is another matter, and so are the usual ones after it.
    eventually("it goes on", || servant.unanswered() < 4);
    servant.tell(&[b'u'; 20]);
    eventually("all its calls", || {
        daemon.ask_job("release").finish();
        servant.unanswered() == 0
    });

    let event = &daemon.events()[0];
    assert_eq!(
        (&event["call"], &event["action"], &event["lfc"]),
        (&"getgid".into(), &"stop".into(), &1.into())
    );
    assert!(event["time"].as_str().is_some_and(|time| time.len() > 20 && time.ends_with('Z')), "{event}");
    assert!(event["late_ns"].as_u64().is_some_and(|late| late > 0));
    assert!(daemon.ask("events").text().contains("usual there: "));

    let own = daemon.ask_job(&format!("hold {}", daemon.running.pid())).finish();
    own.exits_with(125).says("is this guard's own");
    daemon.ask(&format!("hold {}", servant.pid()));
    eventually("the operator's hold", || servant.is_stopped());
    daemon.ask("off --daemon");
    runs_again(&mut servant);
    servant.serve(b"xxxxxxxxxxxxuuuuuuuuuuuuuuuuuuuu");
    assert!(daemon.ask("status").text().contains("OFF"));
    daemon.ask("on");
    hold(&mut servant);
    daemon.running.signal(libc::SIGTERM);
    runs_again(&mut servant);
    let ended = daemon.running.finish().success();
    assert!(ended.err.contains("nobody is held"), "{}", ended.err);
}

/// Its baseline knows nothing of a shell's calls, and all its own are tested.
#[test]
fn what_a_thread_did_before_an_execve_does_not_count() {
    let (it, group) = (Guarded::normal(&["calls 1000"]), ControlGroup::new());
    let daemon = Daemon::start(&it, &group, "--guard=watch");
    let script = format!(
        "echo $$ >{}/cgroup.procs; sleep 2; cd /; exec {} calls 1000",
        group.0.display(),
        it.program.display()
    );
    eventually("it is guarded", || {
        Job::of(vec!["sh".into(), "-ec".into(), script.clone().into()]).finish().success();
        daemon.program().is_some_and(|program| program["calls"].as_u64() >= Some(1000))
    });
    let program = daemon.program().expect("it is known");
    assert_eq!(
        (&program["state"], &program["early_calls"], &program["anomalies"]),
        (&"normal".into(), &0.into(), &0.into())
    );
}

#[test]
fn verbs_change_what_is_in_use() {
    let (it, group) = (Guarded::new(), ControlGroup::new());
    let (daemon, mut servant) = learned(&it, &group, "--guard=watch");
    servant.serve(b"x");
    let unusual = daemon.program().expect("known")["anomalies"].as_u64().expect("a number");
    assert!(unusual > 0);
    daemon.ask("tolerize guarded");
    assert_eq!(daemon.program().expect("known")["state"], "training");
    let all = [[b'x'; 60], [b'u'; 60]].concat();
    servant.serve(&all.repeat(3));
    assert_eq!(daemon.program().expect("known")["anomalies"], unusual, "training programs are not tested");
    daemon.ask("normalize guarded");
    servant.serve(&all.repeat(3));
    let now = daemon.program().expect("known");
    assert_eq!((&now["state"], &now["anomalies"]), (&"normal".into(), &unusual.into()), "{now}");
    assert!(daemon.ask("show guarded").text().contains("getgid"));
    daemon.ask("reset guarded");
    let now = daemon.program().expect("known");
    assert_eq!((&now["state"], &now["windows"]), (&"training".into(), &0.into()), "{now}");
    daemon.ask_job("normalize guarded").finish().exits_with(125).says("no baseline of guarded");
    daemon.ask_job("release nobody").finish().exits_with(125).says("nobody is held by this number or name");
    daemon.ask_job(&format!("hold {}", servant.pid())).finish().exits_with(125).says("--guard=enforce");
}

#[test]
fn it_stores_what_it_learned_and_a_later_one_knows_it() {
    let (it, group) = (Guarded::new(), ControlGroup::new());
    let (daemon, mut servant) = learned(&it, &group, "--guard=watch");
    daemon.running.signal(libc::SIGTERM);
    daemon.running.finish().success();
    servant.serve(b"x");
    let later = Daemon::start(&it, &group, "--guard=watch");
    servant.serve(b"uuuuuuuuuuuu");
    assert_eq!(later.program().expect("it is there already")["state"], "normal");
    servant.serve(b"x");
    eventually("its event", || !later.events().is_empty());
}

#[test]
fn nobody_stays_held_when_it_is_killed() {
    let (it, group) = (Guarded::new(), ControlGroup::new());
    let (daemon, mut servant) = learned(&it, &group, STOPS);
    hold(&mut servant);
    daemon.running.signal(libc::SIGKILL);
    runs_again(&mut servant);
    daemon.running.finish().exits_with(137);
    // What it left at the socket's path is no daemon.
    let again = Daemon::start(&it, &group, STOPS);
    again.ask("status");
}

#[test]
fn whatever_it_cannot_go_on_after_nobody_stays_held() {
    let (it, group) = (Guarded::new(), ControlGroup::new());
    let (daemon, mut servant) = learned(&it, &group, STOPS);
    hold(&mut servant);
    daemon.limit_open_files(0);
    // Another program to be met.
    let other = it.folder.path().join("other");
    copy(&it.program, &other);
    let _stranger = Servant::of(&other, &group, 0);
    runs_again(&mut servant);
    daemon.running.finish().exits_with(125).says("open files");
}

#[test]
fn whom_a_daemon_and_its_warden_held_is_let_go_by_off() {
    let (it, group) = (Guarded::new(), ControlGroup::new());
    let (daemon, mut servant) = learned(&it, &group, STOPS);
    let warden = daemon.running.child_running("tollgate-warden");
    hold(&mut servant);
    // Together, as when the kernel is out of memory.
    stop(daemon.running.pid());
    kill(warden as i32, libc::SIGKILL);
    daemon.running.signal(libc::SIGKILL);
    let (store, socket) = (daemon.store.clone(), daemon.socket.clone());
    daemon.running.finish().exits_with(137);
    assert!(servant.is_stopped());
    let mut off = Job::typed("guard off --killed");
    off.command.env("TOLLGATE_STORE", store).env("TOLLGATE_SOCKET", socket);
    assert!(off.finish().success().text().contains("let go of 1 process"));
    runs_again(&mut servant);
}

#[test]
fn only_root_may_control_it_and_only_one_listens() {
    let (it, group) = (Guarded::new(), ControlGroup::new());
    let daemon = Daemon::start(&it, &group, "--guard=watch");
    for command in ["status", "off", "release", "events", "top"] {
        let mut job = daemon.ask_job(command);
        job.command.uid(NOBODY).gid(NOBODY);
        let words = if command == "top" { "needs a terminal" } else { "only root may" };
        job.finish().exits_with(125).says(words);
    }
    Daemon::job(&it, "--guard=watch").finish().exits_with(125).says("a daemon listens at");
    // Who says what it does not understand is told so, and it goes on.
    let mut stream = std::os::unix::net::UnixStream::connect(&daemon.socket).expect("it listens");
    stream.write_all(b"{\"ask\":\"everything\"}\n").expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    assert!(answer.contains("does not understand"), "{answer}");
    daemon.ask("status");
}

#[test]
fn some_are_spared_and_no_more_than_some_are_held() {
    let (it, group) = (Guarded::new(), ControlGroup::new());
    let (daemon, mut first) = learned(&it, &group, "--guard=enforce --respond stop --held-most 1");
    let mut second = joined(&it, &group, &daemon);
    hold(&mut first);
    let counted = || daemon.status()["held"].as_array().is_some_and(|held| held.len() == 1);
    eventually("the daemon has counted it", counted);
    second.serve(b"xxxx");
    assert!(!second.is_stopped());
    let events = daemon.events();
    assert!(events.iter().any(|event| event["restraint"] == "too many are held"), "{events:?}");
    drop(daemon);
    runs_again(&mut first);

    let sparing = format!("{STOPS} --spare {}", it.program.display());
    let daemon = Daemon::start(&it, &group, &sparing);
    first.serve(&[b'u'; 20]);
    first.serve(b"xxxx");
    assert_eq!(daemon.status()["held"], serde_json::json!([]));
    let events = daemon.events();
    assert!(events.iter().any(|event| event["restraint"] == "never held"), "{events:?}");
}

#[test]
fn counts_for_prometheus_and_events_in_a_file() {
    let (it, group) = (Guarded::new(), ControlGroup::new());
    let events = it.folder.path().join("events.jsonl");
    let options = format!("--guard=watch --metrics 127.0.0.1:0 --events {}", events.display());
    let (daemon, mut servant) = learned(&it, &group, &options);
    servant.serve(b"xxx");
    eventually("events in the file", || {
        std::fs::read_to_string(&events).is_ok_and(|text| text.lines().count() >= 3)
    });
    let metrics = Metrics::of(&daemon.running);
    let is_its =
        |series: &str| series.starts_with("tollgate_guard_anomalies_total{") && series.contains("/guarded");
    eventually("the counts", || metrics.value(is_its).is_some_and(|count| count >= 3.0));
}
