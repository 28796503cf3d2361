//! Requests about services to the daemon, and its replies.

use std::collections::BTreeMap;

use kernel::service::ServiceUsage;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask-services", rename_all = "kebab-case")]
pub enum ServiceRequest {
    /// Activates a rule file; without one, the daemon reads its own file again.
    Apply {
        file: Option<RuleText>,
    },
    Report,
    /// Lists all services, or one service with the threads that work for it.
    List {
        service: Option<String>,
    },
    Explain {
        who: RequestedTask,
    },
    ExplainSocket {
        socket: String,
    },
    Assign {
        who: RequestedTask,
        service: String,
    },
    /// Changes the limits of a service, if requested, and returns all limits.
    Limit {
        change: Option<LimitChange>,
    },
}

/// The key that only requests about services have: the tag of [`ServiceRequest`].
pub const REQUEST_KEY: &str = "ask-services";

/// A task, by its ID in the daemon's PID namespace, except for tasks of the requesting process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RequestedTask {
    OwnProcess,
    /// A thread of the requesting process, by its ID in its own PID namespace.
    OwnThread(u32),
    /// A process with all its threads.
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
    pub cpu_weight: Option<LimitSetting>,
    pub cpu_max: Option<LimitSetting>,
    pub memory_max: Option<LimitSetting>,
    pub tasks_max: Option<LimitSetting>,
    pub sockets_max: Option<LimitSetting>,
    pub connections_max: Option<LimitSetting>,
    pub network_max: Option<LimitSetting>,
    /// The name of an errno or of a service.
    pub over_limit: Option<String>,
}

/// A new value in the unit of the limit, or `None` to remove the service's own limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LimitSetting {
    None,
    To(u64),
}

/// `tollgate service limit --json`
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct LimitReport {
    pub schema: String,
    pub services: Vec<LimitRow>,
    /// `lift` or `keep`.
    pub at_end: String,
    #[serde(rename = "moves")]
    pub migrations: MigrationReport,
}

/// The limits of a service, and the usage of the service with those below it. A limit is null if
/// the service has none of its own.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub struct LimitRow {
    pub name: String,
    pub cpu_weight: Option<u32>,
    /// In hundredths of one processor.
    pub cpu_max_percent: Option<u32>,
    pub memory_max_bytes: Option<u64>,
    /// The memory that the service's cgroup uses now. Like `tasks`, null without a limit.
    pub memory_bytes: Option<u64>,
    pub tasks_max: Option<u64>,
    pub tasks: Option<u64>,
    pub sockets_max: Option<u64>,
    pub connections_max: Option<u64>,
    pub network_max_bytes_per_second: Option<u64>,
    /// The errno of a refused request, or the service that work over the limit goes to.
    #[serde(rename = "beyond")]
    pub over_limit: String,
    /// Open IPv4 and IPv6 sockets that the threads of the service created.
    pub sockets: u64,
    /// The TCP sockets among these that the threads connected.
    pub connections: u64,
    pub refused: u64,
    /// Requests that went to the service for work over the limit.
    pub went_over: u64,
    pub slowed_packets: u64,
    pub dropped_packets: u64,
}

/// Migrations of threads between cgroups.
#[derive(Debug, Default, Clone, Copy, Serialize, Deserialize)]
pub struct MigrationReport {
    pub moved: u64,
    pub total_ns: u64,
    pub longest_ns: u64,
    pub needless: u64,
    pub put_off: u64,
    pub failed: u64,
}

/// `tollgate service report --json` (docs/service.md).
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct ServiceReport {
    pub schema: String,
    /// RFC 3339
    pub since: String,
    pub elapsed_ns: u64,
    /// The active rule file.
    pub file: String,
    pub rules: usize,
    /// In tree order, parents first.
    pub services: Vec<ServiceRow>,
    /// The CPU time of the whole machine during `elapsed_ns`, in steps of 10 ms.
    pub machine_cpu_ns: u64,
    /// The part of `machine_cpu_ns` that belongs to no service: kernel threads, interrupts, and
    /// what ran before the daemon started to account.
    pub kernel_cpu_ns: u64,
    #[serde(rename = "moves")]
    pub migrations: MigrationReport,
    pub losses: BTreeMap<String, u64>,
}

#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub struct ServiceRow {
    pub name: String,
    /// Valid for as long as the daemon runs.
    pub id: u16,
    pub parent: Option<String>,
    pub depth: usize,
    pub processes: usize,
    pub threads: usize,
    /// Open IPv4 and IPv6 sockets that the service, or one below it, has created.
    pub sockets: u64,
    /// Sockets and connections that the service, or one below it, requested over its limits.
    pub refused: u64,
    /// The usage of the service itself, without those below it.
    #[serde(flatten, with = "UsageKeys")]
    pub used: ServiceUsage,
}

/// The keys of [`ServiceUsage`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "ServiceUsage")]
struct UsageKeys {
    cpu_ns: u64,
    wait_ns: u64,
    blocked_ns: u64,
    calls: u64,
    switches: u64,
    preemptions: u64,
    minor_faults: u64,
    major_faults: u64,
    read_bytes: u64,
    written_bytes: u64,
    storage_read_bytes: u64,
    storage_written_bytes: u64,
    received_bytes: u64,
    sent_bytes: u64,
    /// How often usage was charged to the service. This happens when a thread changes to another
    /// service, twice when it ends, and when the sender of a message is not known yet.
    #[serde(rename = "labels")]
    charges: u64,
    /// Shared replies: replies to other services that threads sent while they worked for this one,
    /// because they serve several clients at once.
    #[serde(rename = "overlaps")]
    shared_replies: u64,
}

/// `tollgate service list --json`
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct List {
    pub schema: String,
    /// All services in tree order, parents first; or only the requested one.
    pub services: Vec<ListRow>,
    /// The threads that work for the requested service.
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
    /// The service of an earlier file that it had, if a new file has removed that one. `why`,
    /// `rule` and `since_ns` are about this service then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removed: Option<String>,
    /// Whether the thread works on behalf of the service, instead of belonging to it.
    #[serde(rename = "borrowed")]
    pub is_on_behalf: bool,
    /// fork, exec, found, user, receive, open, reply, assigned, io_uring, several, limit, asked, or
    /// inherited.
    pub why: String,
    /// The rule that decided, if it is in one of the latest rulesets.
    pub rule: Option<ExplainedRule>,
    /// Nanoseconds since the thread changed to this service.
    pub since_ns: u64,
}

/// `tollgate service explain --json SOCKET`
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct SocketExplanation {
    pub schema: String,
    pub socket: String,
    pub listeners: Vec<ExplainedListener>,
    /// Connections, each with one or two ends.
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
    /// accepted, opened, neither, or unknown.
    pub role: String,
    pub processes: Vec<SocketProcess>,
    /// The service for which the last sender worked, and the thread that sent, if it still exists.
    pub sends_for: Option<String>,
    pub sender: Option<u32>,
    /// The rule that decided for the last receiver, if it is in one of the latest rulesets.
    pub rule: Option<ExplainedRule>,
}

#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedRule {
    pub file: String,
    pub line: usize,
    pub name: Option<String>,
    /// Whether an earlier ruleset had the rule. `line` is its line at that time.
    #[serde(rename = "is_former")]
    pub is_previous: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_their_key() {
        let request = serde_json::to_value(ServiceRequest::Report).expect("JSON");
        assert!(request.get(REQUEST_KEY).is_some(), "{request}");
    }
}
