//! Several Tollgate processes at once share one gate, and each has its own exact figures.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::busy::has_all;
use crate::harness::guarded::{Guard, Guarded};
use crate::harness::job::{folder, is_in_call, is_in_read, is_running, kill, stop, wait_until_tended};
use crate::harness::plugins::number;
use crate::harness::report::{GAPS, none_lost};
use crate::harness::services::{InForce, programs};
use crate::harness::{Busy, Finished, Job, Report, Running, eventually, tollgate, workload};

#[test]
fn a_command_that_is_tollgate_itself() {
    for (outer, inner) in
        [("", ""), ("--per process", "--per thread"), ("--no-sites", "--slower 1s"), ("", "--sample")]
    {
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
        // The inner Tollgate makes more of them, to measure its toll.
        assert!(outer.count("getppid") >= 777);
        assert!(outer.count("bpf") > 0);
        assert_eq!(inner.count("bpf"), 0);
    }
}

#[test]
fn watchers_of_a_command_that_end_at_once() {
    for milliseconds in [0, 0, 10, 50] {
        let run = Job::run("", workload("sleep 3 800")).start();
        let command = run.child_running("workloads");
        let lens = format!("-p {command} -p {command} --for 200ms");
        let first = Job::lens(&lens).start();
        std::thread::sleep(Duration::from_millis(milliseconds));
        let second = Job::lens(&lens).start();
        for watcher in [first, second] {
            let ran = watcher.finish();
            // A machine may be so slow that the command is over before they come.
            match ran.status {
                0 => drop(ran.report().complete()),
                _ => drop(ran.exits_with(125).says("they have ended")),
            }
        }
        assert_eq!(run.finish().success().report().complete().count("nanosleep"), 800);
    }
}

#[test]
fn three_deep() {
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

/// The option for a plugin with this text, which is in the folder.
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

/// `tollgate run`, and one that it runs, each with or without plugins that count getpid in the i386 ABI.
fn one_in_another(outer: &str, inner: &str) -> [Value; 2] {
    const TEXT: &str = "u64 n; on enter { if (abi == 1) n++; }";
    let (_folder, plugin) = plugin_option(TEXT);
    let options = |of: &str| of.replace("COUNT", &plugin);
    let mut job = Job::run(&options(outer), vec![tollgate().into()]);
    let report = job.path("inner");
    job.command.args(format!("run --json {} -o", options(inner)).split_whitespace()).arg(&report);
    job.command.arg("--").args(workload("int80 300"));
    let ran = job.finish().success();
    ["report", "inner"].map(|name| document(&ran, name))
}

fn document(ran: &Finished, name: &str) -> Value {
    let text = fs::read_to_string(ran.path(name)).expect("a report");
    serde_json::from_str(&text).expect("JSON")
}

fn plugins_number(report: &Value) -> u64 {
    number(&report["plugins"][0], "n")
}

fn counted(report: &Value) -> u64 {
    let calls = report["calls"].as_array().expect("calls").iter();
    calls.filter(|call| call["abi"] == "i386").map(|call| call["count"].as_u64().expect("a number")).sum()
}

#[test]
fn what_one_has_plugins_for_another_counts() {
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
fn of_two_with_plugins_the_inner_one_has_them() {
    let [outer, inner] = one_in_another("COUNT", "COUNT");
    assert_eq!([plugins_number(&outer), plugins_number(&inner)], [0, 300]);
}

#[test]
fn a_watcher_that_comes_and_goes_leaves_the_plugins_theirs() {
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
        [plugins_number(&document(&ran, "report")), ran.report().complete().count("getppid")],
        [600; 2]
    );
}

fn calls_in_progress(report: &Report) -> Vec<(u32, &str)> {
    report.in_progress.iter().map(|call| (call.tid, call.name.as_str())).collect()
}

#[test]
fn many_at_once() {
    let runs: Vec<_> = (0..12)
        .map(|n| {
            let options = ["", "--per thread", "--sample", "--slower 1ms"][n % 4];
            let calls = 1000 + n as u64;
            let words = format!("calls {calls} --threads 3");
            (calls, Job::run(options, workload(&words)).start())
        })
        .collect();
    for (calls, run) in runs {
        has_all(&run.finish().success().report().complete(), "getppid", calls);
    }
}

#[test]
fn a_daemon_of_an_ended_run_is_nothing_to_a_later_one() {
    let keeper = Busy::start("");
    let ended = Job::run("", workload("daemon 20000")).finish().success();
    let daemon: i32 = ended.text().trim().parse().expect("it prints a number");
    // In all likelihood it has the ended one's number in the gate.
    let later = Busy::start("");
    kill(daemon, libc::SIGKILL);
    eventually("the daemon's end", || !is_running(daemon as u32));
    later.wait_until_tended();
    later.finish();
    keeper.finish();
}

/// Kills a Tollgate, and leaves what it started.
#[track_caller]
fn kill_run(run: &Running) {
    run.signal(libc::SIGKILL);
    eventually("the end of a killed process", || run.is_over());
}

/// What a killed Tollgate leaves. A test that fails leaves nothing running.
struct Left(u32);

impl Left {
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

impl Drop for Left {
    fn drop(&mut self) {
        kill(self.0 as i32, libc::SIGKILL);
    }
}

/// These tests decide which generation of the gate is loaded, and by which process.
mod alone {
    use super::*;

    #[test]
    fn a_second_run_that_wants_more_changes_the_gate_live() {
        for options in ["--slower 10ms", "--sample", "--slower 10ms --per thread"] {
            let first = Busy::start("--no-sites");
            let second = Job::run(options, workload("calls 50000 --threads 4")).finish();
            has_all(&second.success().report().complete(), "getppid", 50_000);
            first.finish();
        }
    }

    #[test]
    fn runs_that_come_and_go_do_not_disturb_a_long_one() {
        let first = Busy::start("--no-sites");
        for options in ["", "--per process", "--slower 1ms", "--sample"].repeat(2) {
            let other = Job::run(options, workload("calls 1000")).finish();
            has_all(&other.success().report().complete(), "getppid", 1000);
        }
        first.finish();
    }

    #[test]
    fn the_first_goes_on_after_the_second_was_killed() {
        let first = Busy::start("--no-sites");
        let second = Job::run("--slower 1s --sample", workload("hang")).start();
        let hanging = Left::of(&second);
        // By then the first holds the programs that the second has loaded.
        first.wait_until_tended();
        kill_run(&second);
        first.wait_until_tended();
        first.finish();
        hanging.end();
    }

    /// Loading a gate takes its time, and the process that loads it holds the lock.
    #[test]
    fn the_first_follows_the_second_while_somebody_holds_the_lock() {
        let first = Busy::start("--no-sites");
        first.stop_run();
        let second = Job::run("--slower 1s --sample", workload("hang")).start();
        let hanging = Left::of(&second);
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
    fn the_second_goes_on_after_the_first_was_killed() {
        let first = Job::run("", workload("hang")).start();
        let hanging = Left::of(&first);
        let second = Busy::start("");
        kill_run(&first);
        second.wait_until_tended();
        second.finish();
        hanging.end();
    }

    #[test]
    fn a_refused_run_leaves_the_gate_to_the_others() {
        let first = Busy::start("--no-sites");
        let mut refused = Job::run("--slower 1s", Vec::new());
        let odd = refused.path("odd");
        std::fs::write(&odd, "no program").expect("a file can be written");
        std::fs::set_permissions(&odd, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .expect("it is ours");
        refused.command.arg(odd);
        refused.finish().exits_with(126);
        first.wait_until_tended();
        // Nothing lost but in the change of configuration.
        first.finish();
    }

    #[test]
    fn a_run_that_fails_after_it_changed_the_gate_leaves_it_to_the_others() {
        let first = Busy::start("--no-sites");
        Job::run("--guard=watch --store /dev/null/no-folder", workload("exit 0"))
            .finish()
            .exits_with(125)
            .says("cannot lock the store");
        first.wait_until_tended();
        first.finish();
    }

    /// Neither has followed the gate that is gone. The first to see that puts the old one back for both.
    #[test]
    fn each_of_two_tells_of_a_gap() {
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
        let killed = Job::run("--slower 1s --sample", workload("hang")).start();
        let hanging = Left::of(&killed);
        kill_run(&killed);
        call(&mut both);
        for run in &both {
            run.signal(libc::SIGCONT);
            wait_until_tended(run);
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

    /// The lens, the guard, and services with rules on all events and limits of all kinds that need a program.
    #[test]
    fn all_extensions_at_once() {
        let services = InForce::start(
            programs(&["shop", "file"]),
            "[service.shop]\nsockets-max = 100\nnetwork-max = \"1G\"\n\
             [[rule]]\nexe = \"FOLDER/nobody\"\non = [\"fork\", \"exec\", \"found\", \"user\"]\nbelongs-to = \"shop\"\n\
             [[rule]]\nfile = \"FOLDER/file\"\nexe = \"FOLDER/nobody\"\nbelongs-to = \"shop\"\n\
             [[rule]]\nexe = \"FOLDER/nobody\"\nadopts-peer = true\n",
        );
        let it = Guarded::new();
        let guarded = |guard: &str| {
            let mut job =
                it.job(&format!("{guard} --lens --sample --slower 1s --service shop"), "routine 1000 0");
            job.command.env("TOLLGATE_SOCKET", services.path("control"));
            job.finish().success()
        };
        let learned = guarded("--guard=learn").report().complete();
        it.change("normalize");
        let ran = guarded("--guard=enforce");
        let (guard, report) = (Guard::of(&ran), ran.report().complete());
        let calls = |report: &Report| report.counts().values().map(|(count, _)| count).sum::<u64>();
        assert!(calls(&report) >= 4000);
        assert_eq!(guard.number("anomalies"), 0);
        // And those of Tollgate at the start of each, and before the program was executed.
        let both = calls(&learned) + calls(&report);
        eventually("the ends are charged", || services.figures("calls")["shop"] >= both);
        let charged = services.figures("calls")["shop"];
        assert!(charged < both + 300, "{both} calls, {charged} charged");
        none_lost(&services.report());
    }

    /// A gate that has only plugins has no use for the calls' names.
    #[test]
    fn a_call_that_began_with_plugins_only_is_named_to_who_comes_later() {
        let (_folder, plugin) = plugin_option(COUNT);
        let run = Job::run(&plugin, workload("hang")).start();
        let hanging = run.child_running("workloads");
        eventually("its pause", || is_in_call(hanging, libc::SYS_pause));
        let report = Job::lens(&format!("-p {hanging} --for 200ms")).finish().success().report().complete();
        assert_eq!(calls_in_progress(&report), [(hanging, "pause")]);
        let lens = Job::lens(&format!("-p {hanging}")).start();
        is_watched_by(&lens);
        kill(hanging as i32, libc::SIGKILL);
        let report = lens.finish().success().report().complete();
        assert_eq!([report.count("pause"), report.count("read")], [1, 0]);
        run.finish();
    }

    #[test]
    fn what_lives_on_after_a_run_with_plugins_only_is_told_with_its_call() {
        let (_folder, plugin) = plugin_option(COUNT);
        let ran = Job::run(&plugin, workload("daemon 20000")).finish().success();
        let daemon: u32 = ran.text().trim().parse().expect("it prints a number");
        kill(daemon as i32, libc::SIGKILL);
        assert_eq!(calls_in_progress(&ran.report()), [(daemon, "nanosleep")]);
    }
}
