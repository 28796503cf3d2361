//! Large numbers of calls, threads and processes, and the memory that Tollgate needs for them.

use std::fs;

use crate::harness::bpf::{map_bytes, mapped_bytes};
use crate::harness::job::{is_in_call, kill, threads_of};
use crate::harness::plugins::PluginDaemon;
use crate::harness::report::{SHARED_ROWS, THREADS_FULL};
use crate::harness::{Job, Report, eventually, observe, observe_crowd, tollgate, workload};

const MIB: u64 = 1 << 20;

#[test]
fn twenty_million_calls_of_64_threads() {
    let (mut resident, mut maps, mut in_both) = (0, 0, 0);
    let running = Job::run("", workload("calls 20000000 --threads 64")).start();
    while !running.is_over() {
        resident = resident.max(most_resident(running.pid()));
        maps = maps.max(map_bytes(running.pid()));
        in_both = in_both.max(mapped_bytes(running.pid()));
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let report = running.finish().success().report().complete();
    assert_eq!(report.count("getppid"), 20_000_000);
    assert_eq!(report.unfinished("exit"), 64);
    let all = resident + maps - in_both;
    let mib = |bytes: u64| bytes as f64 / MIB as f64;
    println!(
        "Tollgate's memory: {:.1} MiB resident at most, {:.1} MiB of maps, {:.1} MiB of it in \
        both: {:.1} MiB",
        mib(resident),
        mib(maps),
        mib(in_both),
        mib(all)
    );
    assert!(resident > MIB && maps > MIB, "not measured");
    assert!(
        resident < 64 * MIB && all < 64 * MIB,
        "{resident} resident, {maps} of maps, {in_both} in both"
    );
}

/// VmHWM of /proc/PID/status, in bytes.
fn most_resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    kib.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024
}

#[test]
fn ten_thousand_short_threads() {
    let report = observe("", "short-threads 10000");
    assert_eq!(report.count("getppid"), 30_000);
    assert_eq!(report.unfinished("exit"), 10_000);
}

#[test]
fn ten_thousand_short_threads_each_with_its_row() {
    let report = observe_crowd("--per thread", "short-threads 10000");
    assert_eq!(report.count("getppid"), 30_000);
    // There are fewer rows if the ended ones could not be read in time; the calls without a row
    // then count in a common row.
    assert!(report.groups.len() <= 10_002, "{}", report.groups.len());
    assert!(!report.losses.is_empty() || report.groups.len() == 10_001, "{}", report.groups.len());
    let calls = report.groups.iter().flat_map(|row| &row.calls);
    let seen: u64 = calls.map(|call| call.count + call.unfinished).sum();
    assert_eq!(seen, report.toll.calls);
}

#[test]
fn ten_thousand_short_processes() {
    for options in ["", "--per process"] {
        let report = observe_crowd(options, "short-processes 10000");
        assert_eq!(report.count("getppid"), 30_000, "{options}");
        assert_eq!(report.unfinished("exit_group"), 10_001, "{options}");
    }
}

#[test]
fn ten_thousand_threads_at_once() {
    let report = observe("", "threads 10000 10");
    assert_eq!(report.count("getppid"), 100_000);
    assert_eq!(report.unfinished("exit"), 10_000);
}

#[test]
fn threads_beyond_the_table_are_counted_as_loss() {
    // The gate's table of threads has 16,384 entries.
    let job = Job::run("", workload("threads 17000 3")).with_row_lock_exclusive();
    let report = job.finish().success().report().complete_but(&[THREADS_FULL]);
    let lost = report.losses[THREADS_FULL];
    assert!(lost >= 17_000 - 16_384, "{lost}");
    assert_eq!(report.count("getppid"), 3 * (17_000 - lost));
}

/// A plugin denies nothing to threads that are not gated, and says so.
#[test]
fn threads_beyond_the_table_have_no_plugins() {
    let at_work = PluginDaemon::start("denies", "on connect { return -13; }");
    let before = at_work.request("list --json").success().json();
    assert_eq!(before["losses"], serde_json::json!({}));
    let mut threads = at_work.workload("threads 17000 3");
    drop(threads.stdin());
    threads.finish().success();
    let lost = |document: &serde_json::Value| document["losses"][THREADS_FULL].as_u64();
    for request in ["list --json", "show --json denies"] {
        let lost = lost(&at_work.request(request).success().json()).expect("threads were lost");
        assert!(lost >= 17_000 - 16_384, "{lost}");
    }
    for request in ["list", "show denies"] {
        let text = at_work.request(request).success().text();
        assert!(text.starts_with("LOSSES: ") && text.contains(THREADS_FULL), "{text}");
    }
    let logged = || at_work.daemon.read("err").contains("the gate has no room for ");
    eventually("the log", logged);
}

#[test]
fn outer_session_reports_losses_of_the_inner() {
    let mut job = Job::run("", vec![tollgate().into()]).with_row_lock_exclusive();
    let inner = job.path("inner");
    job.command.args(["run", "--json", "--per", "thread", "-o"]).arg(&inner);
    // More threads than the gate has rows.
    job.command.arg("--").args(workload("threads 1200 1"));
    let ran = job.finish().success();
    let (outer, inner) = (ran.report(), Report::read(&ran.path("inner")));
    assert_eq!(inner.count("getppid"), 1200);
    assert!(inner.losses[SHARED_ROWS[1]] > 100, "{:?}", inner.losses);
    assert_eq!(outer.losses, inner.losses);
}

#[test]
fn lens_on_more_threads_than_rows() {
    let run = Job::run("", workload("hang --threads 1200")).start();
    let pid = run.child_running("workloads");
    eventually("its threads", || threads_of(pid).len() == 1201);
    let pauses = |thread: &u32| is_in_call(*thread, libc::SYS_pause);
    eventually("their calls", || threads_of(pid).iter().filter(|tid| pauses(tid)).count() >= 1200);
    let report = Job::lens(&format!("-p {pid} --for 300ms")).finish().success().report().complete();
    let pauses = report.in_progress.iter().filter(|call| call.name == "pause");
    assert_eq!(pauses.count(), 1200);
    kill(pid as i32, libc::SIGKILL);
    let whole = run.finish().exits_with(128 + libc::SIGKILL).report().complete();
    assert_eq!(whole.call("pause").errors.values().sum::<u64>() + whole.unfinished("pause"), 1200);
}
