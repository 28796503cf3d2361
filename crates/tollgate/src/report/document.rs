//! The report of a session as one document: `--json` prints it, the text is rendered from it, and
//! `lens diff` reads it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::guard::GuardReport;
use crate::lens::LensReport;
use crate::plugin::PluginState;

/// The name and version of the document's schema.
pub const SCHEMA: &str = "tollgate.lens/1";

/// Times are nanoseconds. Sums over threads may exceed the elapsed time.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    pub schema: String,
    /// The command that ran, or the `lens` command that watched.
    pub command: Vec<String>,
    /// The exit status as a shell reports it (128 + N for signal N); none for `lens`.
    pub exit: Option<i32>,
    pub elapsed_ns: u64,
    /// CPU time of the command and of the children that it waited for, as the kernel accounts it;
    /// none for `lens`.
    pub user_ns: Option<u64>,
    pub system_ns: Option<u64>,
    #[serde(flatten)]
    pub lens: LensReport,
    pub in_progress: Vec<InProgress>,
    /// With `--guard`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guard: Option<GuardReport>,
    /// With `--plugin`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plugins: Vec<PluginState>,
    pub toll: Toll,
    pub losses: BTreeMap<String, u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct InProgress {
    pub tid: u32,
    pub name: String,
    pub abi: String,
    /// The time so far; none: its start was not timed.
    pub ns: Option<u64>,
}

/// The toll of the measurement.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Toll {
    pub calls: u64,
    /// The median of paired differences of getppid, and its interval; none: it was not measured.
    pub ns_per_call: Option<f64>,
    pub low: Option<f64>,
    pub high: Option<f64>,
    pub confidence: Option<f64>,
    /// "detached": in relation to no gate. "bystander": another session kept the gate attached, so
    /// the toll is in relation to what the gate costs every thread anyway.
    pub against: String,
}

impl Report {
    /// Calls that at least one extension has seen.
    pub fn calls_seen(&self) -> u64 {
        let programs = self.guard.iter().flat_map(|guard| &guard.programs);
        self.lens.calls_seen().max(programs.map(|program| program.calls).sum())
    }
}
