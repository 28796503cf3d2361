//! The command line of `tollgate service`.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use service::{MEMORY_UNIT, NETWORK_UNIT, SOCKETS, TASKS, parse_bytes, parse_percent, parse_weight};

use super::control::Setting;
use crate::cli::ResultOptions;
use crate::daemon::SocketOption;

#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    Check(CheckArguments),
    Apply(ApplyArguments),
    List(ListArguments),
    Report(ReportArguments),
    /// Show what the services use now, live (q or Ctrl-C quits)
    Top(SocketOption),
    Explain(ExplainArguments),
    Assign(AssignArguments),
    Limit(LimitArguments),
    /// What a daemon starts to put threads back into their control groups, should it be killed
    #[command(hide = true)]
    Warden,
}

/// Put a file of services and rules in force, in place of the one before
///
/// At one stroke: an event is decided by the old rules or by the new ones. Services keep their figures by their names;
/// who works for one that is gone works for the one above it. The new rules are asked of all that run, but not of who
/// works for somebody else at that time.
#[derive(Args)]
pub struct ApplyArguments {
    /// The file (- for stdin); without it, the daemon reads the one that it was started with again
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub socket: SocketOption,
}

/// List the services, and how many processes and threads work for each now
#[derive(Args)]
pub struct ListArguments {
    /// Only this one, and who works for it and why: shared, say, for which works who cannot be followed
    pub service: Option<String>,
    #[command(flatten)]
    pub result: ResultOptions,
    #[command(flatten)]
    pub socket: SocketOption,
}

/// Report what each service has used since the daemon was started
///
/// Each row is of the service itself, without those below it. Times are sums over its threads: on a processor, waiting for
/// one, and blocked. Bytes are those over sockets, and to and from disks.
#[derive(Args)]
pub struct ReportArguments {
    #[command(flatten)]
    pub result: ResultOptions,
    #[command(flatten)]
    pub socket: SocketOption,
}

/// Say for which service a process works, which rule decided that, when and why; or for whom a connection is used
#[derive(Args)]
pub struct ExplainArguments {
    /// The process, or one thread; or an end of connections: 127.0.0.1:80, [::1]:80, :80, /run/a.sock, @name
    #[arg(value_name = "PID|SOCKET", value_parser = what)]
    pub what: What,
    #[command(flatten)]
    pub result: ResultOptions,
    #[command(flatten)]
    pub socket: SocketOption,
}

#[derive(Debug, Clone)]
pub enum What {
    Process(u32),
    Socket(String),
}

fn what(text: &str) -> Result<What, &'static str> {
    match text.parse() {
        Ok(pid) => Ok(What::Process(pid)),
        Err(_) if service::listen(text).is_some() => Ok(What::Socket(text.into())),
        Err(_) => {
            Err("this is neither the number of a process nor a socket, such as 127.0.0.1:80, [::1]:80, :80, \
                       /run/a.sock or @name")
        }
    }
}

fn process_number(text: &str) -> Result<u32, &'static str> {
    text.parse().map_err(|_| "this is not the number of a process")
}

/// Give a process to a service, whatever it works for now
///
/// With all its threads, and what it starts from then on. It keeps the service until a rule on a message gives it to
/// another one.
#[derive(Args)]
pub struct AssignArguments {
    /// The process
    #[arg(value_parser = process_number)]
    pub pid: u32,
    /// The service
    pub service: String,
    /// Only this thread: PID is its number
    #[arg(long)]
    pub thread: bool,
    #[command(flatten)]
    pub socket: SocketOption,
}

/// Show the limits of services and what is used of them, or change those of one until the next `apply`
///
/// A limit is of the service with all that are below it. none takes a limit away. The file is not changed.
#[derive(Args)]
#[command(after_long_help = LIMIT_EXAMPLES)]
pub struct LimitArguments {
    /// The service; without it, all that have limits are shown
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
    /// Share of the processors where several want them, 1 to 10000; everybody else has 100
    #[arg(long, value_name = "N", value_parser = setting(|text| parse_weight(text).map(u64::from)))]
    pub cpu_weight: Option<Setting>,
    /// Processors' time at most, of one processor: 50%, 150%
    #[arg(long, value_name = "PERCENT", value_parser = setting(|text| parse_percent(text).map(u64::from)))]
    pub cpu_max: Option<Setting>,
    /// Memory at most: 512M, 2G
    #[arg(long, value_name = "BYTES", value_parser = setting(|text| parse_bytes(text, MEMORY_UNIT)))]
    pub memory_max: Option<Setting>,
    /// Processes and threads at most
    #[arg(long, value_name = "N", value_parser = setting(|text| parse_count(text, &TASKS)))]
    pub tasks_max: Option<Setting>,
    /// Sockets of IPv4 and IPv6 at most
    #[arg(long, value_name = "N", value_parser = setting(|text| parse_count(text, &SOCKETS)))]
    pub sockets_max: Option<Setting>,
    /// Connected sockets of TCP at most
    #[arg(long, value_name = "N", value_parser = setting(|text| parse_count(text, &SOCKETS)))]
    pub connections_max: Option<Setting>,
    /// Bytes a second to send at most: 500K, 10M
    #[arg(long, value_name = "BYTES", value_parser = setting(|text| parse_bytes(text, NETWORK_UNIT)))]
    pub network_max: Option<Setting>,
    /// What a call that would have more sockets or connections fails with (EAGAIN with none), or the service that does
    /// such work
    #[arg(long, value_name = "ERRNO|SERVICE")]
    pub beyond: Option<String>,
}

/// As the parser of a file reads it, or "none".
fn setting(
    parse: impl Fn(&str) -> Result<u64, String> + Clone + Send + Sync + 'static,
) -> impl Fn(&str) -> Result<Setting, String> + Clone + Send + Sync + 'static {
    move |text| match text {
        "none" => Ok(Setting::None),
        _ => parse(text).map(Setting::To),
    }
}

fn parse_count(text: &str, range: &RangeInclusive<u32>) -> Result<u64, String> {
    let count = text.parse().ok().filter(|count| range.contains(count)).map(u64::from);
    count.ok_or_else(|| format!("it is an integer from {} to {}", range.start(), range.end()))
}

const LIMIT_EXAMPLES: &str = "\
Examples:
  tollgate service limit
  tollgate service limit shop --cpu-weight 50 --cpu-max 150%
  tollgate service limit shop --connections-max 100 --beyond ECONNREFUSED
  tollgate service limit shop --cpu-max none";

/// Check a file of services and rules, and show them in the order in which they decide
///
/// Nothing is put in force, and no root is needed. Problems are told with their lines and columns, all that can be seen
/// at once; then the exit status is 125.
#[derive(Args)]
#[command(after_long_help = CHECK_EXAMPLES)]
pub struct CheckArguments {
    /// The file (- for stdin)
    pub file: PathBuf,
    #[command(flatten)]
    pub result: ResultOptions,
}

const CHECK_EXAMPLES: &str = r#"A file:
  [service.shop]                   # a service; below root, where no parent = "NAME" is given
  [service.blog]

  [[rule]]                         # requests to this port are the shop's
  exe = "/usr/sbin/nginx"
  listen = ":8081"
  belongs-to = "shop"

  [[rule]]                         # a back end works for whom it receives from
  exe = "/usr/sbin/php-fpm8.2"
  adopts-peer = true

Conditions, of which a rule has one or more (with adopts-peer and starts-below it may have none),
and all are to be so:
  exe      path of the program
  user     name or number of the effective user
  unit     systemd's unit: nginx.service
  cgroup   path of a control group, or of one above it, without /sys/fs/cgroup
  service  for which the thread works, or below which its service was started
  listen   its own end of a connection: 127.0.0.1:80, [::1]:80, :80, 127.0.0.1, /run/a.sock, @name
  client   address or network of the other end: 10.0.0.0/8
  peer     the service of the other end
  file     path of an opened file, or of a folder above it

Limits of a service, together with all below it:
  cpu-weight = 200        share of the processors where several want them; all others have 100
  cpu-max = "150%"        processors' time, of one processor
  memory-max = "512M"
  tasks-max = 100         processes and threads
  sockets-max = 1000      of IPv4 and IPv6
  connections-max = 100   of TCP, that it has opened
  network-max = "10M"     bytes a second to send
  beyond-errno = "EMFILE"   what a call for one more socket or connection fails with (EAGAIN), or
  beyond-service = "NAME"   the service whose work it then is
And [limits] at-end = "keep": at the daemon's end members stay in their control groups.

What follows, one of:
  belongs-to = "NAME"              the thread works for this service
  inherits = true                  it works for whom it worked before
  adopts-peer = true               it works for whom the other end works
  starts-below = "NAME", each = "user" (unit, exe, client)
                                   for each user a service of its own is started, below this one

on says when a rule is asked: one or several of "fork", "exec", "found" (it runs already), "user"
(another effective user), "receive" and "open". Without it, that is receive with listen, client,
peer or adopts-peer, open with file, and otherwise exec, found and user, but then not of who works
for somebody else at that time.

Where several rules fit, the one of the highest priority = N (default: 0) decides; of equal ones,
that with more conditions; of these, that with a file, peer, client, listen, service, exe, unit,
cgroup or user, in this order.

Examples:
  tollgate service check services.toml
  tollgate service check --json services.toml | jq '.problems[]'"#;
