//! `tollgate lens`: processes that already run.

use std::collections::BTreeSet;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use super::subject::{CALLS, Subject};
use crate::harness::cgroup::TestCgroup;
use crate::harness::job::{
    copy, folder, is_in_call, kill, sleeps_of, state, threads_of, wait_for_refresh, watches,
};
use crate::harness::report::RowReport;
use crate::harness::{BusyRun, Job, NOBODY, Report, Running, eventually, workload, workloads};

fn interrupted(lens: Running) -> Report {
    lens.signal(libc::SIGINT);
    lens.finish().success().report().complete()
}

#[test]
fn by_pid_until_exit() {
    let mut subject = Subject::new();
    let lens = subject.watch();
    subject.make_calls();
    subject.end();
    let ran = lens.finish().success().says("has ended");
    let report = ran.report().complete();
    assert_eq!(report.count("getppid"), CALLS);
    // The read during which the lens attached began earlier and is not counted, unless another
    // session that gates the whole machine had reported its begin. The last read returned the end
    // of stdin.
    assert!([1, 2].contains(&report.count("read")), "{:?}", report.counts());
    assert_eq!(report.unfinished("exit_group"), 1);
    assert_eq!(report.exit, None);
}

/// As nohup(1) does.
#[test]
fn signal_that_the_parent_ignores_stays_ignored() {
    let subject = Subject::new();
    let ignore = || {
        // SAFETY: async-signal-safe, and a valid disposition.
        unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
        Ok(())
    };
    let lens = Job::lens(&format!("-p {}", subject.pid())).before_exec(ignore).start();
    watches(&lens);
    lens.signal(libc::SIGHUP);
    std::thread::sleep(Duration::from_millis(200));
    assert!(!lens.is_over());
    interrupted(lens);
    subject.end();
}

#[test]
fn sigint_ends_the_lens_only() {
    let mut subject = Subject::new();
    let lens = subject.watch();
    subject.make_calls();
    let pid = subject.pid();
    let report = interrupted(lens);
    assert_eq!(report.count("getppid"), CALLS);
    let [read] = &report.in_progress[..] else {
        panic!("{:?}", report.in_progress);
    };
    assert_eq!((read.name.as_str(), read.tid), ("read", pid));
    subject.make_calls();
    subject.end();
}

#[test]
fn calls_from_before_the_watch_have_no_known_time() {
    let mut subject = Subject::new();
    let first = subject.watch();
    // The first lens has seen the beginning of the read in which the second one finds the thread.
    subject.make_calls();
    let second = subject.watch();
    let time_of_read = |lens| {
        let report = interrupted(lens);
        report.in_progress.iter().find(|call| call.name == "read").expect("it reads").ns
    };
    assert_eq!(time_of_read(second), None);
    assert!(time_of_read(first).is_some());
    subject.end();
}

#[test]
fn a_thread_selects_its_process() {
    let running = Job::of(workload("hang --threads 2")).start();
    let pid = running.pid();
    let other = || threads_of(pid).into_iter().find(|thread| *thread != pid);
    eventually("its second thread", || other().is_some());
    let tid = other().expect("it hangs");
    let ran = Job::lens(&format!("-p {tid} --for 100ms")).finish().success();
    ran.says(&format!("tollgate: {tid} is a thread of process {pid}, which is watched as a whole"));
    let ran = Job::lens(&format!("-p {pid} --for 100ms")).finish().success();
    assert!(!ran.err.contains("watched as a whole"), "{}", ran.err);
    kill(pid as i32, libc::SIGKILL);
}

#[test]
fn two_lenses_on_one_process() {
    for per in ["", "--per thread"] {
        let mut subject = Subject::new();
        let first = subject.watch();
        subject.make_calls();
        let second = Job::lens(&format!("-p {} {per}", subject.pid())).start();
        watches(&second);
        subject.make_calls();
        assert!(!first.is_over(), "the first ended: {}", first.read("err"));
        assert_eq!(interrupted(second).count("getppid"), CALLS);
        subject.make_calls();
        subject.end();
        let report = first.finish().success().report().complete();
        assert_eq!(report.count("getppid"), 3 * CALLS);
    }
}

#[test]
fn second_lens_outlasts_the_first() {
    let mut subject = Subject::new();
    let first = subject.watch();
    subject.make_calls();
    let second = subject.watch();
    subject.make_calls();
    assert_eq!(interrupted(first).count("getppid"), 2 * CALLS);
    subject.make_calls();
    subject.end();
    let report = second.finish().success().report().complete();
    assert_eq!(report.count("getppid"), 2 * CALLS);
}

/// Starts a run, and lenses on its command that attach and detach meanwhile in this order,
/// identified by numbers.
fn watched(order: &[(bool, usize)]) {
    let busy = BusyRun::start("");
    let mut watchers: [Option<Running>; 3] = [const { None }; 3];
    for (comes, number) in order {
        if *comes {
            let lens = Job::lens(&format!("-p {}", busy.command())).start();
            watches(&lens);
            watchers[*number] = Some(lens);
        } else {
            let lens = watchers[*number].take().expect("it came");
            assert!(interrupted(lens).count("getppid") > 0, "{order:?}: watcher {number}");
        }
        // After this, the session has seen what the other sessions left.
        busy.wait_until_tended();
    }
    busy.finish();
}

const COMES: bool = true;
const GOES: bool = false;

#[test]
fn lenses_on_a_run_end_first_in_first_out() {
    watched(&[(COMES, 0), (COMES, 1), (GOES, 0), (GOES, 1)]);
}

#[test]
fn lenses_on_a_run_end_last_in_first_out() {
    watched(&[(COMES, 0), (COMES, 1), (GOES, 1), (GOES, 0)]);
}

#[test]
fn lenses_on_a_run_in_relay() {
    watched(&[
        (COMES, 0),
        (COMES, 1),
        (GOES, 0),
        (COMES, 2),
        (GOES, 1),
        (COMES, 0),
        (GOES, 2),
        (GOES, 0),
    ]);
}

#[test]
fn with_time_limit() {
    let subject = Subject::new();
    let began = Instant::now();
    let lens = Job::lens(&format!("-p {} --for 300ms", subject.pid()));
    let report = lens.finish().success().report().complete();
    assert!(began.elapsed() >= Duration::from_millis(300));
    assert!(report.elapsed_ns >= 300_000_000, "{}", report.elapsed_ns);
    assert_eq!(report.calls.len(), 0, "{:?}", report.calls);
    subject.end();
}

#[test]
fn several_pids_per_process() {
    let mut subjects = [Subject::new(), Subject::new()];
    let pids = subjects.each_ref().map(Subject::pid);
    let lens = format!("-p {} -p {} --per process", pids[0], pids[1]);
    let lens = Job::lens(&lens).start();
    watches(&lens);
    subjects[0].make_calls();
    subjects[0].make_calls();
    subjects[1].make_calls();
    subjects.into_iter().for_each(Subject::end);
    let report = lens.finish().success().report().complete();
    assert_eq!(report.count("getppid"), 3 * CALLS);
    assert_eq!(pids.map(|pid| calls_of(&report, pid)), [2 * CALLS, CALLS]);
}

#[test]
fn busy_process() {
    let busy = Job::of(workload("busy-writer 3000000")).start();
    let lens = Job::lens(&format!("-p {} --for 500ms", busy.pid()));
    let report = lens.finish().success().report().complete();
    assert!(!busy.is_over(), "it ended with the watching");
    let (writes, reads) = (report.count("write"), report.count("read"));
    // The lens attached and detached at any point of a round.
    assert!(reads.abs_diff(writes) <= 1, "{reads} reads, {writes} writes");
    assert!(writes > 100, "{report:?}");
    let errors = |name| report.call(name).errors.len();
    assert_eq!((errors("write"), errors("read")), (0, 0));
}

/// Starts a process with four busy threads and the one that waits for them.
fn four_busy_threads() -> Running {
    let busy = Job::of(workload("calls 1000000000 --threads 4")).start();
    eventually("its threads", || threads_of(busy.pid()).len() == 5);
    busy
}

#[test]
fn threads_of_a_process_share_its_row() {
    let busy = four_busy_threads();
    let pid = busy.pid();
    let lens = Job::lens(&format!("-p {pid} --per process --for 500ms"));
    let report = lens.finish().success().report().complete();
    let rows: Vec<_> = report.groups.iter().map(|row| row.pid).collect();
    assert_eq!(rows, [pid]);
    assert_eq!(calls_of(&report, pid), report.count("getppid"));
}

#[test]
fn all_threads_of_a_process() {
    let busy = four_busy_threads();
    let pid = busy.pid();
    let lens = Job::lens(&format!("-p {pid} --per thread --for 500ms"));
    let report = lens.finish().success().report().complete();
    let getppid = |row: &&RowReport| row.calls.iter().any(|call| call.name == "getppid");
    let rows: BTreeSet<_> =
        report.groups.iter().filter(getppid).map(|row| (row.pid, row.tid)).collect();
    assert_eq!(rows.len(), 4, "{rows:?}");
    assert!(rows.iter().all(|(of, tid)| *of == pid && *tid != Some(pid)));
}

#[test]
fn process_of_another_user() {
    let folder = folder();
    let program = folder.path().join("workloads");
    copy(&workloads(), &program);
    let calls = CALLS.to_string().into();
    let mut job = Job::of(vec![program.into(), "calls-on-input".into(), calls]);
    job.command.uid(NOBODY).gid(NOBODY);
    let mut subject = Subject::of(job);
    let lens = subject.watch();
    subject.make_calls();
    subject.end();
    let report = lens.finish().success().report().complete();
    assert_eq!(report.count("getppid"), CALLS);
}

/// Starts a subject under its own command name.
fn named(program: &Path) -> Subject {
    let calls = CALLS.to_string().into();
    Subject::of(Job::of(vec![program.into(), "calls-on-input".into(), calls]))
}

#[test]
fn by_comm_running_and_later() {
    let folder = folder();
    // The kernel keeps 15 characters, which must be unique to this test.
    let name = format!("tg{}-long-command-name", std::process::id());
    let program = folder.path().join(&name);
    copy(&workloads(), &program);
    let mut now = named(&program);
    let mut other = Subject::new();
    let lens = Job::lens(&format!("--comm {name} --per process")).start();
    watches(&lens);
    now.make_calls();
    other.make_calls();
    let mut later = named(&program);
    wait_for_refresh(&lens);
    later.make_calls();
    let pids = [now.pid(), later.pid()];
    [now, later, other].into_iter().for_each(Subject::end);
    let report = interrupted(lens);
    assert_eq!(calls_of(&report, pids[0]), CALLS);
    assert_eq!(calls_of(&report, pids[1]), CALLS);
    assert_eq!(report.groups.len(), 2, "{:?}", report.groups);
}

#[test]
fn comm_without_match() {
    let ran = Job::lens("--comm nobody-has-this --for 100ms").finish().success();
    let ran = ran.says("no process matches yet; watching for later ones for 100 ms");
    assert_eq!(
        ran.report().complete().notes,
        ["no process matched; Tollgate polled twice a second, and compared --comm with \
            /proc/PID/comm"]
    );
}

/// Counts getppid in the row of a process.
fn calls_of(report: &Report, pid: u32) -> u64 {
    let row = report.groups.iter().find(|row| row.pid == pid);
    let row = row.unwrap_or_else(|| panic!("no {pid} in {:?}", report.groups));
    let getppid = row.calls.iter().find(|call| call.name == "getppid");
    getppid.map_or(0, |call| call.count)
}

#[test]
fn by_cgroup() {
    let cgroup = TestCgroup::new();
    let (mut inside, mut outside) = (Subject::new(), Subject::new());
    cgroup.add(inside.pid());
    let lens = Job::lens(&format!("--cgroup {}", cgroup.0.display())).start();
    watches(&lens);
    inside.make_calls();
    outside.make_calls();
    [inside, outside].into_iter().for_each(Subject::end);
    assert_eq!(interrupted(lens).count("getppid"), CALLS);
}

#[test]
fn process_counts_in_both_sessions() {
    let busy = BusyRun::start("");
    let lens = Job::lens(&format!("-p {} --for 500ms", busy.command()));
    let report = lens.finish().success().report().complete();
    assert!(report.count("getppid") > 0);
    busy.finish();
}

#[test]
fn call_in_progress_at_attach_is_reported() {
    let hanging = Job::of(workload("hang")).start();
    let pid = hanging.pid();
    eventually("its pause", || is_in_call(pid, libc::SYS_pause));
    let report = Job::lens(&format!("-p {pid} --for 200ms")).finish().success().report().complete();
    let listed: Vec<_> =
        report.in_progress.iter().map(|call| (call.tid, &*call.name, call.ns)).collect();
    assert_eq!(listed, [(pid, "pause", None)]);
}

#[test]
fn exited_pid_is_not_waited_for() {
    // A zombie: its parent, the test, has not waited for it yet.
    let ended = Job::of(workload("exit 0")).start();
    eventually("its end", || ended.is_over());
    Job::from_command_line(&format!("lens -p {}", ended.pid()))
        .finish()
        .exits_with(125)
        .says("they have ended");
    ended.finish().success();
}

#[test]
fn process_without_leader_is_watched_to_exit() {
    let subject = Job::of(workload("leader-ends 600000")).start();
    let pid = subject.pid();
    eventually("the leader's end", || state(pid) == Some('Z'));
    let lens = Job::lens(&format!("-p {pid}")).start();
    watches(&lens);
    subject.signal(libc::SIGKILL);
    lens.finish().success().says("has ended").report().complete();
    subject.finish().exits_with(128 + libc::SIGKILL);
}

#[test]
fn lenses_starting_together() {
    for _ in 0..3 {
        let mut subject = Subject::new();
        let mut all: Vec<_> =
            (0..4).map(|_| Job::lens(&format!("-p {}", subject.pid())).start()).collect();
        all.iter().for_each(watches);
        subject.make_calls();
        subject.end();
        for lens in all.drain(..) {
            assert_eq!(lens.finish().success().report().complete().count("getppid"), CALLS);
        }
    }
}

#[test]
fn kernel_thread_is_refused() {
    // kthreadd, in the first PID namespace.
    Job::from_command_line("lens -p 2").finish().exits_with(125).says("kernel threads");
}

/// Watching every process of the machine uses rows that other tests need.
mod alone {
    use super::*;

    #[test]
    fn lens_all_beside_a_run() {
        let busy = BusyRun::start("");
        let lens = Job::lens("--all --per process").start();
        let own = lens.pid();
        watches(&lens);
        let new = Job::of(workload("sleep 10 20")).start();
        let new_pid = new.pid();
        new.finish().success();
        let report = interrupted(lens);
        let row = |pid| report.groups.iter().find(|row| row.pid == pid);
        assert!(row(busy.command()).is_some(), "the busy command is missing");
        assert!(row(own).is_none(), "Tollgate watched itself");
        assert!(report.count("getppid") > 0);
        let new = row(new_pid).expect("it began and ended meanwhile");
        assert!(
            new.calls.iter().any(|call| call.name == "nanosleep" && call.count == 20),
            "{new:?}"
        );
        busy.finish();
    }
}

#[test]
fn counted_calls_lie_inside_the_elapsed_time() {
    const MS: u64 = 1_000_000;
    let subject = Job::of(workload("sleep 1 3600000")).start();
    let pid = subject.pid();
    eventually("its sleeps", || sleeps_of(pid) > 1);
    for select in [format!("-p {pid}"), "--all".into()] {
        let lens = Job::lens(&format!("{select} --for 10ms --per process")).finish();
        let report = lens.success().report();
        let row = report.groups.iter().find(|row| row.pid == pid).expect("it sleeps each ms");
        // Each sleep takes a millisecond at least. If another session watches the process, the
        // first call may have begun earlier.
        let sleeps = row.count("nanosleep");
        assert!(sleeps <= report.elapsed_ns / MS + 1, "{sleeps} in {} ns", report.elapsed_ns);
        let call = row.calls.iter().find(|call| call.name == "nanosleep").expect("just counted");
        assert!(call.wall_ns <= report.elapsed_ns + call.max_ns, "{row:?}");
        assert!(row.elapsed_ns <= report.elapsed_ns, "{row:?}");
    }
}
