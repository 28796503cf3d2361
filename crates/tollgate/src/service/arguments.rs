//! The command line of `tollgate service`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::cli::ResultOptions;
use crate::daemon::SocketOption;

/// Virtual services: whose work a thread does, and what that uses
///
/// `tollgate daemon --services FILE` puts services and rules in force; all but `check` ask it.
#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    Check(CheckArguments),
    Apply(ApplyArguments),
    /// List the services, and how many processes and threads work for each now
    List(SocketOption),
    Report(ReportArguments),
    /// Show what the services use now, live (q or Ctrl-C quits)
    Top(SocketOption),
    Explain(ExplainArguments),
    Assign(AssignArguments),
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

/// Say for which service a process works, which rule decided that, when and why
#[derive(Args)]
pub struct ExplainArguments {
    /// The process, or one thread
    pub pid: u32,
    #[command(flatten)]
    pub result: ResultOptions,
    #[command(flatten)]
    pub socket: SocketOption,
}

/// Give a process to a service, whatever it works for now
///
/// With all its threads, and what it starts from then on. It keeps the service until a rule on a message gives it to
/// another one.
#[derive(Args)]
pub struct AssignArguments {
    /// The process
    pub pid: u32,
    /// The service
    pub service: String,
    /// Only this thread: PID is its number
    #[arg(long)]
    pub thread: bool,
    #[command(flatten)]
    pub socket: SocketOption,
}

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
