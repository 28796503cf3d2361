//! Several Tollgate processes share one gate at the same time, and each has its own exact counts.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::busy_run::assert_all_counted;
use crate::harness::guarded_program::{GuardSection, Guarded};
use crate::harness::job::{folder, is_in_call, is_in_read, is_running, kill, stop, wait_for_tend};
use crate::harness::plugins::number;
use crate::harness::report::{GAPS, none_lost};
use crate::harness::services::{ActiveServices, programs};
use crate::harness::{BusyRun, Job, Report, Running, eventually, tollgate, workload};

#[test]
fn tollgate_run_inside_tollgate_run() {
    for (outer, inner) in [
        ("", ""),
        ("--per process", "--per thread"),
        ("--no-sites", "--slower-than 1s"),
        ("", "--sample"),
    ] {
        let mut job = Job::run(outer, vec![tollgate().into()]);
        let inner_report = job.path("inner");
        let rest = format!("run --json {inner} -o");
        job.command.args(rest.split_whitespace()).arg(&inner_report);
        // Tollgate itself makes no i386 calls.
        job.command.arg("--").args(workload("int80 777"));
        let ran = job.finish().success();
        let outer = ran.report().complete();
        let inner = Report::read(&ran.path("inner")).complete();
        for report in [&outer, &inner] {
            assert_eq!(report.call_of("getpid", "i386").count, 777);
            assert_eq!(report.exit, Some(0));
        }
        assert_eq!(inner.count("getppid"), 777);
        // The inner Tollgate also calls getppid, to measure its toll.
        assert!(outer.count("getppid") >= 777);
        assert!(outer.count("bpf") > 0);
        assert_eq!(inner.count("bpf"), 0);
    }
}

#[test]
fn lenses_ending_together() {
    for milliseconds in [0, 0, 10, 50] {
        let run = Job::run("", workload("sleep 3 800")).start();
        let command = run.child_running("workloads");
        let lens = format!("-p {command} -p {command} --for 200ms");
        let first = Job::lens(&lens).start();
        std::thread::sleep(Duration::from_millis(milliseconds));
        let second = Job::lens(&lens).start();
        for watcher in [first, second] {
            let ran = watcher.finish();
            // On a slow machine, the command may end before the lenses attach.
            match ran.status {
                0 => drop(ran.report().complete()),
                _ => drop(ran.exits_with(125).says("they have ended")),
            }
        }
        assert_eq!(run.finish().success().report().complete().count("nanosleep"), 800);
    }
}

#[test]
fn three_nested_runs() {
    let run = |name: OsString| -> Vec<OsString> {
        let mut words = vec![tollgate().into()];
        words.extend(["run", "--json", "-o"].map(OsString::from));
        words.extend([name, "--".into()]);
        words
    };
    let mut job = Job::run("", Vec::new());
    let (second, third) = (job.path("second"), job.path("third"));
    job.command.args(run(second.into())).args(run(third.into()));
    job.command.args(workload("int80 50"));
    let ran = job.finish().success();
    for name in ["report", "second", "third"] {
        let report = Report::read(&ran.path(name)).complete();
        assert_eq!(report.call_of("getpid", "i386").count, 50, "{name}");
    }
}

const COUNT: &str = "u64 n; on enter(getppid) { n++; }";

/// Returns the option for a plugin with this text, and the folder that contains it.
fn plugin_option(text: &str) -> (TempDir, String) {
    let folder = folder();
    let file = folder.path().join("count.ec");
    fs::write(&file, text).expect("a file can be written");
    let option = format!("--plugin {}", file.display());
    (folder, option)
}

fn is_watched_by(lens: &Running) {
    eventually("it is watched", || lens.read("err").contains("watching 1 process"));
}

/// Runs a `tollgate run` inside another, each with or without plugins that count getpid in the i386
/// ABI.
fn one_in_another(outer: &str, inner: &str) -> [Value; 2] {
    const TEXT: &str = "u64 n; on enter { if (abi == 1) n++; }";
    let (_folder, plugin) = plugin_option(TEXT);
    let options = |of: &str| of.replace("COUNT", &plugin);
    let mut job = Job::run(&options(outer), vec![tollgate().into()]);
    let report = job.path("inner");
    job.command.args(format!("run --json {} -o", options(inner)).split_whitespace()).arg(&report);
    job.command.arg("--").args(workload("int80 300"));
    let ran = job.finish().success();
    ["report", "inner"].map(|name| ran.document(name))
}

fn plugins_number(report: &Value) -> u64 {
    number(&report["plugins"][0], "n")
}

fn counted(report: &Value) -> u64 {
    let calls = report["calls"].as_array().expect("calls").iter();
    calls
        .filter(|call| call["abi"] == "i386")
        .map(|call| call["count"].as_u64().expect("a number"))
        .sum()
}

#[test]
fn plugins_of_one_session_lens_of_another() {
    let [outer, inner] = one_in_another("--lens COUNT", "");
    assert_eq!([plugins_number(&outer), counted(&outer), counted(&inner)], [300; 3]);
    let [outer, inner] = one_in_another("", "COUNT");
    assert_eq!([counted(&outer), plugins_number(&inner)], [300; 2]);
    assert_eq!(counted(&inner), 0);
    let [outer, inner] = one_in_another("COUNT", "");
    assert_eq!([plugins_number(&outer), counted(&inner)], [300; 2]);
    assert_eq!(counted(&outer), 0);
}

#[test]
fn inner_sessions_plugins_win() {
    let [outer, inner] = one_in_another("COUNT", "COUNT");
    assert_eq!([plugins_number(&outer), plugins_number(&inner)], [0, 300]);
}

#[test]
fn passing_lens_keeps_the_plugins() {
    let (_folder, plugin) = plugin_option(COUNT);
    let mut job = Job::run(&format!("--lens {plugin}"), workload("calls-on-input 100"));
    job.command.stdin(Stdio::piped());
    let mut run = job.start();
    let command = run.child_running("workloads");
    let mut crosses = || run.input().write_all(b"xx").expect("it reads");
    crosses();
    let watcher = Job::lens(&format!("--pid {command}")).start();
    is_watched_by(&watcher);
    crosses();
    watcher.signal(libc::SIGINT);
    assert!(watcher.finish().success().report().count("getppid") <= 400);
    crosses();
    drop(run.stdin());
    let ran = run.finish().success();
    assert_eq!(
        [plugins_number(&ran.document("report")), ran.report().complete().count("getppid")],
        [600; 2]
    );
}

fn calls_in_progress(report: &Report) -> Vec<(u32, &str)> {
    report.in_progress.iter().map(|call| (call.tid, call.name.as_str())).collect()
}

#[test]
fn many_sessions_at_once() {
    let runs: Vec<_> = (0..12)
        .map(|n| {
            let options = ["", "--per thread", "--sample", "--slower-than 1ms"][n % 4];
            let calls = 1000 + n as u64;
            let words = format!("calls {calls} --threads 3");
            (calls, Job::run(options, workload(&words)).start())
        })
        .collect();
    for (calls, run) in runs {
        assert_all_counted(&run.finish().success().report().complete(), "getppid", calls);
    }
}

#[test]
fn daemonized_child_is_not_in_a_later_session() {
    let keeper = BusyRun::start("");
    let ended = Job::run("", workload("daemon 20000")).finish().success();
    let daemon: i32 = ended.text().trim().parse().expect("it prints a number");
    // The later session very likely gets the number of the ended one in the gate.
    let later = BusyRun::start("");
    kill(daemon, libc::SIGKILL);
    eventually("the daemon's end", || !is_running(daemon as u32));
    later.wait_until_tended();
    later.finish();
    keeper.finish();
}

/// Kills a Tollgate, but not the command that it started.
#[track_caller]
fn kill_run(run: &Running) {
    run.signal(libc::SIGKILL);
    eventually("the end of a killed process", || run.is_over());
}

/// The command of a killed Tollgate. It is killed when this is dropped, so a failed test leaves no
/// process.
struct Orphans(u32);

impl Orphans {
    #[track_caller]
    fn of(run: &Running) -> Self {
        Self(run.child_running("workloads"))
    }

    #[track_caller]
    fn end(self) {
        let pid = self.0;
        drop(self);
        eventually("an end", || !is_running(pid));
    }
}

impl Drop for Orphans {
    fn drop(&mut self) {
        kill(self.0 as i32, libc::SIGKILL);
    }
}

/// These tests decide which generation of the gate is loaded, and by which process.
mod alone {
    use super::*;

    #[test]
    fn second_run_reconfigures_the_gate() {
        for options in ["--slower-than 10ms", "--sample", "--slower-than 10ms --per thread"] {
            let first = BusyRun::start("--no-sites");
            let second = Job::run(options, workload("calls 50000 --threads 4")).finish();
            assert_all_counted(&second.success().report().complete(), "getppid", 50_000);
            first.finish();
        }
    }

    #[test]
    fn short_runs_do_not_disturb_a_long_one() {
        let first = BusyRun::start("--no-sites");
        for options in ["", "--per process", "--slower-than 1ms", "--sample"].repeat(2) {
            let other = Job::run(options, workload("calls 1000")).finish();
            assert_all_counted(&other.success().report().complete(), "getppid", 1000);
        }
        first.finish();
    }

    #[test]
    fn first_session_survives_kill_of_second() {
        let first = BusyRun::start("--no-sites");
        let second = Job::run("--slower-than 1s --sample", workload("hang")).start();
        let hanging = Orphans::of(&second);
        // After this, the first session holds the programs that the second has loaded.
        first.wait_until_tended();
        kill_run(&second);
        first.wait_until_tended();
        first.finish();
        hanging.end();
    }

    /// Loading a gate takes time, during which the process that loads it holds the lock.
    #[test]
    fn first_session_follows_while_lock_is_held() {
        let first = BusyRun::start("--no-sites");
        first.stop_run();
        let second = Job::run("--slower-than 1s --sample", workload("hang")).start();
        let hanging = Orphans::of(&second);
        let lock = File::open("/run/tollgate.lock").expect("there is a lock");
        lock.lock().expect("it is free some time");
        first.signal(libc::SIGCONT);
        first.wait_until_tended();
        kill_run(&second);
        drop(lock);
        first.finish();
        hanging.end();
    }

    #[test]
    fn second_session_survives_kill_of_first() {
        let first = Job::run("", workload("hang")).start();
        let hanging = Orphans::of(&first);
        let second = BusyRun::start("");
        kill_run(&first);
        second.wait_until_tended();
        second.finish();
        hanging.end();
    }

    #[test]
    fn refused_run_keeps_the_gate() {
        let first = BusyRun::start("--no-sites");
        let mut refused = Job::run("--slower-than 1s", Vec::new());
        let odd = refused.path("odd");
        std::fs::write(&odd, "no program").expect("a file can be written");
        std::fs::set_permissions(&odd, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .expect("it is ours");
        refused.command.arg(odd);
        refused.finish().exits_with(126);
        first.wait_until_tended();
        // Nothing is lost, except at the change of generation.
        first.finish();
    }

    #[test]
    fn failed_run_after_reconfiguration_keeps_the_gate() {
        let first = BusyRun::start("--no-sites");
        Job::run("--guard=watch --store /dev/null/no-folder", workload("exit 0"))
            .finish()
            .exits_with(125)
            .says("is not a folder");
        first.wait_until_tended();
        first.finish();
    }

    /// Neither session has followed to the generation that is gone. The first that notices rolls
    /// back to the old generation for both.
    #[test]
    fn gap_is_reported_by_each_session() {
        const CALLS: [u8; 10] = [b'.'; 10];
        let mut both = [0, 1].map(|_| {
            let mut job = Job::run("--no-sites", workload("calls-on-input 1"));
            job.command.stdin(Stdio::piped());
            job.start()
        });
        let commands = both.each_ref().map(|run| run.child_running("workloads"));
        let call = |both: &mut [Running; 2]| {
            both.iter_mut().for_each(|run| run.input().write_all(&CALLS).expect("it reads"));
            let are_made = || commands.iter().all(|pid| is_in_read(*pid));
            eventually("the calls", are_made);
        };
        call(&mut both);
        both.iter().for_each(|run| stop(run.pid()));
        let killed = Job::run("--slower-than 1s --sample", workload("hang")).start();
        let hanging = Orphans::of(&killed);
        kill_run(&killed);
        call(&mut both);
        for run in &both {
            run.signal(libc::SIGCONT);
            wait_for_tend(run);
        }
        call(&mut both);
        for mut run in both {
            drop(run.stdin());
            let report = run.finish().success().report();
            assert!(report.losses.contains_key(GAPS), "{:?}", report.losses);
            let counted = report.count("getppid");
            assert!((20..=30).contains(&counted), "{counted} of 30 calls, of which 10 in the gap");
        }
        hanging.end();
    }

    /// The lens, the guard, and services with rules on all events and with limits of all kinds that
    /// need a BPF program.
    #[test]
    fn all_extensions_at_once() {
        let services = ActiveServices::start(
            programs(&["shop", "file"]),
            "[service.shop]\nsockets-max = 100\nnetwork-max = \"1G\"\n\
             [[rule]]\nexe = \"FOLDER/nobody\"\non = \
             [\"fork\", \"exec\", \"found\", \"user\"]\nbelongs-to = \"shop\"\n\
             [[rule]]\nfile = \"FOLDER/file\"\nexe = \"FOLDER/nobody\"\nbelongs-to = \"shop\"\n\
             [[rule]]\nexe = \"FOLDER/nobody\"\nadopts-peer = true\n",
        );
        let it = Guarded::new();
        let guarded = |guard: &str| {
            let mut job = it.job(
                &format!("{guard} --lens --sample --slower-than 1s --service shop"),
                "routine 1000 0",
            );
            job.command.env("TOLLGATE_SOCKET", services.path("control"));
            job.finish().success()
        };
        let learned = guarded("--guard=learn").report().complete();
        it.run_transition("normalize");
        let ran = guarded("--guard=enforce");
        let (guard, report) = (GuardSection::of(&ran), ran.report().complete());
        let calls = |report: &Report| report.counts().values().map(|(count, _)| count).sum::<u64>();
        assert!(calls(&report) >= 4000);
        assert_eq!(guard.number("anomalies"), 0);
        // The service is also charged the calls of Tollgate at the start of each run and those
        // before the execve of the program.
        let both = calls(&learned) + calls(&report);
        eventually("the ends are charged", || services.usage_by_service("calls")["shop"] >= both);
        let charged = services.usage_by_service("calls")["shop"];
        assert!(charged < both + 300, "{both} calls, {charged} charged");
        none_lost(&services.report());
    }

    /// A gate that has only plugins does not need the calls' names.
    #[test]
    fn call_entered_under_plugins_only_is_named_on_attach() {
        let (_folder, plugin) = plugin_option(COUNT);
        let run = Job::run(&plugin, workload("hang")).start();
        let hanging = run.child_running("workloads");
        eventually("its pause", || is_in_call(hanging, libc::SYS_pause));
        let report =
            Job::lens(&format!("-p {hanging} --for 200ms")).finish().success().report().complete();
        assert_eq!(calls_in_progress(&report), [(hanging, "pause")]);
        let lens = Job::lens(&format!("-p {hanging}")).start();
        is_watched_by(&lens);
        kill(hanging as i32, libc::SIGKILL);
        let report = lens.finish().success().report().complete();
        // It began before the watch.
        assert_eq!([report.count("pause"), report.count("read")], [0, 0]);
        run.finish();
    }

    #[test]
    fn survivor_of_a_plugins_only_run_is_named_on_attach() {
        let (_folder, plugin) = plugin_option(COUNT);
        let ran = Job::run(&plugin, workload("daemon 20000")).finish().success();
        let daemon: u32 = ran.text().trim().parse().expect("it prints a number");
        kill(daemon as i32, libc::SIGKILL);
        assert_eq!(calls_in_progress(&ran.report()), [(daemon, "nanosleep")]);
    }
}
