//! The command line of `tollgate guard`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};

use super::replay::Model;
use crate::cli::{ResultOptions, duration};
use crate::daemon::SocketOption;

#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    Replay(ReplayArguments),
    /// Show the stored baselines of programs, or one of them with which calls follow which
    Show(ShowArguments),
    /// Write baselines to one document, for another machine or as a copy
    Export(ExportArguments),
    /// Add exported baselines to the stored ones
    ///
    /// What either knows is known afterwards, the counters add up, and the state is the less sure one. What
    /// has nothing new changes nothing. A line a baseline says what was done. If one of the files cannot be used,
    /// nothing is changed. A daemon that uses the store goes by them at once.
    Import(ImportArguments),
    /// Merge exported baselines, those of the same program by what either knows
    Merge(MergeArguments),
    /// Make what a program's baseline has learned its normal behaviour, at once
    ///
    /// From now on, calls are tested against what was learned until now and what was normal before; what is new is an
    /// anomaly. A baseline becomes normal by itself when nothing new came for long; use this when you know that the
    /// program has shown all that it does, or that what it did lately was good and is to be normal, too. A `tollgate run` in
    /// which it still learns stores that at its end: end it before.
    Normalize(Programs),
    /// Let a program do what it did not do before: its baseline is no longer normal, and learns
    ///
    /// Nothing is forgotten, and its anomalies are no longer counted; it becomes normal again when nothing new came
    /// for long. Use this when a program is slowed down though it does nothing wrong, such as after a change of its
    /// configuration.
    Tolerize(Programs),
    /// Forget what a program's baseline has learned, and keep what is normal
    ///
    /// It learns from nothing, so what the program did lately does not become normal. Use this when a program
    /// was attacked, or misused, while its baseline learned. A `tollgate run` that guards the program at the moment stores
    /// at its end all that it knows: end it before.
    Sensitize(Programs),
    /// Delete a program's baseline
    ///
    /// The program is unknown from then on, as if it had never been seen. Use this when its baseline is of
    /// no use any more: `tollgate guard export` keeps a copy. A `tollgate run` that guards the program at the moment
    /// stores at its end all that it knows: end it before.
    Reset(Programs),
    /// Tell what the daemon guards, and whom it holds
    Status(StatusArguments),
    /// Show programs, who is held, and the latest unusual calls, live
    Top(SocketOption),
    /// Print the unusual calls that the daemon saw, at most the latest 10,000
    Events(EventsArguments),
    /// Let everybody go at once, and hold nobody until `guard on`; what is unusual is still told
    ///
    /// That is everybody on this machine: whom daemons hold, at whatever socket, whom `tollgate run --guard=enforce`
    /// holds, which then holds nobody until it ends, and whom one held that was killed together with its warden.
    Off(OffArguments),
    /// Respond to unusual calls again, after `guard off`
    On(SocketOption),
    /// Hold processes that the daemon guards, until they are released
    Hold(HoldArguments),
    /// Let processes go that the daemon holds; what they did so far does not count against them any more
    Release(ReleaseArguments),
    /// Let go whom a guard holds when its Tollgate has ended (started by the guard)
    #[command(hide = true)]
    Warden(WardenArguments),
}

#[derive(Args)]
pub struct OffArguments {
    #[command(flatten)]
    pub socket: SocketOption,
    /// Only whom the daemon at the socket holds
    #[arg(long)]
    pub daemon: bool,
    /// Only whom guards held that were killed together with their wardens
    #[arg(long, conflicts_with = "daemon")]
    pub killed: bool,
}

#[derive(Args)]
pub struct WardenArguments {
    /// The process of the guard
    pub owner: u32,
    /// Its session in the gate
    pub session: u32,
    /// The number of the gate's map of threads
    pub threads_map: u32,
    /// The number of the gate's map of sessions
    pub sessions_map: u32,
}

#[derive(Args)]
pub struct StatusArguments {
    #[command(flatten)]
    pub socket: SocketOption,
    /// Print one JSON document instead of text
    #[arg(long)]
    pub json: bool,
    /// Write the result to a file, or - for stdout (the default)
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Show at most this many programs
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub top: usize,
}

#[derive(Args)]
pub struct EventsArguments {
    /// Go on with those to come, until Ctrl-C
    #[arg(short, long)]
    pub follow: bool,
    /// Print each as a line of JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub socket: SocketOption,
}

#[derive(Args)]
pub struct HoldArguments {
    /// Process numbers
    #[arg(required = true, value_name = "PID", value_parser = process_number)]
    pub pids: Vec<u32>,
    #[command(flatten)]
    pub socket: SocketOption,
}

fn process_number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("{text:?} is no process number; `pidof NAME` tells those of a program"))
}

#[derive(Args)]
pub struct ReleaseArguments {
    /// Process numbers, or names or paths of programs (default: all who are held)
    #[arg(value_name = "PID|PROGRAM")]
    pub whom: Vec<String>,
    #[command(flatten)]
    pub socket: SocketOption,
}

#[derive(Args)]
pub struct ShowArguments {
    /// A path, the start of a digest (6 digits or more), or the name of a program, each with or without [SCOPE] (default: a
    /// table of all)
    #[arg(value_name = "PROGRAM")]
    pub program: Option<String>,
    #[command(flatten)]
    pub store: StoreOption,
    #[command(flatten)]
    pub result: ResultOptions,
    #[command(flatten)]
    pub socket: SocketOption,
}

#[derive(Args)]
pub struct Programs {
    /// Each a path, the start of a digest (6 digits or more), or the name of a program, with or without [SCOPE]
    #[arg(required = true, value_name = "PROGRAM")]
    pub programs: Vec<String>,
    #[command(flatten)]
    pub store: StoreOption,
    #[command(flatten)]
    pub socket: SocketOption,
}

#[derive(Args)]
#[command(group(ArgGroup::new("which").required(true)))]
pub struct ExportArguments {
    /// Each a path, the start of a digest (6 digits or more), or the name of a program, with or without [SCOPE]
    #[arg(group = "which", value_name = "PROGRAM")]
    pub programs: Vec<String>,
    /// All that are stored
    #[arg(long, group = "which")]
    pub all: bool,
    #[command(flatten)]
    pub store: StoreOption,
    /// Write the result to a file, or - for stdout (the default)
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub socket: SocketOption,
}

#[derive(Args)]
pub struct ImportArguments {
    /// Written by `tollgate guard export` or `merge`; `-` is stdin
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Put them in place of what is stored of the same programs, instead of merging
    #[arg(long)]
    pub replace: bool,
    #[command(flatten)]
    pub store: StoreOption,
    #[command(flatten)]
    pub socket: SocketOption,
}

#[derive(Args)]
pub struct MergeArguments {
    /// Written by `tollgate guard export` or `merge`; `-` is stdin
    #[arg(required = true, num_args = 2.., value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Write the result to a file, or - for stdout (the default)
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

#[derive(Args)]
pub struct StoreOption {
    /// The folder of the stored baselines
    #[arg(
        long = "store",
        value_name = "DIR",
        env = "TOLLGATE_STORE",
        hide_env_values = true,
        default_value = "/var/lib/tollgate/baselines"
    )]
    pub folder: PathBuf,
}

/// Learn from traces of system calls, and say of others what the guard would have done
///
/// A PATH is a file or a folder of files: `PID NUMBER` lines, calls by name or number (one process a file), or the
/// output of `strace -f`; each also compressed by gzip, and `-` is stdin. Needs no root. Numbers are taken as they are, so
/// traces of another system can be replayed, too. A process is one program, also after an execve, while the guard takes
/// what is executed for another one.
#[derive(Args)]
#[command(after_long_help = REPLAY_EXAMPLES)]
pub struct ReplayArguments {
    /// Normal traces to learn from
    #[arg(long, required = true, num_args = 1.., value_name = "PATH")]
    pub train: Vec<PathBuf>,
    /// Normal traces that are not to be found unusual
    #[arg(long, num_args = 1.., value_name = "PATH")]
    pub test_normal: Vec<PathBuf>,
    /// Traces of attacks
    #[arg(long, num_args = 1.., value_name = "PATH")]
    pub test_attack: Vec<PathBuf>,
    /// Traces of which nobody knows yet
    #[arg(long, num_args = 1.., value_name = "PATH")]
    pub test: Vec<PathBuf>,
    /// The model of what is normal (default: each by itself)
    #[arg(long, value_enum)]
    pub model: Option<Model>,
    /// Calls that the model looks at (default: lookahead 9, sequence 6)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(2..=9))]
    pub length: Option<u8>,
    /// Anomalies among 128 calls from which a process counts as found
    #[arg(long, value_name = "LFC", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=128))]
    pub at: u32,
    /// The delay that each anomaly among the latest 128 calls doubles
    #[arg(long, value_name = "TIME", default_value = "40ms", value_parser = duration)]
    pub delay_factor: Duration,
    /// Processes to list, the most anomalous first
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub top: usize,
    /// Print one JSON document instead of text
    #[arg(long)]
    pub json: bool,
    /// Write the result to a file, or - for stdout (the default)
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

const REPLAY_EXAMPLES: &str = "\
Examples:
  strace -f -o monday ./server; tollgate guard replay --train monday --test tuesday
  tollgate guard replay --train normal/a* --test-normal normal/b* --test-attack intrusion --json";
