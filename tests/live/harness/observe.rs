//! Runs of a workload under `tollgate run` that end in a report.

use super::report::SHARED_ROWS;
use super::{Job, Report, workload};

/// Runs a workload, which must succeed, below `tollgate run`; returns the report, in which nothing
/// may be lost.
#[track_caller]
pub fn observe(options: &str, arguments: &str) -> Report {
    Job::run(options, workload(arguments)).finish().success().report().complete()
}

/// The same, but losses for these reasons are allowed.
#[track_caller]
pub fn observe_but(reasons: &[&str], options: &str, arguments: &str) -> Report {
    Job::run(options, workload(arguments)).finish().success().report().complete_but(reasons)
}

/// The same for a workload that may need more rows than exist; some calls may count in a common
/// row.
#[track_caller]
pub fn observe_crowd(options: &str, arguments: &str) -> Report {
    let job = Job::run(options, workload(arguments)).with_row_lock_exclusive();
    job.finish().success().report().complete_but(&SHARED_ROWS)
}
