//! What the daemon is asked about services, and what it answers.

use std::collections::BTreeMap;

use kernel::services::Figures;
use serde::{Deserialize, Serialize};

use super::limits::Moves;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask-services", rename_all = "kebab-case")]
pub enum Request {
    /// Without a file, the daemon reads its own again.
    Apply {
        file: Option<RuleText>,
    },
    Report,
    /// All services; or one, with who works for it.
    List {
        service: Option<String>,
    },
    Explain {
        who: Who,
    },
    ExplainSocket {
        socket: String,
    },
    Assign {
        who: Who,
        service: String,
    },
    /// All limits; before that, those of a service are changed.
    Limit {
        change: Option<LimitChange>,
    },
}

/// By numbers of the daemon's PID namespace, but for whoever asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Who {
    OwnProcess,
    /// By its number in its own PID namespace.
    OwnThread(u32),
    /// With all its threads.
    Process(u32),
    Thread(u32),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleText {
    pub name: String,
    pub text: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitChange {
    pub service: String,
    pub cpu_weight: Option<Setting>,
    pub cpu_max: Option<Setting>,
    pub memory_max: Option<Setting>,
    pub tasks_max: Option<Setting>,
    pub sockets_max: Option<Setting>,
    pub connections_max: Option<Setting>,
    pub network_max: Option<Setting>,
    /// The name of an errno, or of a service.
    pub beyond: Option<String>,
}

/// In the unit of the limit, or none of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Setting {
    None,
    To(u64),
}

/// `tollgate service limit --json`
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct LimitReport {
    pub schema: String,
    pub services: Vec<LimitRow>,
    /// lift or keep
    pub at_end: String,
    pub moves: MovesRow,
}

/// Of a service with those below it; limits are its own, and null where it has none.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub struct LimitRow {
    pub name: String,
    pub cpu_weight: Option<u32>,
    /// Hundredths of one processor.
    pub cpu_max_percent: Option<u32>,
    pub memory_max_bytes: Option<u64>,
    /// That its group has now, where it is limited; also tasks.
    pub memory_bytes: Option<u64>,
    pub tasks_max: Option<u64>,
    pub tasks: Option<u64>,
    pub sockets_max: Option<u64>,
    pub connections_max: Option<u64>,
    pub network_max_bytes_per_second: Option<u64>,
    /// The errno, or the service that then does the work.
    pub beyond: String,
    /// Made by its threads, and still open: of IPv4 and IPv6.
    pub sockets: u64,
    /// Of these, TCP's that were connected by them.
    pub connections: u64,
    pub refused: u64,
    /// To the service that does what is beyond.
    pub went_over: u64,
    pub slowed_packets: u64,
    pub dropped_packets: u64,
}

/// Threads that were moved between control groups.
#[derive(Debug, Default, Clone, Copy, Serialize, Deserialize)]
pub struct MovesRow {
    pub moved: u64,
    pub total_ns: u64,
    pub longest_ns: u64,
    pub needless: u64,
    pub put_off: u64,
    pub failed: u64,
}

impl From<Moves> for MovesRow {
    fn from(moves: Moves) -> Self {
        let Moves { moved, total_ns, longest_ns, needless, put_off, failed } = moves;
        Self { moved, total_ns, longest_ns, needless, put_off, failed }
    }
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
    pub moves: MovesRow,
    pub losses: BTreeMap<String, u64>,
}

#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub struct ServiceRow {
    pub name: String,
    /// For as long as the daemon runs.
    pub id: u16,
    pub parent: Option<String>,
    pub depth: usize,
    pub processes: usize,
    pub threads: usize,
    /// That it, or a service below it, has made and not closed: of IPv4 and IPv6.
    pub sockets: u64,
    /// Sockets and connections that it, or one below it, was to have beyond its limits.
    pub refused: u64,
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
    /// Answers to others that were sent by threads which worked for it by then: they serve several at once.
    pub overlaps: u64,
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
            overlaps: figures.overlaps,
        }
    }
}

/// `tollgate service list --json`
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct List {
    pub schema: String,
    /// As a tree, each before those below it; or the one that was asked for.
    pub services: Vec<ListRow>,
    /// That work for the one that was asked for.
    pub threads: Vec<ExplainedThread>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct ListRow {
    pub name: String,
    pub parent: Option<String>,
    pub depth: usize,
    pub processes: usize,
    pub threads: usize,
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
    /// fork, exec, found, user, receive, open, reply, assigned, io_uring, several, limit, asked, or inherited
    pub why: String,
    /// The rule that decided, if it is one of the latest files'.
    pub rule: Option<ExplainedRule>,
    /// Nanoseconds since then.
    pub since_ns: u64,
}

/// `tollgate service explain --json SOCKET`
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct SocketExplanation {
    pub schema: String,
    pub socket: String,
    pub listeners: Vec<ExplainedListener>,
    /// Each with one or two ends.
    pub connections: Vec<Vec<ExplainedEnd>>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct ExplainedListener {
    pub socket: String,
    pub processes: Vec<SocketProcess>,
}

#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketProcess {
    pub pid: u32,
    pub command: String,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct ExplainedEnd {
    pub socket: String,
    /// accepted, opened, neither, or unknown
    pub role: String,
    pub processes: Vec<SocketProcess>,
    /// For whom who sent last by it did so; the thread, if it is still there.
    pub sends_for: Option<String>,
    pub sender: Option<u32>,
    /// The rule that has decided for who received by it, if it is one of the latest files'.
    pub rule: Option<ExplainedRule>,
}

#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedRule {
    pub file: String,
    pub line: usize,
    pub name: Option<String>,
    /// The file was applied anew since: the line is the one that the rule had then.
    pub is_former: bool,
}
