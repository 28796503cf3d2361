//! A command below `tollgate run` that makes calls until its input ends, and reports
//! their number.

use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use super::job::{stop, wait_for_tend};
use super::report::AMBIGUOUS;
use super::{Job, Report, Running, workload};

pub struct BusyRun {
    run: Running,
    command: u32,
    stop: Arc<AtomicBool>,
    /// Sends the command bytes, and returns how many.
    feeder: JoinHandle<u64>,
}

const CALLS_A_BYTE: u64 = 50;
/// The pipe holds more than one write, so the command always has input, but few bytes are left at
/// its end.
const PIPE_BYTES: i32 = 4096;
const BYTES: [u8; 512] = [b'.'; 512];

impl BusyRun {
    #[track_caller]
    pub fn start(options: &str) -> Self {
        let mut job = Job::run(options, workload(&format!("calls-on-input {CALLS_A_BYTE}")));
        job.command.stdin(Stdio::piped());
        let mut run = job.start();
        let mut stdin = run.stdin();
        // SAFETY: a descriptor of ours and an integer.
        unsafe { libc::fcntl(stdin.as_raw_fd(), libc::F_SETPIPE_SZ, PIPE_BYTES) };
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let feeder = thread::spawn(move || {
            let mut sent = 0;
            // The write fails if the test has failed and the command is gone.
            while !stopped.load(Ordering::Relaxed) && stdin.write_all(&BYTES).is_ok() {
                sent += BYTES.len() as u64;
            }
            sent
        });
        let command = run.child_running("workloads");
        Self { run, command, stop, feeder }
    }

    /// PID of the command.
    pub fn command(&self) -> u32 {
        self.command
    }

    /// Sends a signal to the `tollgate run`.
    pub fn signal(&self, signal: i32) {
        self.run.signal(signal);
    }

    /// Waits until the `tollgate run` has tended the gate once more.
    #[track_caller]
    pub fn wait_until_tended(&self) {
        wait_for_tend(&self.run);
    }

    /// Stops the `tollgate run`.
    #[track_caller]
    pub fn stop_run(&self) {
        stop(self.run.pid());
    }

    /// Ends the command, and checks that each of its calls was counted.
    #[track_caller]
    pub fn finish(self) -> Report {
        assert!(!self.run.is_over(), "it ended before the test ended it");
        self.stop.store(true, Ordering::Relaxed);
        let bytes = self.feeder.join().expect("the feeder does not panic");
        let report = self.run.finish().success().report().complete();
        assert_all_counted(&report, "read", bytes + 1);
        assert_all_counted(&report, "getppid", bytes * CALLS_A_BYTE);
        report
    }
}

/// Checks that all calls were counted, or that the report has the number of those lost while the
/// gate's programs changed.
#[track_caller]
pub fn assert_all_counted(report: &Report, name: &str, calls: u64) {
    let lost = report.losses.get(AMBIGUOUS).copied().unwrap_or(0);
    let seen = report.count(name);
    assert!(
        seen <= calls && calls <= seen + lost,
        "{seen} of {calls} calls of {name} were counted, {lost} lost"
    );
}
