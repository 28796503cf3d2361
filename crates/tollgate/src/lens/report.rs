//! The lens' section of a report.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::why_report::{LockWait, SlowWhy, WokenBy};

/// The name of a session's common row, which counts for whatever has no row of its own.
pub const COMMON: &str = "(common)";
/// The name of a task whose name is empty.
pub const UNNAMED: &str = "(unnamed)";

/// What the lens has recorded in a session.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct LensReport {
    /// All rows together. Sums over threads may exceed the elapsed time.
    pub calls: Vec<Call>,
    /// The requests of io_uring, which are no calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub io_uring: Vec<RingRequest>,
    /// Where the threads spent their lives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<ThreadAccount>,
    /// With `--per`: the rows, each a process, a thread or a command.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<RowReport>,
    /// With `--by file`: the files that were used by descriptors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FileCalls>,
    /// With `--slower-than`: the slowest calls, slowest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slow: Vec<SlowCall>,
    /// Calls that had not ended at the end of the session. They are counted nowhere else.
    pub in_progress: Vec<InProgress>,
}

/// A call that had not ended at the end of the session.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct InProgress {
    pub tid: u32,
    pub name: String,
    pub abi: String,
    /// The time since the call's start. `None` if the start was not timed.
    pub ns: Option<u64>,
}

/// The statistics of one system call. Times are in nanoseconds.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Call {
    pub name: String,
    /// x86-64, i386 or x32.
    pub abi: String,
    /// Whether the purpose of the call is to wait: for an event, another thread or a time.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_wait: bool,
    /// Calls that returned.
    pub count: u64,
    /// Numbers of failed calls, by the name of the errno.
    pub errors: BTreeMap<String, u64>,
    pub wall_ns: u64,
    pub cpu_ns: u64,
    pub blocked_ns: u64,
    pub runqueue_ns: u64,
    pub p50_ns: u64,
    pub p95_ns: u64,
    pub p99_ns: u64,
    pub max_ns: u64,
    pub minor_faults: u64,
    pub major_faults: u64,
    /// Blocking sites, the one with the longest time first; empty with `--no-sites`.
    pub blocked_in: Vec<BlockedIn>,
    /// The part of `count` that was rejected before the kernel began the call (by seccomp or a
    /// tracer). It has a time only if the thread has waited for the decision.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub denied: u64,
    /// Calls that did not return, because their thread ended first (exit, exit_group, killed). They
    /// are not in `count`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unfinished: u64,
    /// With `--sample`: calls that were not timed. Their time is an estimate, with the interval
    /// `wall_interval_ns`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub untimed: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall_interval_ns: Option<WallInterval>,
    /// With `--histogram`, if it names this call: the wall times of the calls that were timed. With
    /// `--sample`, the numbers are estimates for all calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub histogram: Option<Vec<HistogramOctave>>,
}

/// How many calls took from one power of two to the next. Times are in nanoseconds.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct HistogramOctave {
    pub from_ns: u64,
    /// The shortest time that is too long. `None` for the last octave that the gate distinguishes,
    /// which also has all longer times.
    pub to_ns: Option<u64>,
    pub count: u64,
}

/// The statistics of io_uring's requests of one operation. Times are in nanoseconds, from
/// submission to completion.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RingRequest {
    /// The operation, as the kernel's header names it.
    pub name: String,
    /// Requests that have completed.
    pub count: u64,
    /// Numbers of failed requests, by the name of the errno.
    pub errors: BTreeMap<String, u64>,
    pub wall_ns: u64,
    pub p50_ns: u64,
    pub p95_ns: u64,
    pub p99_ns: u64,
    pub max_ns: u64,
    /// Requests that had not completed at the end. They are not in `count`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub in_flight: u64,
    /// Requests for which the program wanted no completion. They are not in `count`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub silent: u64,
}

/// In the place of an ABI: the name space of the operations of io_uring.
pub const IO_URING: &str = "io_uring";

impl RingRequest {
    /// The request in a table of calls.
    pub fn as_call(&self) -> Call {
        Call {
            name: self.name.clone(),
            abi: IO_URING.into(),
            count: self.count,
            errors: self.errors.clone(),
            wall_ns: self.wall_ns,
            p50_ns: self.p50_ns,
            p95_ns: self.p95_ns,
            p99_ns: self.p99_ns,
            max_ns: self.max_ns,
            ..Call::default()
        }
    }
}

/// The lives of threads while they counted, added up, and the parts of which they consist. Times
/// are in nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ThreadAccount {
    pub threads: u64,
    pub lifetime_ns: u64,
    /// In calls, with those that began before the watch or had not ended at its end.
    pub calls_ns: u64,
    /// On a processor outside of calls: the program's own code, page faults, interrupts, and the
    /// kernel's and the gate's work at the beginning and the end of each call.
    pub cpu_ns: u64,
    /// On a processor in calls and outside of them.
    #[serde(default)]
    pub processor_ns: u64,
    /// The kernel's ticks that have met the threads in user mode, and in the kernel.
    #[serde(default)]
    pub user_ticks: u64,
    #[serde(default)]
    pub system_ticks: u64,
    /// Of `cpu_ns`: in user mode. Absent if no tick has met the threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<UserTime>,
    /// Ready to run, outside of calls.
    pub runqueue_ns: u64,
    /// Asleep in page faults outside of calls.
    #[serde(default)]
    pub faulting_ns: u64,
    /// Asleep in what the kernel does between the end of a call and the program.
    pub asleep_ns: u64,
    /// Stopped by a signal, a tracer or the freezer of cgroup v2.
    pub stopped_ns: u64,
    /// Held by the guard.
    pub held_ns: u64,
    /// Throttled by a limit on a control group's processor time (since Linux 6.18; before, it is in
    /// `runqueue_ns`).
    pub throttled_ns: u64,
    /// Neither in a call nor in any of the waits, and not counted as processor time by the
    /// scheduler either.
    pub unaccounted_ns: u64,
    /// Page faults outside of calls.
    pub minor_faults: u64,
    pub major_faults: u64,
}

/// A processor time in user mode in nanoseconds, estimated by the ticks of the account.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UserTime {
    pub ns: u64,
    pub low_ns: u64,
    pub high_ns: u64,
    pub confidence: f64,
}

/// The interval of an estimated wall time, in nanoseconds.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct WallInterval {
    pub low: u64,
    pub high: u64,
    pub confidence: f64,
}

/// A blocking site of a call.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BlockedIn {
    /// The kernel function that slept.
    pub function: String,
    pub ns: u64,
    /// The number of sleeps.
    pub count: u64,
    /// With `--why`: what has woken the threads, the one with the longest time first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub woken_by: Vec<WokenBy>,
    /// With `--why`: the locks that the threads waited for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub locks: Vec<LockWait>,
}

/// The calls of one process, thread or command.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RowReport {
    pub pid: u32,
    /// With `--per thread`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tid: Option<u32>,
    pub command: String,
    /// How long its calls counted: from its beginning or that of the watch, whichever is later, to
    /// its end or that of the watch.
    #[serde(default)]
    pub elapsed_ns: u64,
    pub calls: Vec<Call>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub io_uring: Vec<RingRequest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<ThreadAccount>,
    /// With `--by file`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FileCalls>,
}

/// The calls on a file or socket. Times are in nanoseconds.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct FileCalls {
    /// The path, the addresses of a socket, or what /proc/PID/fd shows.
    pub name: String,
    /// file, folder, device, fifo, socket, pipe or anonymous.
    pub kind: String,
    /// How many files or sockets had this name, one after the other or at the same time.
    pub files: u64,
    /// Calls that returned.
    pub calls: u64,
    /// Of `calls`: those that failed.
    pub errors: u64,
    pub wall_ns: u64,
    pub blocked_ns: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    /// Of `calls`: those by their second descriptor, which also count for the file of the first.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub shared_calls: u64,
    /// The time of `shared_calls`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub shared_wall_ns: u64,
    /// The calls by name, the longest time first. The gate distinguishes the first eight.
    pub by_call: Vec<CallOnFile>,
}

/// A call on a file.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct CallOnFile {
    pub name: String,
    pub abi: String,
    pub count: u64,
    pub wall_ns: u64,
}

/// One call that took at least as long as `--slower-than` says.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SlowCall {
    /// Nanoseconds after the session began.
    pub at_ns: u64,
    pub pid: u32,
    pub tid: u32,
    pub command: String,
    pub name: String,
    pub abi: String,
    /// As in `read(3</var/log/syslog>, 0x7ffe…, 4096)`.
    pub call: String,
    pub result: String,
    pub wall_ns: u64,
    pub cpu_ns: u64,
    pub blocked_ns: u64,
    pub runqueue_ns: u64,
    /// The stack of the longest sleep, the innermost frame first; empty if no sleep was long.
    pub kernel_stack: Vec<String>,
    pub user_stack: Vec<String>,
    /// With `--why`, if a sleep was long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<SlowWhy>,
}

fn is_false(value: &bool) -> bool {
    !*value
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}
