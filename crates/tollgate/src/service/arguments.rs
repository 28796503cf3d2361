//! The command line of `tollgate service`.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use service::{
    MEMORY_UNIT, NETWORK_UNIT, SOCKETS, TASKS, parse_bytes, parse_percent, parse_weight,
};

use super::requests::LimitSetting;
use crate::options::{ResultOptions, SocketOption};

#[derive(Args)]
pub struct ServiceCommandLine {
    #[command(subcommand)]
    pub command: ServiceCommand,
}

impl ServiceCommandLine {
    /// Whether the command itself lifts the limits of a killed daemon.
    pub fn lifts_limits(&self) -> bool {
        matches!(self.command, ServiceCommand::Watchdog)
    }
}

#[derive(Subcommand)]
pub enum ServiceCommand {
    Check(ServiceCheckArguments),
    Apply(ApplyArguments),
    List(ServiceListArguments),
    Report(ReportArguments),
    /// Show what the services use now, live (q or Ctrl-C quits)
    Top(SocketOption),
    Explain(ExplainArguments),
    Assign(AssignArguments),
    Limit(LimitArguments),
    /// Migrate threads back to their control groups if the daemon is killed (started by the daemon)
    #[command(hide = true)]
    Watchdog,
}

/// Replace the active services and rules by those of a file
///
/// The change is atomic: each event is decided either by the old rules or by the new ones. A
/// service keeps its usage if the new file has a service of the same name. The threads and the
/// usage of a removed service go to its nearest remaining ancestor. The new rules are then applied
/// to all running threads, except those that are working on behalf of another service at that time.
#[derive(Args)]
pub struct ApplyArguments {
    /// The file; - is stdin (default: the daemon rereads the file that it was started with)
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub socket: SocketOption,
}

/// List the services, and how many processes and threads currently work for each
#[derive(Args)]
pub struct ServiceListArguments {
    /// List only this service, with its threads and the reason for each; `shared` has the threads
    /// whose work cannot be attributed
    pub service: Option<String>,
    #[command(flatten)]
    pub result: ResultOptions,
    #[command(flatten)]
    pub socket: SocketOption,
}

/// Report what each service has used since the daemon was started
///
/// Each row covers the service itself, without its children. Times are sums over its threads: on a
/// processor, waiting for one, and blocked. Bytes are counted on sockets and on disks.
#[derive(Args)]
pub struct ReportArguments {
    #[command(flatten)]
    pub result: ResultOptions,
    #[command(flatten)]
    pub socket: SocketOption,
}

/// Show which service a process works for, with the rule, time and reason; or which services use a
/// connection
#[derive(Args)]
pub struct ExplainArguments {
    /// A process or thread ID, or a socket address: 127.0.0.1:80, [::1]:80, :80, /run/a.sock, @name
    #[arg(value_name = "PID|SOCKET", value_parser = what)]
    pub what: ExplainTarget,
    #[command(flatten)]
    pub result: ResultOptions,
    #[command(flatten)]
    pub socket: SocketOption,
}

#[derive(Debug, Clone)]
pub enum ExplainTarget {
    Process(u32),
    Socket(String),
}

fn what(text: &str) -> Result<ExplainTarget, &'static str> {
    match text.parse() {
        Ok(pid) => Ok(ExplainTarget::Process(pid)),
        Err(_) if service::listen(text).is_some() => Ok(ExplainTarget::Socket(text.into())),
        Err(_) => Err(
            "expected a process ID, or a socket such as 127.0.0.1:80, [::1]:80, :80, /run/a.sock \
            or @name",
        ),
    }
}

fn process_number(text: &str) -> Result<u32, &'static str> {
    text.parse().map_err(|_| "expected a process ID")
}

/// Assign a process to a service, whichever service it works for now
///
/// This includes all its threads and the processes that it starts from then on. The assignment
/// lasts until a rule on a message assigns another service.
#[derive(Args)]
pub struct AssignArguments {
    /// The process
    #[arg(value_parser = process_number)]
    pub pid: u32,
    /// The service
    pub service: String,
    /// Assign only the thread whose ID is PID
    #[arg(long)]
    pub thread: bool,
    #[command(flatten)]
    pub socket: SocketOption,
}

/// Show the limits of services and their current use, or change the limits of one service until the
/// next `apply`
///
/// A limit applies to the service together with all its children. The value none removes a limit.
/// The daemon's file of services is not changed.
#[derive(Args)]
#[command(after_long_help = LIMIT_EXAMPLES)]
pub struct LimitArguments {
    /// The service (default: show all services that have limits)
    pub service: Option<String>,
    #[command(flatten, next_help_heading = "Limits")]
    pub change: ChangeArguments,
    #[command(flatten)]
    pub result: ResultOptions,
    #[command(flatten)]
    pub socket: SocketOption,
}

#[derive(Args)]
#[group(requires = "service")]
pub struct ChangeArguments {
    /// Weight for processor time under contention, 1 to 10000; a service without one has 100
    #[arg(long, value_name = "N", value_parser = setting(|text| parse_weight(text).map(u64::from)))]
    pub cpu_weight: Option<LimitSetting>,
    /// Maximum processor time, as a percentage of one processor: 50%, 150%
    #[arg(
        long,
        value_name = "PERCENT",
        value_parser = setting(|text| parse_percent(text).map(u64::from))
    )]
    pub cpu_max: Option<LimitSetting>,
    /// Maximum memory: 512M, 2G
    #[arg(
        long,
        value_name = "BYTES",
        value_parser = setting(|text| parse_bytes(text, MEMORY_UNIT))
    )]
    pub memory_max: Option<LimitSetting>,
    /// Maximum number of processes and threads
    #[arg(long, value_name = "N", value_parser = setting(|text| parse_count(text, &TASKS)))]
    pub tasks_max: Option<LimitSetting>,
    /// Maximum number of IPv4 and IPv6 sockets
    #[arg(long, value_name = "N", value_parser = setting(|text| parse_count(text, &SOCKETS)))]
    pub sockets_max: Option<LimitSetting>,
    /// Maximum number of open TCP connections that the service itself has opened; accepted ones do
    /// not count
    #[arg(long, value_name = "N", value_parser = setting(|text| parse_count(text, &SOCKETS)))]
    pub connections_max: Option<LimitSetting>,
    /// Maximum bytes sent per second: 500K, 10M
    #[arg(
        long,
        value_name = "BYTES",
        value_parser = setting(|text| parse_bytes(text, NETWORK_UNIT))
    )]
    pub network_max: Option<LimitSetting>,
    /// What happens to a call that would exceed sockets-max or connections-max: it fails with this
    /// errno, or its thread works for this service from then on (the value none stands for EAGAIN)
    #[arg(long, value_name = "ERRNO|SERVICE")]
    pub over_limit: Option<String>,
}

/// Parses a limit as the parser of a rule file does, or "none".
fn setting(
    parse: impl Fn(&str) -> Result<u64, String> + Clone + Send + Sync + 'static,
) -> impl Fn(&str) -> Result<LimitSetting, String> + Clone + Send + Sync + 'static {
    move |text| match text {
        "none" => Ok(LimitSetting::None),
        _ => parse(text).map(LimitSetting::To),
    }
}

fn parse_count(text: &str, range: &RangeInclusive<u32>) -> Result<u64, String> {
    let count = text.parse().ok().filter(|count| range.contains(count)).map(u64::from);
    count.ok_or_else(|| format!("expected an integer from {} to {}", range.start(), range.end()))
}

const LIMIT_EXAMPLES: &str = "\
Examples:
  tollgate service limit
  tollgate service limit shop --cpu-weight 50 --cpu-max 150%
  tollgate service limit shop --connections-max 100 --over-limit ECONNREFUSED
  tollgate service limit shop --cpu-max none";

/// Check a file of services and rules, and show the rules in the order of their precedence
///
/// Nothing is activated, and root is not needed. All problems that can be detected are reported at
/// once, with line and column; the exit status is then 125.
#[derive(Args)]
#[command(after_long_help = CHECK_EXAMPLES)]
pub struct ServiceCheckArguments {
    /// The file (- for stdin)
    pub file: PathBuf,
    #[command(flatten)]
    pub result: ResultOptions,
}

const CHECK_EXAMPLES: &str = r#"A file:
  [service.shop]                   # a service; its parent is root unless parent = "NAME" is given
  [service.blog]

  [[rule]]                         # requests to this port belong to the shop
  exe = "/usr/sbin/nginx"
  listen = ":8081"
  belongs-to = "shop"

  [[rule]]                         # a back end works for the service of its client
  exe = "/usr/sbin/php-fpm8.2"
  adopts-peer = true

Conditions (a rule has at least one, unless it has adopts-peer or starts-below; all must hold):
  exe      path of the program
  user     name or number of the effective user
  unit     systemd's unit: nginx.service
  cgroup   path of the control group, or of one of its ancestors, without /sys/fs/cgroup
  service  the service that the thread works for; for a service that a rule started, its parent
  listen   local address of the connection: 127.0.0.1:80, [::1]:80, :80, 127.0.0.1, /run/a.sock,
           @name
  client   address or network of the peer: 10.0.0.0/8
  peer     the service of the peer
  file     path of the opened file, or of one of its parent folders

Limits of a service together with all its children:
  cpu-weight = 200              weight for processor time under contention; without it, 100
  cpu-max = "150%"              processor time, as a percentage of one processor
  memory-max = "512M"
  tasks-max = 100               processes and threads
  sockets-max = 1000            IPv4 and IPv6 sockets
  connections-max = 100         open TCP connections that the service itself has opened
  network-max = "10M"           bytes sent per second
  over-limit-errno = "EMFILE"   what a call for one more socket or connection returns (default:
                                EAGAIN), or
  over-limit-service = "NAME"   the service that the thread then works for
[limits] at-end = "keep" leaves threads in their control groups when the daemon ends.

Actions (a rule has exactly one):
  belongs-to = "NAME"              the thread works for this service
  inherits = true                  it keeps the service that it has
  adopts-peer = true               it works for the service of its peer
  starts-below = "NAME", each = "user" (or "unit", "exe", "client")
                                   a new service below this one is started for each user

`on` lists the events at which a rule is applied: one or more of "fork", "exec", "found" (the
process was already running), "user" (the effective user has changed), "receive" and "open".
Without `on`, rules with listen, client, peer or adopts-peer apply at receive, rules with file at
open, and all other rules at exec, found and user. At exec, found and user, a rule without `on` does
not apply to a thread that `tollgate service assign` has assigned, or that works on behalf of
another service.

If several rules match, the one with the highest priority = N (default: 0) decides. Among equal
priorities, the rule with more conditions decides. If their numbers are equal, too, go through this
list: file, peer, client, listen, service, exe, unit, cgroup, user. At the first condition that only
one of the rules has, that rule decides.

Examples:
  tollgate service check services.toml
  tollgate service check --json services.toml | jq '.problems[]'"#;
