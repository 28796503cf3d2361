//! The command line of `tollgate daemon`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use crate::guard::{GuardOptions, Mode, StoreOption};
use crate::options::SocketOption;
use crate::pace::PacingOptions;
use crate::process_selection;

#[derive(Args)]
#[command(after_long_help = EXAMPLES)]
pub struct DaemonArguments {
    /// Only learn; learn and report anomalies; or learn, report and respond
    ///
    /// The default is watch. With --services, --pace, --plugin or --in-band, the daemon guards
    /// nothing by default.
    #[arg(long = "guard", value_enum, value_name = "MODE", require_equals = true)]
    pub mode: Option<Mode>,
    /// Activate the services and rules of this file (`tollgate service check` checks a file)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["unit", "cgroup"])]
    pub services: Option<PathBuf>,
    #[command(flatten)]
    pub pace: PacingOptions,
    /// Run this plugin at its hooks; may be repeated (`tollgate plugin load` adds others later)
    ///
    /// If several files have the same name, the later ones are named NAME-2, NAME-3 and so on.
    #[arg(long = "plugin", value_name = "FILE")]
    pub plugins: Vec<PathBuf>,
    /// With --unit or --cgroup, apply the handlers of sockets and packets of these plugins to the
    /// whole machine; with --exe, but neither of them, run these plugins for all processes
    ///
    /// Without this option, those of sockets apply to the daemon's tasks only, and a plugin with
    /// those of packets is refused, because a packet belongs to no task. With --exe, but neither
    /// --unit nor --cgroup, plugins are refused, because --exe selects only what is guarded.
    #[arg(long, requires = "plugins")]
    pub plugins_machine_wide: bool,
    /// Guard only this executable; may be repeated
    #[arg(long, value_name = "PATH")]
    pub exe: Vec<PathBuf>,
    /// Gate only the processes of this systemd unit and those that they start; may be repeated
    #[arg(long, value_name = "UNIT")]
    pub unit: Vec<String>,
    /// Gate only the processes in or below this control group and those that they start; may be
    /// repeated
    #[arg(long, value_name = "PATH", value_parser = process_selection::parse_cgroup)]
    pub cgroup: Vec<String>,
    /// Never hold processes of this executable that root or USER has started; may be repeated
    #[arg(long, value_name = "PATH[:USER]")]
    pub exempt: Vec<OsString>,
    /// Append each event to this file, as a line of JSON; `-` is stdout
    #[arg(long, value_name = "FILE")]
    pub events: Option<PathBuf>,
    /// Serve metrics for Prometheus over HTTP at this address, such as 127.0.0.1:9478
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics: Option<String>,
    /// Let each gated program read records of its own latest calls in its own memory
    /// (docs/in-band.md)
    ///
    /// Programs of all users request them at in-band.sock, in the folder of the control socket. All
    /// calls of gated programs are timed.
    #[arg(long)]
    pub in_band: bool,
    #[command(flatten)]
    pub socket: SocketOption,
    #[command(flatten)]
    pub store: StoreOption,
    #[command(flatten, next_help_heading = "Guard")]
    pub options: GuardOptions,
}

const EXAMPLES: &str = "\
Examples:
  tollgate daemon
  tollgate daemon --guard=enforce --unit nginx --unit php8.2-fpm --respond deny
  tollgate daemon --exe /usr/bin/redis-server --metrics 127.0.0.1:9478
  tollgate daemon --guard=enforce --events /var/log/tollgate.jsonl
  tollgate daemon --services /etc/tollgate/services.toml
  tollgate daemon --pace /etc/tollgate/tasks.toml
  tollgate daemon --plugin /etc/tollgate/slow-open.ec
  tollgate daemon --in-band --unit nginx";
