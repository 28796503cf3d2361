//! What a report contains about single calls: percentiles, faults, blocking sites, slow calls,
//! sampling and text.

use crate::harness::{Job, Report, assert_close, observe, observe_but, workload};

#[test]
fn percentiles_of_uneven_calls() {
    // Five reads wait for a byte for 100 ms each; the start-up makes fewer reads than that.
    let report = observe("", "pipe-block 100 5");
    let read = report.call("read");
    assert!(read.p50_ns > 50_000_000, "{read:?}");
    let getppid = observe("", "calls 100000").call("getppid").clone();
    assert!(getppid.p50_ns > 0 && getppid.p99_ns < getppid.max_ns, "{getppid:?}");
    assert!(getppid.p50_ns < 50_000_000, "{getppid:?}");
}

#[test]
fn page_faults_are_per_call() {
    let ran = Job::run("", workload("faults 2000")).finish().success();
    let report = ran.report().complete();
    let faults = ran.json()["minor_faults"].as_u64().expect("a number");
    // If memory is scarce, the program may also take a fault outside of the call.
    let of_read = report.call("read").minor_faults;
    assert!((2000..=faults).contains(&of_read), "{of_read} of {faults}");
    assert_eq!(report.call("read").major_faults, 0);
}

#[test]
fn blocking_site_of_a_pipe_reader() {
    // A return to the CPU that the kernel does not report has no stack
    // (docs/decisions/0001-gate.md). On a busy machine, this can happen some times in one run.
    let sleeps = (0..3).map(|_| sleeps_beside_a_pipe_reader()).max().expect("there are runs");
    assert!((27..=30).contains(&sleeps), "{sleeps}");
}

/// Checks where a pipe reader and its writer block. Returns the number of the writer's 30 sleeps
/// that have a site.
fn sleeps_beside_a_pipe_reader() -> u64 {
    let report = observe("", "pipe-block 20 30");
    let read = report.call("read");
    assert!(read.blocked_share("pipe") >= 0.95, "{:?}", read.blocked_in);
    let sleep = report.call("nanosleep");
    assert!(sleep.blocked_share("nanosleep") >= 0.95, "{:?}", sleep.blocked_in);
    sleep.blocked_in.iter().map(|site| site.count).sum()
}

#[test]
fn blocking_site_of_short_sleeps() {
    // The gate takes only one stack for many short sleeps.
    let report = observe("", "calls 20000 --threads 20");
    assert_eq!(report.count("getppid"), 20_000);
    let busy = Job::run("", workload("busy-writer 300")).finish().success();
    busy.report().complete();
    let report = observe("", "short-processes 200");
    let read = report.call("read");
    assert!(read.blocked_share("pipe") >= 0.95, "{:?}", read.blocked_in);
}

#[test]
fn no_sites_option() {
    let report = observe("--no-sites", "pipe-block 20 10");
    let read = report.call("read");
    assert!(read.blocked_ns > 0);
    let none = |report: &Report| report.calls.iter().all(|call| call.blocked_in.is_empty());
    assert!(none(&report), "{:?}", report.calls);
}

#[test]
fn slow_calls_have_arguments_and_stacks() {
    // A sleep has no stack if the kernel does not report the switch that ends it
    // (docs/decisions/0001-gate.md).
    const RUNS: usize = 2;
    assert!((0..RUNS).any(|_| slow_calls_have_all_stacks()));
}

/// Whether each slow call of a run has a stack. Checks all else that the report has of them.
fn slow_calls_have_all_stacks() -> bool {
    let mut job = Job::run("--slower-than 20ms", workload("slow-open"));
    let folder = job.path("");
    job.command.arg(&folder);
    let report = job.finish().success().report().complete();
    let calls = |name: &str| -> Vec<_> {
        let called = report.slow.iter().filter(|call| call.name == name);
        called.collect()
    };
    // The parent opens and reads; the child sleeps twice before it ends. On a slow machine, the
    // child's own open may be slow as well.
    let (mut open, read) = (calls("openat"), calls("read"));
    open.retain(|call| read.iter().any(|read| read.pid == call.pid));
    assert_eq!((open.len(), read.len()), (1, 1), "{:?}", report.slow);
    let folder = folder.to_str().expect("its name is ASCII").trim_end_matches('/');
    let fifo = format!("{folder}/workloads-slow-open.{}", open[0].pid);
    let opening = format!("openat(AT_FDCWD, \"{fifo}\", ");
    assert!(open[0].call.starts_with(&opening), "{:?}", open[0]);
    let reading = format!("read({}<{fifo}>, 0x", open[0].result);
    assert!(read[0].call.starts_with(&reading), "{:?}", read[0]);
    assert_eq!(read[0].result, "1");
    let mut have_stacks = true;
    for (call, function) in [(open[0], "fifo"), (read[0], "pipe")] {
        assert_eq!(call.command, "workloads");
        assert_eq!(call.tid, call.pid);
        assert!(call.blocked_ns >= 20_000_000, "{call:?}");
        let parts = call.blocked_ns + call.cpu_ns + call.runqueue_ns;
        assert_eq!(call.wall_ns, parts, "{call:?}");
        let waits = |name: &String| name.contains(function) || name.contains("wait_for_partner");
        let stack = &call.kernel_stack;
        assert!(stack.is_empty() || stack.iter().any(waits), "{call:?}");
        have_stacks &= !stack.is_empty();
        assert!(!call.user_stack.is_empty(), "{call:?}");
    }
    assert_eq!(calls("nanosleep").len(), 2, "{:?}", report.slow);
    let slowest_first = report.slow.windows(2).all(|two| two[0].wall_ns >= two[1].wall_ns);
    assert!(slowest_first, "{:?}", report.slow);
    have_stacks
}

#[test]
fn waits_for_a_supervisor_are_part_of_calls() {
    let ran = Job::run("--slower-than 50ms", workload("seccomp-supervised 4 100")).finish();
    let report = ran.success().report().complete();
    let getppid = report.call("getppid");
    assert_eq!((getppid.count, getppid.denied), (4, 2), "{getppid:?}");
    assert_eq!(getppid.errors.get("EPERM"), Some(&2), "{getppid:?}");
    assert!(getppid.wall_ns >= 400_000_000, "{getppid:?}");
    assert!(getppid.blocked_ns + getppid.runqueue_ns >= 390_000_000, "{getppid:?}");
    assert!(getppid.blocked_share("seccomp") >= 0.95, "{getppid:?}");
    let slow = report.slow.iter().filter(|call| call.name == "getppid");
    assert_eq!(slow.count(), 4, "{:?}", report.slow);
}

#[test]
fn restarted_sleep_has_a_site() {
    let report = observe("", "nanosleep-restart");
    let restarted = report.call("restart_syscall");
    assert!(restarted.blocked_share("nanosleep_restart") >= 0.95, "{:?}", restarted.blocked_in);
}

#[test]
fn last_slow_call_has_its_functions() {
    // The process ends right after the call, and its memory is gone when the record is read.
    let report = observe("--slower-than 50ms", "sleep 80");
    let sleep = report.slow.iter().find(|call| call.name == "nanosleep").expect("it was slow");
    assert!(sleep.user_stack.iter().any(|frame| frame.starts_with("workloads+0x")), "{sleep:?}");
}

#[test]
fn fast_calls_are_not_listed_as_slow() {
    let report = observe("--slower-than 1m", "pipe-block 20 5");
    assert!(report.slow.is_empty(), "{:?}", report.slow);
    let report = observe("--slower-than 60ms", "sleep 80 3");
    // On a slow or busy machine, execve is slow as well.
    let names = report.slow.iter().map(|call| call.name.as_str()).filter(|name| *name != "execve");
    assert_eq!(names.collect::<Vec<_>>(), ["nanosleep"; 3], "{:?}", report.slow);
    for call in &report.slow {
        assert!(call.wall_ns >= 60_000_000, "{call:?}");
    }
}

#[test]
fn slow_call_flood_is_counted_as_loss() {
    let report = observe_but(
        &["slow calls not reported (buffer full)"],
        "--slower-than 1ns",
        "calls 100000",
    );
    let lost = report.losses.values().sum::<u64>();
    assert!(lost > 0, "{:?}", report.losses);
    // By this limit, every call that returned and took any time was slow.
    let note = report.notes.iter().find_map(|note| note.split_once(" slow calls were recorded"));
    let reported: u64 = note.expect("a note").0.parse().expect("a number");
    assert!(reported + lost >= report.count("getppid"), "{reported} reported, {lost} lost");
}

#[test]
fn sampling_counts_all_and_estimates_times() {
    let (all, sampled) = (observe("", "calls 300000"), observe("--sample", "calls 300000"));
    let (all, sampled) = (all.call("getppid"), sampled.call("getppid"));
    assert_eq!((all.count, sampled.count), (300_000, 300_000));
    assert_eq!(all.untimed, 0);
    assert!(all.wall_interval_ns.is_none());
    let untimed = sampled.untimed as f64 / 300_000.0;
    assert!(untimed < 0.97, "{sampled:?}");
    // One call in sixteen is timed, and further ones after an interrupted call.
    assert!(untimed > 0.5, "{sampled:?}");
    let interval = sampled.wall_interval_ns.as_ref().expect("an interval");
    assert!(interval.low <= sampled.wall_ns && sampled.wall_ns <= interval.high);
    // Medians, because one preemption in a call may outweigh thousands of calls. Other programs on
    // system calls, such as another test's gate, take their time in one of the runs or both.
    let ratio = sampled.p50_ns as f64 / all.p50_ns as f64;
    assert!((0.25..4.0).contains(&ratio), "{all:?} {sampled:?}");
    let mean = sampled.wall_ns / sampled.count;
    assert!(mean >= sampled.p50_ns / 2, "{sampled:?}");
}

#[test]
fn sampling_times_all_calls_that_sleep() {
    let report = observe("--sample", "pipe-block 5 100");
    for name in ["read", "nanosleep"] {
        let call = report.call(name);
        assert_eq!((call.count, call.untimed), (100, 0), "{call:?}");
        assert!(call.blocked_ns > 300_000_000, "{call:?}");
    }
}

#[test]
fn text_matches_the_document() {
    let text = |top: u32| {
        let mut job = Job::from_command_line(&format!("run --top {top} --"));
        job.command.args(workload("calls 1234"));
        let ran = job.finish().success();
        assert!(ran.out.is_empty());
        ran.err
    };
    let all = text(100);
    // Without notices, for instance that it had to wait for another Tollgate.
    let lines: Vec<_> = all.lines().filter(|line| !line.starts_with("tollgate: ")).collect();
    assert!(lines[0].contains("calls 1234: ") && lines[0].contains("exit status 0"), "{all}");
    let table = lines.iter().position(|line| line.starts_with("call ")).expect("a table");
    let is_getppid = |line: &&str| line.starts_with("getppid") && line.contains("1,234");
    assert_eq!(lines[table..].iter().filter(|line| is_getppid(line)).count(), 1, "{all}");
    assert!(!all.contains("not shown"), "{all}");
    let last = lines.last().expect("lines");
    assert!(last.starts_with("toll: 1,2") && last.contains("no losses"), "{all}");
    // The order of the most expensive calls varies.
    let some = text(3);
    let rows = |text: &str| {
        text.lines().filter(|line| line.contains(" us ") || line.contains(" ns ")).count()
    };
    assert!(rows(&some) < rows(&all), "{some}");
    assert!(some.contains("calls are not shown (--top "), "{some}");
}

#[test]
fn toll_has_an_interval() {
    let job = Job::run("", workload("calls 1000")).with_toll();
    let toll = job.finish().success().report().complete().toll;
    let (Some(each), Some(low), Some(high)) = (toll.ns_per_call, toll.low, toll.high) else {
        panic!("{toll:?}");
    };
    assert!(low <= each && each <= high, "{toll:?}");
}

/// Sleeping threads wake up late while other tests occupy the processors.
mod alone {
    use super::*;

    #[test]
    fn percentiles_of_even_sleeps() {
        let report = observe("", "sleep 200 7");
        let sleep = report.call("nanosleep");
        // The median is not affected by a few sleeps that ended while the CPU was busy.
        assert_close("median", sleep.p50_ns, 200_000_000, 200_000_000 / 33);
        assert!(sleep.max_ns >= 200_000_000, "{sleep:?}");
    }
}
