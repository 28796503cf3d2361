//! The JSON document, as a client reads it.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

#[derive(Debug, Deserialize)]
pub struct Report {
    pub schema: String,
    pub command: Vec<String>,
    pub exit: Option<i32>,
    pub elapsed_ns: u64,
    pub calls: Vec<Call>,
    #[serde(default)]
    pub io_uring: Vec<RingRequest>,
    pub account: Option<ThreadAccount>,
    #[serde(default)]
    pub groups: Vec<RowReport>,
    #[serde(default)]
    pub files: Vec<FileCalls>,
    #[serde(default)]
    pub slow: Vec<SlowCall>,
    pub in_progress: Vec<InProgress>,
    pub toll: Toll,
    pub losses: BTreeMap<String, u64>,
    #[serde(default)]
    pub notes: Vec<String>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Call {
    pub name: String,
    pub abi: String,
    pub count: u64,
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
    pub blocked_in: Vec<BlockedIn>,
    #[serde(default)]
    pub denied: u64,
    #[serde(default)]
    pub unfinished: u64,
    #[serde(default)]
    pub untimed: u64,
    pub wall_interval_ns: Option<WallInterval>,
    pub histogram: Option<Vec<HistogramOctave>>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct HistogramOctave {
    pub from_ns: u64,
    pub to_ns: Option<u64>,
    pub count: u64,
}

#[derive(Debug, Clone, Deserialize)]
pub struct RingRequest {
    pub name: String,
    pub count: u64,
    pub errors: BTreeMap<String, u64>,
    pub wall_ns: u64,
    pub max_ns: u64,
    #[serde(default)]
    pub in_flight: u64,
    #[serde(default)]
    pub silent: u64,
}

#[derive(Debug, Clone, Deserialize)]
pub struct ThreadAccount {
    pub threads: u64,
    pub lifetime_ns: u64,
    pub calls_ns: u64,
    pub cpu_ns: u64,
    pub processor_ns: u64,
    pub user_ticks: u64,
    pub system_ticks: u64,
    pub user: Option<UserTime>,
    pub runqueue_ns: u64,
    pub faulting_ns: u64,
    pub asleep_ns: u64,
    pub stopped_ns: u64,
    pub held_ns: u64,
    pub throttled_ns: u64,
    pub unaccounted_ns: u64,
    pub minor_faults: u64,
    pub major_faults: u64,
}

#[derive(Debug, Clone, Deserialize)]
pub struct UserTime {
    pub ns: u64,
    pub low_ns: u64,
    pub high_ns: u64,
}

#[derive(Debug, Clone, Deserialize)]
pub struct WallInterval {
    pub low: u64,
    pub high: u64,
}

#[derive(Debug, Clone, Deserialize)]
pub struct BlockedIn {
    pub function: String,
    pub ns: u64,
    pub count: u64,
    #[serde(default)]
    pub woken_by: Vec<WokenBy>,
    #[serde(default)]
    pub locks: Vec<LockWait>,
}

#[derive(Debug, Deserialize)]
pub struct RowReport {
    pub pid: u32,
    pub tid: Option<u32>,
    pub command: String,
    pub elapsed_ns: u64,
    pub calls: Vec<Call>,
    #[serde(default)]
    pub io_uring: Vec<RingRequest>,
    pub account: Option<ThreadAccount>,
    #[serde(default)]
    pub files: Vec<FileCalls>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct FileCalls {
    pub name: String,
    pub kind: String,
    pub files: u64,
    pub calls: u64,
    pub errors: u64,
    pub wall_ns: u64,
    pub blocked_ns: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    #[serde(default)]
    pub shared_calls: u64,
    #[serde(default)]
    pub shared_wall_ns: u64,
    pub by_call: Vec<CallOnFile>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct CallOnFile {
    pub name: String,
    pub count: u64,
    pub wall_ns: u64,
}

impl RowReport {
    pub fn count(&self, name: &str) -> u64 {
        let calls = self.calls.iter().filter(|call| call.name == name);
        calls.map(|call| call.count).sum()
    }
}

#[derive(Debug, Deserialize)]
pub struct SlowCall {
    pub at_ns: u64,
    pub pid: u32,
    pub tid: u32,
    pub command: String,
    pub name: String,
    pub call: String,
    pub result: String,
    pub wall_ns: u64,
    pub cpu_ns: u64,
    pub blocked_ns: u64,
    pub runqueue_ns: u64,
    pub kernel_stack: Vec<String>,
    pub user_stack: Vec<String>,
    pub why: Option<SlowWhy>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Party {
    pub kind: String,
    #[serde(default)]
    pub program: String,
    #[serde(default)]
    pub thread: String,
    pub pid: Option<u32>,
    pub tid: Option<u32>,
    pub call: Option<String>,
    #[serde(default)]
    pub is_asleep: bool,
    pub function: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct WokenBy {
    #[serde(flatten)]
    pub party: Party,
    pub ns: u64,
    pub count: u64,
}

#[derive(Debug, Clone, Deserialize)]
pub struct LockWait {
    pub lock: String,
    pub holder: Option<Party>,
    pub ns: u64,
}

#[derive(Debug, Deserialize)]
pub struct SlowWhy {
    pub slept_ns: u64,
    pub woken_by: Party,
    pub lock: Option<SlowLock>,
    #[serde(default)]
    pub chain: Vec<ChainedSleep>,
}

#[derive(Debug, Deserialize)]
pub struct SlowLock {
    pub lock: String,
    pub holder: Option<Party>,
}

#[derive(Debug, Deserialize)]
pub struct ChainedSleep {
    pub sleeper: Party,
    pub slept_ns: u64,
    pub call: String,
    pub woken_by: Party,
}

#[derive(Debug, Deserialize)]
pub struct InProgress {
    pub tid: u32,
    pub name: String,
    pub ns: Option<u64>,
}

#[derive(Debug, Deserialize)]
pub struct Toll {
    pub calls: u64,
    pub ns_per_call: Option<f64>,
    pub low: Option<f64>,
    pub high: Option<f64>,
}

/// Name and ABI of a call.
pub type CallKey = (String, String);

pub const X86_64: &str = "x86-64";

/// Calls in progress while the gate's programs change, which happens only if a session needs more
/// of the gate.
pub const AMBIGUOUS: &str = "calls not attributable at a change of the gate's generation";
/// Time in which a newer generation was active whose only holder had been killed.
pub const GAPS: &str = "gaps after the process that held the gate was killed";
pub const THREADS_FULL: &str = "threads not gated (table full)";
/// These losses affect the assignment of calls to rows, not their counts.
pub const SHARED_ROWS: [&str; 2] = [
    "calls counted in their session's common row (table full)",
    "groups merged into another (table full)",
];

/// Checks that nothing was lost, except for calls that other tests made ambiguous because they need
/// more of the gate. tests/alone checks that a single run loses nothing for that reason.
#[track_caller]
pub fn none_lost(document: &serde_json::Value) {
    let mut losses = document["losses"].as_object().expect("losses").keys();
    let other = losses.find(|reason| *reason != AMBIGUOUS);
    assert!(other.is_none(), "losses: {}", document["losses"]);
}

impl Report {
    #[track_caller]
    pub fn read(path: &Path) -> Self {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) => panic!("there is no report: {error}"),
        };
        let report: Self = match serde_json::from_str(&text) {
            Ok(report) => report,
            Err(error) => panic!("{error} in the report {text:?}"),
        };
        report.check();
        report
    }

    /// Checks what holds for every report.
    #[track_caller]
    fn check(&self) {
        assert_eq!(self.schema, "tollgate.lens/1");
        let mut seen = 0;
        for call in &self.calls {
            call.check();
            seen += call.count + call.unfinished;
        }
        assert_eq!(self.toll.calls, seen, "calls seen");
        self.groups.iter().flat_map(|row| &row.calls).for_each(Call::check);
    }

    /// Checks that nothing was lost.
    #[track_caller]
    pub fn complete(self) -> Self {
        self.complete_but(&[])
    }

    /// Checks that losses have only these reasons and those that [`none_lost`] allows.
    #[track_caller]
    pub fn complete_but(self, reasons: &[&str]) -> Self {
        let mut others = self.losses.keys().filter(|reason| *reason != AMBIGUOUS);
        let other = others.find(|reason| !reasons.contains(&reason.as_str()));
        assert!(other.is_none(), "losses: {:?}", self.losses);
        self
    }

    /// The call of this name that 64-bit programs make.
    #[track_caller]
    pub fn call(&self, name: &str) -> &Call {
        self.call_of(name, X86_64)
    }

    #[track_caller]
    pub fn call_of(&self, name: &str, abi: &str) -> &Call {
        match self.find(name, abi) {
            Some(call) => call,
            None => panic!("no call of {name} ({abi}) was reported: {:?}", self.counts()),
        }
    }

    pub fn find(&self, name: &str, abi: &str) -> Option<&Call> {
        self.calls.iter().find(|call| call.name == name && call.abi == abi)
    }

    /// How often the call returned.
    pub fn count(&self, name: &str) -> u64 {
        self.find(name, X86_64).map_or(0, |call| call.count)
    }

    pub fn unfinished(&self, name: &str) -> u64 {
        self.find(name, X86_64).map_or(0, |call| call.unfinished)
    }

    /// Returned calls, and how many of them failed.
    pub fn counts(&self) -> BTreeMap<CallKey, (u64, u64)> {
        self.calls
            .iter()
            .filter(|call| call.count > 0)
            .map(|call| {
                let key = (call.name.clone(), call.abi.clone());
                (key, (call.count, call.errors.values().sum()))
            })
            .collect()
    }
}

impl Call {
    #[track_caller]
    fn check(&self) {
        assert!(self.count + self.unfinished > 0, "{self:?}");
        assert!(self.denied + self.untimed <= self.count, "{self:?}");
        assert!(self.errors.values().sum::<u64>() <= self.count, "{self:?}");
        let percentiles = [self.p50_ns, self.p95_ns, self.p99_ns, self.max_ns];
        assert!(percentiles.is_sorted(), "{self:?}");
        if self.untimed == 0 {
            let parts = self.cpu_ns + self.blocked_ns + self.runqueue_ns;
            assert_eq!(self.wall_ns, parts, "{self:?}");
            assert!(self.max_ns <= self.wall_ns, "{self:?}");
            assert!(self.wall_ns <= self.max_ns * self.count, "{self:?}");
        }
        let sites: u64 = self.blocked_in.iter().map(|site| site.ns).sum();
        let rounding = self.blocked_in.len() as u64;
        assert!(sites <= self.blocked_ns + rounding, "{self:?}");
    }

    /// Fraction of the blocked time that was spent in functions whose name contains `part`.
    pub fn blocked_share(&self, part: &str) -> f64 {
        let inside = |site: &&BlockedIn| site.function.contains(part);
        let ns: u64 = self.blocked_in.iter().filter(inside).map(|site| site.ns).sum();
        ns as f64 / self.blocked_ns.max(1) as f64
    }
}
