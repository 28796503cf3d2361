//! `tollgate daemon`: it guards a cgroup, and an operator sends it requests.

use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::cgroup::TestCgroup;
use crate::harness::daemon::{CommandServer, GuardDaemon};
use crate::harness::guarded_program::Guarded;
use crate::harness::job::{copy, kill, state, stop};
use crate::harness::metrics::Metrics;
use crate::harness::{Job, NOBODY, eventually};

const STOPS: &str = "--guard=enforce --respond stop";

/// Starts a daemon, and a program whose baseline it learns while the program works.
pub(super) fn learned(
    it: &Guarded,
    cgroup: &TestCgroup,
    options: &str,
) -> (GuardDaemon, CommandServer) {
    let daemon = GuardDaemon::start(it, cgroup, options);
    let mut server = joined(it, cgroup, &daemon);
    daemon.request("normalize guarded");
    server.send_and_wait(&[b'u'; 1000]);
    assert_eq!(daemon.program().expect("it is known")["state"], "normal");
    (daemon, server)
}

/// Starts another process and waits until the daemon guards it.
fn joined(it: &Guarded, cgroup: &TestCgroup, daemon: &GuardDaemon) -> CommandServer {
    let mut server = CommandServer::start(it, cgroup);
    let calls = || daemon.program().and_then(|program| program["calls"].as_u64()).unwrap_or(0);
    let before = calls();
    // A thread reports its normal calls every 1,024.
    eventually("it is guarded", || {
        server.send_and_wait(&[b'u'; 500]);
        calls() > before + 1000
    });
    server
}

#[track_caller]
fn hold(server: &mut CommandServer) {
    server.send(b"xxxx");
    eventually("the hold", || server.is_stopped());
}

#[track_caller]
fn runs_again(server: &mut CommandServer) {
    let began = Instant::now();
    eventually("it runs again", || server.pending_replies() == 0 && !server.is_stopped());
    // On a busy machine, the kernel needs seconds to end a process with this many BPF maps.
    assert!(began.elapsed() < Duration::from_secs(20), "after {:?}", began.elapsed());
}

#[test]
fn operator_releases_held_processes() {
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let (daemon, mut server) = learned(&it, &cgroup, &format!("{STOPS} --anomaly-limit 1000"));
    assert_eq!(daemon.events(), Vec::<Value>::new());
    hold(&mut server);
    let status = daemon.status();
    let held = &status["held"].as_array().expect("a list")[0];
    assert_eq!((held["pid"].as_u64(), &held["left_ns"]), (Some(server.pid().into()), &Value::Null));
    assert!(daemon.request("status").text().contains("held now: 1 process"));
    kill(server.pid() as i32, libc::SIGCONT);
    eventually("the hold again", || server.is_stopped());
    assert_eq!(daemon.request(&format!("release {}", server.pid())).text().lines().count(), 1);
    // Its next anomalous call, and the calls whose windows contain it, are held anew.
    eventually("it goes on", || server.pending_replies() < 4);
    server.send(&[b'u'; 20]);
    eventually("all its calls", || {
        daemon.client_job("release").finish();
        server.pending_replies() == 0
    });

    let event = &daemon.events()[0];
    assert_eq!(
        (&event["call"], &event["action"], &event["lfc"]),
        (&"getgid".into(), &"stop".into(), &1.into())
    );
    assert!(
        event["time"].as_str().is_some_and(|time| time.len() > 20 && time.ends_with('Z')),
        "{event}"
    );
    assert_eq!((&event["uid"], &event["user"]), (&0.into(), &"root".into()), "{event}");
    assert_eq!(event["parent_pid"], std::process::id(), "{event}");
    // The process's name, and not that of the thread of this test.
    let own = std::fs::read_to_string(format!("/proc/{0}/task/{0}/comm", std::process::id()));
    assert_eq!(event["parent_command"], own.expect("it runs").trim(), "{event}");
    assert_eq!(event["executable"], it.program.to_str().expect("text"), "{event}");
    assert!(event["late_ns"].as_u64().is_some_and(|late| late > 0));
    assert!(daemon.request("events").text().contains("normal here: "));

    // A process that cannot be held does not keep later ones from being held.
    let both = format!("hold {} {}", daemon.running.pid(), server.pid());
    daemon.client_job(&both).finish().exits_with(125).says("is part of the guard");
    eventually("the operator's hold", || server.is_stopped());
    // A relative path stands for the program at that place.
    let mut release = daemon.client_job("release ./guarded");
    release.command.current_dir(it.program.parent().expect("a folder"));
    assert_eq!(release.finish().success().text().lines().count(), 1);
    runs_again(&mut server);
    daemon.request(&format!("hold {}", server.pid()));
    eventually("the operator's hold", || server.is_stopped());
    daemon.request("off --daemon");
    runs_again(&mut server);
    server.send_and_wait(b"xxxxxxxxxxxxuuuuuuuuuuuuuuuuuuuu");
    assert!(daemon.request("status").text().contains("OFF"));
    daemon.request("on");
    hold(&mut server);
    let follower = daemon.client_job("events --follow").start();
    eventually("it follows", || !follower.read("out").is_empty());
    daemon.running.signal(libc::SIGTERM);
    runs_again(&mut server);
    let ended = daemon.running.finish().success();
    assert!(ended.err.contains("no process is held"), "{}", ended.err);
    follower.finish().exits_with(125).says("the daemon has ended");
}

/// The baseline does not contain a shell's calls, and all of the program's own calls are tested.
#[test]
fn calls_before_execve_do_not_count() {
    let (it, cgroup) = (Guarded::normal(&["calls 1000"]), TestCgroup::new());
    let daemon = GuardDaemon::start(&it, &cgroup, "--guard=watch");
    let script = format!(
        "echo $$ >{}/cgroup.procs; sleep 2; cd /; exec {} calls 1000",
        cgroup.0.display(),
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
fn transitions_apply_to_baselines_in_use() {
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let (daemon, mut server) = learned(&it, &cgroup, "--guard=watch");
    server.send_and_wait(b"x");
    let anomalies = daemon.program().expect("known")["anomalies"].as_u64().expect("a number");
    assert!(anomalies > 0);
    daemon.request("tolerize guarded");
    assert_eq!(daemon.program().expect("known")["state"], "training");
    let all = [[b'x'; 60], [b'u'; 60]].concat();
    server.send_and_wait(&all.repeat(3));
    assert_eq!(
        daemon.program().expect("known")["anomalies"],
        anomalies,
        "training programs are not tested"
    );
    daemon.request("normalize guarded");
    server.send_and_wait(&all.repeat(3));
    let now = daemon.program().expect("known");
    assert_eq!((&now["state"], &now["anomalies"]), (&"normal".into(), &anomalies.into()), "{now}");
    assert!(daemon.request("show guarded").text().contains("getgid"));
    daemon.request("reset guarded");
    let now = daemon.program().expect("known");
    assert_eq!((&now["state"], &now["windows"]), (&"training".into(), &0.into()), "{now}");
    daemon.client_job("normalize guarded").finish().exits_with(125).says("no baseline of guarded");
    daemon
        .client_job("release nobody")
        .finish()
        .exits_with(125)
        .says("no held process has this ID or name");
    daemon
        .client_job(&format!("hold {}", server.pid()))
        .finish()
        .exits_with(125)
        .says("--guard=enforce");
}

#[test]
fn learned_baseline_survives_restart() {
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let (daemon, mut server) = learned(&it, &cgroup, "--guard=watch");
    daemon.running.signal(libc::SIGTERM);
    daemon.running.finish().success();
    server.send_and_wait(b"x");
    let later = GuardDaemon::start(&it, &cgroup, "--guard=watch");
    server.send_and_wait(b"uuuuuuuuuuuu");
    assert_eq!(later.program().expect("it is there already")["state"], "normal");
    server.send_and_wait(b"x");
    eventually("its event", || !later.events().is_empty());
}

/// A pipe of one page that is full, with its reader.
fn full_pipe() -> (io::PipeReader, io::PipeWriter) {
    let (reader, mut writer) = io::pipe().expect("a pipe");
    // SAFETY: plain calls on our own descriptor.
    let set =
        |command, value: libc::c_int| unsafe { libc::fcntl(writer.as_raw_fd(), command, value) };
    assert!(set(libc::F_SETPIPE_SZ, 4096) >= 0 && set(libc::F_SETFL, libc::O_NONBLOCK) == 0);
    while writer.write(&[b'\n'; 64]).is_ok() {}
    // SAFETY: as above.
    assert_eq!(unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, 0) }, 0);
    (reader, writer)
}

#[test]
fn daemon_does_not_wait_for_a_reader() {
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let options = "--guard=enforce --anomaly-limit 1000 --delay-cap 1ms --events -";
    let mut job = GuardDaemon::job_in(&it, &cgroup, options);
    let [(_out_reader, out), (_err_reader, err)] = [full_pipe(), full_pipe()];
    job.command.stdout(out).stderr(err);
    let daemon = GuardDaemon::of(job.start(), &it);
    eventually("the daemon", || daemon.client_job("status").finish().status == 0);
    let mut server = joined(&it, &cgroup, &daemon);
    daemon.request("normalize guarded");
    server.send_and_wait(&[b'u'; 1000]);
    server.send_and_wait(&[b'x'; 50]);
    eventually("the events", || daemon.events().len() >= 50);
    // Nothing was lost, for there is room for more than this.
    assert_eq!(daemon.status()["losses"], serde_json::json!({}));
    daemon.running.signal(libc::SIGTERM);
    daemon.running.finish().success();
}

#[test]
fn killed_daemon_leaves_nobody_held() {
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let (daemon, mut server) = learned(&it, &cgroup, STOPS);
    hold(&mut server);
    daemon.running.signal(libc::SIGKILL);
    runs_again(&mut server);
    daemon.running.finish().exits_with(137);
    // The socket that the killed daemon left does not keep another from starting.
    let again = GuardDaemon::start(&it, &cgroup, STOPS);
    again.request("status");
}

#[test]
fn failed_daemon_leaves_nobody_held() {
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let (daemon, mut server) = learned(&it, &cgroup, STOPS);
    hold(&mut server);
    daemon.limit_open_files(0);
    // A second program that starts.
    let other = it.folder.path().join("other");
    copy(&it.program, &other);
    let _stranger = CommandServer::of(&other, &cgroup, 0);
    runs_again(&mut server);
    daemon.running.finish().exits_with(125).says("open files");
}

#[test]
fn control_is_root_only_and_exclusive() {
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let daemon = GuardDaemon::start(&it, &cgroup, "--guard=watch");
    for command in ["status", "off", "release", "events", "top"] {
        let mut job = daemon.client_job(command);
        job.command.uid(NOBODY).gid(NOBODY);
        let words = if command == "top" { "needs a terminal" } else { "only root may" };
        job.finish().exits_with(125).says(words);
    }
    GuardDaemon::job(&it, "--guard=watch")
        .finish()
        .exits_with(125)
        .says("a daemon is already listening at");
    // The daemon rejects a request that it does not understand, and continues.
    let mut stream = std::os::unix::net::UnixStream::connect(&daemon.socket).expect("it listens");
    stream.write_all(b"{\"ask\":\"everything\"}\n").expect("it reads");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).expect("it replies");
    assert!(reply.contains("does not understand"), "{reply}");
    daemon.request("status");
}

/// The process stays with the first daemon until that ends, unless that does not guard its program.
#[test]
fn second_daemon_of_a_group_guards_what_the_first_does_not() {
    let (first, second, cgroup) = (Guarded::new(), Guarded::new(), TestCgroup::new());
    // All guarded programs have the same content, so they are one program to the guard.
    let others = "--guard=watch --exe /bin/sh";
    for (options, is_free) in [(others, true), ("--guard=watch", false)] {
        let before = GuardDaemon::start(&first, &cgroup, options);
        let mut server = CommandServer::start(&second, &cgroup);
        if !is_free {
            eventually("the first one guards it", || {
                server.send_and_wait(&[b'u'; 500]);
                before.program().is_some()
            });
        }
        let after = GuardDaemon::start(&second, &cgroup, "--guard=enforce");
        if !is_free {
            let said = || after.running.read("err").contains("already guards process");
            eventually("its message", said);
            assert_eq!(after.program(), None);
            before.running.signal(libc::SIGTERM);
            before.running.finish().success();
        }
        eventually("it is guarded", || {
            server.send_and_wait(&[b'u'; 500]);
            after.program().is_some_and(|program| program["calls"].as_u64() > Some(1000))
        });
    }
}

#[test]
fn exemptions_and_max_held() {
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let (daemon, mut first) = learned(&it, &cgroup, "--guard=enforce --respond stop --max-held 1");
    let mut second = joined(&it, &cgroup, &daemon);
    hold(&mut first);
    let counted = || daemon.status()["held"].as_array().is_some_and(|held| held.len() == 1);
    eventually("the daemon has counted it", counted);
    second.send_and_wait(b"xxxx");
    assert!(!second.is_stopped());
    let events = daemon.events();
    assert!(events.iter().any(|event| event["restraint"] == "too many are held"), "{events:?}");
    drop(daemon);
    runs_again(&mut first);

    let sparing = format!("{STOPS} --exempt {}", it.program.display());
    let daemon = GuardDaemon::start(&it, &cgroup, &sparing);
    first.send_and_wait(&[b'u'; 20]);
    first.send_and_wait(b"xxxx");
    assert_eq!(daemon.status()["held"], serde_json::json!([]));
    let events = daemon.events();
    assert!(events.iter().any(|event| event["restraint"] == "never held"), "{events:?}");
}

#[test]
fn process_beyond_max_held_is_killed_on_demand() {
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let plugin = it.denouncing_plugin("getgid");
    let options =
        format!("{STOPS} --max-held 1 --over-max-held kill --plugin {}", plugin.display());
    let daemon = GuardDaemon::start(&it, &cgroup, &options);
    let mut first = joined(&it, &cgroup, &daemon);
    hold(&mut first);
    let counted = || daemon.status()["held"].as_array().is_some_and(|held| held.len() == 1);
    eventually("the daemon has counted it", counted);
    let mut second = joined(&it, &cgroup, &daemon);
    second.send(b"x");
    eventually("its end", || state(second.pid()) == Some('Z'));
    assert!(first.is_stopped());
    let events = daemon.events();
    assert!(events.iter().any(|event| event["action"] == "kill"), "{events:?}");
}

#[test]
fn prometheus_metrics_and_event_file() {
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let events = it.folder.path().join("events.jsonl");
    let options = format!("--guard=watch --metrics 127.0.0.1:0 --events {}", events.display());
    let (daemon, mut server) = learned(&it, &cgroup, &options);
    server.send_and_wait(b"xxx");
    eventually("events in the file", || {
        std::fs::read_to_string(&events).is_ok_and(|text| text.lines().count() >= 3)
    });
    let metrics = Metrics::of(&daemon.running);
    let is_its = |series: &str| {
        series.starts_with("tollgate_guard_anomalies_total{") && series.contains("/guarded")
    };
    eventually("the counts", || metrics.value(is_its).is_some_and(|count| count >= 3.0));
}

/// Any Tollgate that starts or ends a session releases what killed guards hold.
mod alone {
    use super::*;

    #[test]
    fn off_releases_holds_of_killed_daemon_and_watchdog() {
        let (it, cgroup) = (Guarded::new(), TestCgroup::new());
        let (daemon, mut server) = learned(&it, &cgroup, STOPS);
        let watchdog = daemon.running.child_running("tollgate-wdog");
        hold(&mut server);
        // Both die at once, as when the kernel is out of memory.
        stop(daemon.running.pid());
        kill(watchdog as i32, libc::SIGKILL);
        daemon.running.signal(libc::SIGKILL);
        let (store, socket) = (daemon.store.clone(), daemon.socket.clone());
        daemon.running.finish().exits_with(137);
        assert!(server.is_stopped());
        let mut off = Job::from_command_line("guard off --killed");
        off.command.env("TOLLGATE_STORE", store).env("TOLLGATE_SOCKET", socket);
        assert!(
            off.finish().success().text().contains("released 1 process whose guard was killed")
        );
        runs_again(&mut server);
    }
}

/// The file has whole lines only, and is written again when there is room.
#[test]
fn full_disk_loses_events_and_no_others() {
    const LOST: &str = "guard events not written to the file of --events";
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let disk = it.folder.path().join("disk");
    std::fs::create_dir(&disk).expect("a folder");
    let file = disk.join("events");
    let options = format!("--guard=watch --anomaly-limit 100000 --events {}", file.display());
    let job = GuardDaemon::job_in(&it, &cgroup, &options).with_small_disk(&disk);
    let daemon = GuardDaemon::start_ready(job, &it);
    let seen =
        std::path::PathBuf::from(format!("/proc/{}/root{}", daemon.running.pid(), file.display()));
    let mut server = joined(&it, &cgroup, &daemon);
    daemon.request("normalize guarded");
    let text = || std::fs::read_to_string(&seen).expect("the file of events");
    // A line that is being written counts only when it is whole.
    let written = || text().matches('\n').count() as u64;
    let events = || -> Vec<Value> {
        let text = text();
        assert!(text.is_empty() || text.ends_with('\n'), "{text}");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    let lost = || daemon.status()["losses"][LOST].as_u64().unwrap_or(0);
    eventually("the disk is full", || {
        server.send_and_wait(b"xxxx");
        lost() > 0
    });
    eventually("no event waits", || written() + lost() == daemon.events().len() as u64);
    assert!(!events().is_empty());
    // As logrotate's `copytruncate` does.
    std::fs::OpenOptions::new().write(true).truncate(true).open(&seen).expect("the file of events");
    let before = lost();
    server.send_and_wait(b"xxxx");
    eventually("it is written again", || text().ends_with('\n'));
    assert_eq!(lost(), before);
    server.end();
}

/// `-` is stdout, as for `-o`.
#[test]
fn events_can_go_to_stdout() {
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let options = "--guard=watch --anomaly-limit 100000 --events -";
    let mut job = GuardDaemon::job_in(&it, &cgroup, options);
    job.command.current_dir(it.folder.path());
    let daemon = GuardDaemon::start_ready(job, &it);
    let mut server = joined(&it, &cgroup, &daemon);
    daemon.request("normalize guarded");
    server.send_and_wait(b"xxxx");
    eventually("its events", || daemon.running.read("out").contains("\"sequence\""));
    assert!(!it.folder.path().join("-").exists());
    server.end();
}
