//! Processes that a test leaves running. They have the mark of the test in their environment.

use std::fs;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The environment variable with the mark.
pub const VARIABLE: &str = "TOLLGATE_TEST";

/// Processes may still be about to end, such as the watchdog of a Tollgate that was killed.
const LIMIT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The value of [`VARIABLE`] for the processes of one test.
pub struct TestMark(String);

impl TestMark {
    /// A mark that no other test has.
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(format!("{}.{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    pub fn value(&self) -> &str {
        &self.0
    }

    /// Waits a while for the processes of the test to end, kills those that still run, and returns
    /// their IDs and command lines.
    pub fn end_processes(&self) -> Vec<String> {
        let left = self.wait().into_iter().map(kill).collect();
        // They end after a moment, and may have forked others meanwhile.
        let began = Instant::now();
        loop {
            let more = self.processes();
            if more.is_empty() || began.elapsed() > LIMIT {
                return left;
            }
            more.into_iter().for_each(|pid| drop(kill(pid)));
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Waits a while for the processes to end, and returns those that still run.
    fn wait(&self) -> Vec<i32> {
        let began = Instant::now();
        loop {
            let left = self.processes();
            if left.is_empty() || began.elapsed() > LIMIT {
                return left;
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// The IDs of the processes with this mark.
    fn processes(&self) -> Vec<i32> {
        let expected = format!("{VARIABLE}={}", self.0);
        let has_mark = |pid: &i32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|entry| entry == expected.as_bytes())
        };
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(has_mark).collect()
    }
}

/// Kills a process, and returns its ID and its command line.
fn kill(pid: i32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<_> = bytes.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    // SAFETY: takes no pointers; a process of a test that has ended.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    format!("{pid} {}", words.join(" ").trim_end())
}
