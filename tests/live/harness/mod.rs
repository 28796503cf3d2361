//! What the tests share: starting and awaiting the programs under test, their reports, terminals,
//! strace and BPF links.

pub mod bpf;
pub mod busy_run;
pub mod cgroup;
pub mod daemon;
pub mod doctor;
pub mod guarded_program;
pub mod job;
pub mod library;
pub mod metrics;
pub mod network;
mod observe;
pub mod plugins;
pub mod postgres;
pub mod pty;
pub mod report;
pub mod scheduling;
pub mod service_limits;
pub mod services;
pub mod side_effects;
pub mod strace;
pub mod table_locks;
pub mod web_stack;

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub use busy_run::BusyRun;
pub use job::{Finished, Job, Running};
pub use observe::{observe, observe_but, observe_crowd};
pub use report::Report;

/// No wait of a test takes this long; a test that reaches it fails.
pub const LIMIT: Duration = Duration::from_secs(180);

pub const NOBODY: u32 = 65534;

pub fn tollgate() -> PathBuf {
    // SAFETY: a plain query.
    let user = unsafe { libc::geteuid() };
    assert_eq!(user, 0, "the live tests load programs into the kernel: run them as root");
    env::var_os("TOLLGATE_BIN").map_or(env!("CARGO_BIN_EXE_tollgate").into(), PathBuf::from)
}

/// The root of the source tree.
pub fn project() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

pub fn workloads() -> PathBuf {
    let path = match env::var_os("WORKLOADS_BIN") {
        Some(path) => path.into(),
        None => tollgate().with_file_name("workloads"),
    };
    assert!(
        path.exists(),
        "{} is missing: `cargo build --release -p workloads` makes it, or WORKLOADS_BIN names it",
        path.display()
    );
    path
}

/// The command line of a workload with these arguments.
pub fn workload(arguments: &str) -> Vec<OsString> {
    [workloads().into()].into_iter().chain(words(arguments)).collect()
}

/// Splits a text at blanks; no word may contain one.
pub fn words(text: &str) -> Vec<OsString> {
    text.split_whitespace().map(OsString::from).collect()
}

/// A condition is checked again after this fraction of the time that the test has waited for it: on
/// an emulated machine, a check takes a tenth of a millisecond or more.
const PART_OF_WAIT: u32 = 10;
const POLL_INTERVALS: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(25)];

/// Waits for `condition`, and fails the test if it does not hold within the limit.
#[track_caller]
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        let waited = began.elapsed();
        assert!(waited < LIMIT, "{what}: not within {LIMIT:?}");
        std::thread::sleep((waited / PART_OF_WAIT).clamp(POLL_INTERVALS[0], POLL_INTERVALS[1]));
    }
}

/// Checks that two sources agree about one run; `slack` is what one of them cannot see.
#[track_caller]
pub fn assert_close(what: &str, ours: u64, theirs: u64, slack: u64) {
    let allowed = ours.max(theirs) / 50 + slack;
    assert!(
        ours.abs_diff(theirs) <= allowed,
        "{what}: {ours} ns and {theirs} ns differ by more than 2 % and {slack} ns"
    );
}
