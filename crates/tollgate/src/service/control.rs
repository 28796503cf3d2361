//! What the daemon is asked about services, and what it answers.

use std::collections::BTreeMap;

use kernel::services::Figures;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask-services", rename_all = "kebab-case")]
pub enum Request {
    /// Without a file, the daemon reads its own again.
    Apply {
        file: Option<RuleText>,
    },
    Report,
    Explain {
        pid: u32,
    },
    /// A process, or with `is_thread` one thread, or whoever asks.
    Assign {
        pid: Option<u32>,
        is_thread: bool,
        service: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleText {
    pub name: String,
    pub text: String,
}

/// `tollgate service report --json`: docs/service.md describes it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Report {
    pub schema: String,
    /// RFC 3339
    pub since: String,
    pub elapsed_ns: u64,
    /// The rule file in force.
    pub file: String,
    pub rules: usize,
    /// As a tree, each before those below it.
    pub services: Vec<ServiceRow>,
    /// What all processors of the machine have worked in that time, in steps of 10 ms each.
    pub machine_cpu_ns: u64,
    /// Of that, what is no service's: kernel threads and interrupts, and what ran before the daemon looked.
    pub kernel_cpu_ns: u64,
    pub losses: BTreeMap<String, u64>,
}

#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub struct ServiceRow {
    pub name: String,
    pub parent: Option<String>,
    pub depth: usize,
    pub processes: usize,
    pub threads: usize,
    #[serde(flatten)]
    pub used: Used,
}

/// Of the service itself, without those below it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    pub cpu_ns: u64,
    pub wait_ns: u64,
    pub blocked_ns: u64,
    pub calls: u64,
    pub switches: u64,
    pub preemptions: u64,
    pub minor_faults: u64,
    pub major_faults: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub storage_read_bytes: u64,
    pub storage_written_bytes: u64,
    pub received_bytes: u64,
    pub sent_bytes: u64,
    /// How often a thread has ended, or gone over to another service.
    pub labels: u64,
}

impl From<Figures> for Used {
    fn from(figures: Figures) -> Self {
        Self {
            cpu_ns: figures.cpu_ns,
            wait_ns: figures.wait_ns,
            blocked_ns: figures.blocked_ns,
            calls: figures.calls,
            switches: figures.switches,
            preemptions: figures.preemptions,
            minor_faults: figures.minor_faults,
            major_faults: figures.major_faults,
            read_bytes: figures.read_bytes,
            written_bytes: figures.written_bytes,
            storage_read_bytes: figures.storage_read_bytes,
            storage_written_bytes: figures.storage_written_bytes,
            received_bytes: figures.received_bytes,
            sent_bytes: figures.sent_bytes,
            labels: figures.labels,
        }
    }
}

/// `tollgate service explain --json`
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Explanation {
    pub schema: String,
    pub pid: u32,
    pub threads: Vec<ExplainedThread>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct ExplainedThread {
    pub tid: u32,
    pub command: String,
    pub service: String,
    /// For whom it works is somebody else's doing, and not for what it is.
    pub borrowed: bool,
    /// fork, exec, found, user, receive, open, reply, assigned, io_uring, or inherited
    pub why: String,
    /// The rule that decided, if it is still in force.
    pub rule: Option<ExplainedRule>,
    /// Nanoseconds since then.
    pub since_ns: u64,
}

#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedRule {
    pub file: String,
    pub line: usize,
    pub name: Option<String>,
}
