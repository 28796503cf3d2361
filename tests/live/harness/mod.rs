//! What the tests share: the programs under test, started and awaited; their reports; pty, strace, links.

pub mod bpf;
pub mod busy;
pub mod cgroup;
pub mod daemon;
pub mod deeds;
pub mod guarded;
pub mod job;
pub mod library;
pub mod limits;
pub mod metrics;
pub mod network;
pub mod plugins;
pub mod postgres;
pub mod processors;
pub mod pty;
pub mod report;
pub mod rows;
pub mod services;
pub mod site;
pub mod strace;

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub use busy::Busy;
pub use job::{Finished, Job, Running};
pub use report::Report;
use report::SHARED_ROWS;

/// What nothing here takes; a test that gets there fails.
pub const LIMIT: Duration = Duration::from_secs(180);

pub const NOBODY: u32 = 65534;

pub fn tollgate() -> PathBuf {
    // SAFETY: a plain query.
    let user = unsafe { libc::geteuid() };
    assert_eq!(user, 0, "the live tests load programs into the kernel: run them as root");
    env::var_os("TOLLGATE_BIN").map_or(env!("CARGO_BIN_EXE_tollgate").into(), PathBuf::from)
}

/// Where the sources are.
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

/// The workload with these arguments, as a command.
pub fn workload(arguments: &str) -> Vec<OsString> {
    [workloads().into()].into_iter().chain(words(arguments)).collect()
}

/// Words between blanks; none of them has blanks in it.
pub fn words(text: &str) -> Vec<OsString> {
    text.split_whitespace().map(OsString::from).collect()
}

/// What `tollgate run` reports of the workload, which ends well, with nothing lost.
#[track_caller]
pub fn observe(options: &str, arguments: &str) -> Report {
    Job::run(options, workload(arguments)).finish().success().report().complete()
}

/// The same with losses for these reasons.
#[track_caller]
pub fn observe_but(reasons: &[&str], options: &str, arguments: &str) -> Report {
    Job::run(options, workload(arguments)).finish().success().report().complete_but(reasons)
}

/// The same of one that may need more rows than there are: some may be shared then.
#[track_caller]
pub fn observe_crowd(options: &str, arguments: &str) -> Report {
    let job = Job::run(options, workload(arguments)).with_all_rows();
    job.finish().success().report().complete_but(&SHARED_ROWS)
}

/// A condition is looked at again after this part of the time that it has been waited for: a look
/// takes an emulated machine a tenth of a millisecond and more.
const PART_OF_WAIT: u32 = 10;
const LOOKS: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(25)];

/// Fails the test if `condition` does not hold within the limit.
#[track_caller]
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        let waited = began.elapsed();
        assert!(waited < LIMIT, "{what}: not within {LIMIT:?}");
        std::thread::sleep((waited / PART_OF_WAIT).clamp(LOOKS[0], LOOKS[1]));
    }
}

/// Whether two sources of one run agree; `slack` is what one of them cannot see.
#[track_caller]
pub fn agree(what: &str, ours: u64, theirs: u64, slack: u64) {
    let allowed = ours.max(theirs) / 50 + slack;
    assert!(
        ours.abs_diff(theirs) <= allowed,
        "{what}: {ours} ns and {theirs} ns differ by more than 2 % and {slack} ns"
    );
}

/// Processors' time, in nanoseconds, that went where a thread's CPU clock does not see it: to the
/// hypervisor, and to interrupts.
pub fn unseen_ns() -> u64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    // "cpu  user nice system idle iowait irq softirq steal …", in ticks of 10 ms.
    let line = stat.lines().next().unwrap_or_default();
    let figures = line.split_whitespace().skip(6).take(3);
    figures.filter_map(|figure| figure.parse::<u64>().ok()).sum::<u64>() * 10_000_000
}
