//! In-band records. The workloads compare them with what they know.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};

use tempfile::TempDir;

use crate::harness::cgroup::TestCgroup;
use crate::harness::job::{folder, kill};
use crate::harness::plugins::job_in;
use crate::harness::{Job, Running, eventually, tollgate, words, workload};

fn run(options: &str, command: Vec<OsString>) -> Job {
    Job::run(&format!("--in-band {options}"), command)
}

fn check(options: &str, arguments: &str) {
    let ran = run(options, workload(arguments)).finish().success();
    assert!(ran.text().contains("ok"), "{}", ran.text());
    ran.report().complete();
}

#[test]
fn records_are_those_of_the_program() {
    check("", "in-band-records");
}

#[test]
fn rejected_calls_have_records() {
    check("", "in-band-rejected");
}

#[test]
fn records_need_no_rights() {
    check("-u 65534:65534", "in-band-records");
    check("-u 65534:65534", "in-band-sleeps");
}

#[test]
fn sleeps_have_their_sites() {
    check("", "in-band-sleeps");
    // The lens does not look for sites of its own.
    check("--no-sites", "in-band-sleeps");
}

#[test]
fn all_calls_are_timed_when_the_lens_samples() {
    check("--sample", "in-band-records");
    check("--sample", "in-band-concurrent 20000");
}

#[test]
fn concurrent_reader_finds_no_torn_record() {
    check("", "in-band-concurrent 1000000");
}

#[test]
fn threads_children_and_programs_have_their_own() {
    check("", "in-band-inherit");
    check("", "in-band-vfork");
}

/// A run that ends removes its own memory and no other.
#[test]
fn records_outlast_other_runs() {
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..6).for_each(|_| check("", "in-band-inherit")));
        }
    });
}

/// There are more threads than entries.
#[test]
fn entries_of_threads_that_have_ended_are_used_again() {
    check("", "in-band-threads 300");
}

/// A daemon that gives records to the processes of a control group.
struct RecordingDaemon {
    daemon: Running,
    cgroup: TestCgroup,
    folder: TempDir,
}

impl RecordingDaemon {
    #[track_caller]
    fn start() -> Self {
        let (cgroup, folder) = (TestCgroup::new(), folder());
        let daemon = Self::daemon(&cgroup, &folder);
        Self { daemon, cgroup, folder }
    }

    #[track_caller]
    fn daemon(cgroup: &TestCgroup, folder: &TempDir) -> Running {
        let mut job = Job::from_command_line("daemon --in-band");
        job.command.arg("--cgroup").arg(&cgroup.0);
        job.command.env("TOLLGATE_SOCKET", folder.path().join("socket"));
        let daemon = job.start();
        eventually("the daemon", || {
            assert!(!daemon.is_over(), "{}", daemon.read("err"));
            daemon.read("err").contains("in-band records are given at")
        });
        daemon
    }

    fn job(&self, arguments: &str) -> Job {
        let mut job = job_in(&self.cgroup, arguments);
        job.command.env("TOLLGATE_IN_BAND", self.folder.path().join("in-band.sock"));
        job
    }
}

fn drop_rights() -> io::Result<()> {
    // SAFETY: takes a number.
    match unsafe { libc::setuid(65534) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[test]
fn programs_of_all_users_get_records_from_a_daemon() {
    let daemon = RecordingDaemon::start();
    for job in
        [daemon.job("in-band-records"), daemon.job("in-band-records").before_exec(drop_rights)]
    {
        let ran = job.finish().success();
        assert!(ran.text().contains("ok"), "{}", ran.text());
    }
    let mut outside = Job::of(workload("in-band-records"));
    outside.command.env("TOLLGATE_IN_BAND", daemon.folder.path().join("in-band.sock"));
    // Another test may watch the whole machine.
    let said = outside.finish().exits_with(1).err;
    let is_outside = said.contains("Tollgate does not gate this thread")
        || said.contains("this thread counts in another session of Tollgate");
    assert!(is_outside, "{said}");
}

#[test]
fn program_gets_records_from_a_daemon_that_is_restarted() {
    let mut at_work = RecordingDaemon::start();
    at_work.daemon.signal(libc::SIGTERM);
    eventually("its end", || at_work.daemon.is_over());
    // The program runs before the daemon.
    let program = at_work.job("in-band-renew").start();
    at_work.daemon = RecordingDaemon::daemon(&at_work.cgroup, &at_work.folder);
    eventually("its records", || program.read("out").contains("reading"));
    at_work.daemon.signal(libc::SIGKILL);
    eventually("its end", || at_work.daemon.is_over());
    eventually("stale records", || program.read("out").contains("stale"));
    at_work.daemon = RecordingDaemon::daemon(&at_work.cgroup, &at_work.folder);
    let program = program.finish().success();
    assert!(program.text().contains("renewed"), "{}", program.text());
}

#[test]
fn memory_of_others_is_out_of_reach() {
    let other = run("", workload("in-band-until-stale")).start();
    eventually("its records", || other.read("out").contains("reading"));
    let pid = other.child_running("workloads");
    for user in ["", "-u 65534:65534"] {
        check(user, &format!("in-band-isolation {pid}"));
    }
}

/// A process may have the rights of another user once it executes another program.
#[test]
fn memory_and_connections_end_with_their_program() {
    check("", "in-band-before-exec 0");
    check("", "in-band-before-exec 1");
}

#[test]
fn connections_end_with_their_process() {
    check("", "in-band-pid-reuse");
}

#[test]
fn idle_connections_do_not_keep_others_waiting() {
    check("", "in-band-idle");
}

/// A process that the session does not gate is refused before it sends anything.
#[test]
fn outsiders_are_refused_at_once() {
    let running = run("", workload("in-band-until-stale")).start();
    eventually("its records", || running.read("out").contains("reading"));
    let pid = running.child_running("workloads");
    let environment = fs::read(format!("/proc/{pid}/environ")).expect("it runs");
    let mut variables = environment.split(|byte| *byte == 0);
    let name = variables.find_map(|variable| variable.strip_prefix(b"TOLLGATE_IN_BAND=@"));
    let address = SocketAddr::from_abstract_name(name.expect("the variable")).expect("an address");
    let mut stream = UnixStream::connect_addr(&address).expect("it listens");
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).expect("it replies");
    // EBUSY: another test watches the whole machine.
    let refusals = [libc::ESRCH, libc::EBUSY].map(i32::to_ne_bytes);
    assert!(refusals.iter().any(|errno| reply == errno), "{reply:?}");
    running.signal(libc::SIGKILL);
    eventually("its end", || running.is_over());
}

#[test]
fn refusal_says_that_another_session_has_the_thread() {
    let mut command = vec![tollgate().into()];
    command.extend(words("run -o /dev/null --"));
    command.extend(workload("in-band-records"));
    let ran = run("", command).finish().exits_with(1);
    ran.says("counts in another session of Tollgate");
}

#[test]
fn refusal_says_that_the_run_may_have_ended() {
    let mut program = Job::of(workload("in-band-records"));
    program.command.env("TOLLGATE_IN_BAND", "@tollgate-in-band-none");
    let ran = program.finish().exits_with(1);
    ran.says("no Tollgate gives in-band records at @tollgate-in-band-none: Connection refused");
}

#[test]
fn library_takes_records_from_root_only() {
    let ran = Job::of(workload("in-band-impostor")).before_exec(drop_rights).finish();
    ran.exits_with(1).says("is not root, and so is not Tollgate");
}

#[test]
fn records_of_a_killed_tollgate_are_stale() {
    let running = run("", workload("in-band-until-stale")).start();
    eventually("its records", || running.read("out").contains("reading"));
    running.signal(libc::SIGKILL);
    eventually("its end", || running.is_over());
    eventually("the end of its records", || running.read("out").contains("stale"));
}

/// Another session keeps the gate, and the command in it.
#[test]
fn records_end_with_their_session() {
    let running = run("", workload("in-band-until-stale")).start();
    eventually("its records", || running.read("out").contains("reading"));
    let pid = running.child_running("workloads");
    let lens = Job::lens(&format!("-p {pid}")).start();
    eventually("a watch", || lens.read("err").contains("watching"));
    running.signal(libc::SIGKILL);
    eventually("its end", || running.is_over());
    eventually("the end of its records", || running.read("out").contains("stale"));
    lens.signal(libc::SIGINT);
    lens.finish().success();
}

#[test]
fn program_without_tollgate_gets_an_error() {
    let ran = Job::of(workload("in-band-records")).finish();
    assert_eq!(ran.status, 1);
    assert!(ran.err.contains("TOLLGATE_IN_BAND is not set"), "{}", ran.err);
}

/// Threads of other tests may sleep in the same site.
mod alone {
    use super::*;

    #[test]
    fn threads_that_wait_in_the_same_site_are_counted() {
        check("", "in-band-waiters");
        // A thread whose records end while it sleeps.
        let waiting = run("", workload("in-band-wait")).start();
        eventually("its records", || waiting.read("out").contains("waiting"));
        let pid = waiting.child_running("workloads");
        let lens = Job::lens(&format!("-p {pid}")).start();
        eventually("a watch", || lens.read("err").contains("watching"));
        waiting.signal(libc::SIGKILL);
        eventually("its end", || waiting.is_over());
        check("", "in-band-waiters");
        kill(pid as i32, libc::SIGKILL);
        lens.signal(libc::SIGINT);
        lens.finish().success();
    }
}
