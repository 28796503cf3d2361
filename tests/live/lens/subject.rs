//! A process for lenses to watch.

use std::io::Write as _;
use std::process::{ChildStdin, Stdio};

use crate::harness::job::{is_in_read, sleeps_of, watches};
use crate::harness::{Job, Running, eventually, workload};

/// A process that waits in a read and makes a known number of calls for each byte that it receives.
pub struct Subject {
    running: Running,
    stdin: ChildStdin,
}

/// The calls of getppid for each byte.
pub const CALLS: u64 = 1000;

impl Subject {
    pub fn new() -> Self {
        Self::of(Job::of(workload(&format!("calls-on-input {CALLS}"))))
    }

    pub fn of(mut job: Job) -> Self {
        let mut running = {
            job.command.stdin(Stdio::piped());
            job.start()
        };
        let stdin = running.stdin();
        let pid = running.pid();
        eventually("its first read", || is_in_read(pid));
        Self { running, stdin }
    }

    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// A lens that watches the process.
    #[track_caller]
    pub fn watch(&self) -> Running {
        let lens = Job::lens(&format!("-p {}", self.pid())).start();
        watches(&lens);
        lens
    }

    /// Lets the process make its calls, and waits until it is in its next read.
    pub fn make_calls(&mut self) {
        self.send(b".");
    }

    /// Sends bytes to the process while it is in a read, and waits until it is in its next one.
    pub fn send(&mut self, bytes: &[u8]) {
        let pid = self.pid();
        eventually("its read", || is_in_read(pid));
        let before = sleeps_of(pid);
        self.stdin.write_all(bytes).expect("it reads");
        eventually("its next read", || sleeps_of(pid) > before && is_in_read(pid));
    }

    pub fn end(self) {
        drop(self.stdin);
        self.running.finish().success();
    }
}
