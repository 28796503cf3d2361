//! The command line of `tollgate guard`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{ArgGroup, Args, Subcommand, ValueEnum};

use super::baseline::Digest;
use crate::format::shown_path;
use crate::options::{ResultOptions, SocketOption, duration};

#[derive(Args)]
pub struct GuardCommandLine {
    #[command(subcommand)]
    pub command: GuardCommand,
}

impl GuardCommandLine {
    /// Whether the command itself releases the processes of killed guards.
    pub fn releases_processes(&self) -> bool {
        matches!(self.command, GuardCommand::Off(_) | GuardCommand::Watchdog(_))
    }
}

#[derive(Subcommand)]
pub enum GuardCommand {
    Replay(ReplayArguments),
    /// List the stored baselines, or show one of them with the calls that follow each call
    Show(GuardShowArguments),
    /// Write baselines to one document, for another machine or as a backup
    Export(ExportArguments),
    /// Add exported baselines to the stored ones
    ///
    /// A merged baseline knows all that the stored and the imported one knew. Their counters are
    /// added. The merged baseline has the less advanced of the two states (training, frozen,
    /// normal). If an
    /// imported baseline adds nothing, the stored one is left unchanged. The command prints one
    /// line for each baseline. If any of the files cannot be used, nothing is changed. A daemon
    /// that uses the store applies the change at once.
    Import(ImportArguments),
    /// Merge exported documents into one; baselines of the same program are combined
    Merge(MergeArguments),
    /// Declare everything in a program's baseline normal, without waiting
    ///
    /// From now on, calls are tested against all that has been learned and all that was normal
    /// before; anything new is an anomaly. A baseline becomes normal by itself after a long time
    /// without anything new. Use this command when you know that the program has shown all its
    /// behaviour, or that its recent behaviour was legitimate. First end each `tollgate run` in
    /// which the program is still learning: a run stores what it has learned when it ends.
    Normalize(ProgramArguments),
    /// Return a program's baseline to training, so that it learns new behaviour
    ///
    /// Nothing is wiped, and the count of anomalies is reset. The baseline becomes normal again
    /// after a long time without anything new. Use this command when a program is slowed down
    /// although it does nothing wrong, for example after its configuration has changed.
    Tolerize(ProgramArguments),
    /// Wipe the training data of a program's baseline, and keep what is normal
    ///
    /// What is normal stays normal, and everything else is learned anew. So the program's recent
    /// behaviour does not become normal. Use this command when a program was attacked or misused
    /// while its baseline was learning. First end each `tollgate run` that guards the program: a
    /// run stores all that it knows when it ends.
    Sensitize(ProgramArguments),
    /// Delete a program's baseline
    ///
    /// The program is then unknown, as if it had never been seen. Use this command when the
    /// baseline is no longer useful; `tollgate guard export` makes a backup. First end each
    /// `tollgate run` that guards the program: a run stores all that it knows when it ends.
    Reset(ProgramArguments),
    /// Show what the daemon guards, and which processes it holds
    Status(StatusArguments),
    /// Show programs, held processes and the latest anomalies and responses, live
    Top(SocketOption),
    /// Print the latest anomalies and responses that the daemon has recorded, at most 10,000
    Events(EventsArguments),
    /// Release all held processes, and hold none until `guard on`; anomalies are still reported
    ///
    /// This applies to the whole machine: to all daemons, whatever their sockets; to each `tollgate
    /// run --guard=enforce`, which then holds nothing until it ends; and to processes that were
    /// left stopped by a guard that was killed together with its watchdog process.
    Off(OffArguments),
    /// Respond to anomalies again, after `guard off`
    On(SocketOption),
    /// Hold processes that the daemon guards, until they are released
    Hold(HoldArguments),
    /// Release processes that the daemon holds; their anomalies so far no longer count
    Release(ReleaseArguments),
    /// Release the processes that a guard holds when its Tollgate process has ended (started by the
    /// guard)
    #[command(hide = true)]
    Watchdog(WatchdogArguments),
}

#[derive(Args)]
pub struct OffArguments {
    #[command(flatten)]
    pub socket: SocketOption,
    /// Release only the processes that the daemon at the socket holds
    #[arg(long)]
    pub daemon: bool,
    /// Release only processes left stopped by guards that were killed together with their watchdogs
    #[arg(long, conflicts_with = "daemon")]
    pub killed: bool,
}

#[derive(Args)]
pub struct WatchdogArguments {
    /// The process of the guard
    pub owner: u32,
    /// Its session in the gate
    pub session: u32,
    /// The number of the gate's map of threads
    pub threads_map: u32,
    /// The number of the gate's map of the guard's thread states
    pub guard_map: u32,
    /// The number of the gate's map of sessions
    pub sessions_map: u32,
    pub header_map: u32,
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
    /// Continue with new events as they occur, until Ctrl-C
    #[arg(short, long)]
    pub follow: bool,
    /// Print each event as a line of JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub socket: SocketOption,
}

#[derive(Args)]
pub struct HoldArguments {
    /// Process IDs
    #[arg(required = true, value_name = "PID", value_parser = process_number)]
    pub pids: Vec<u32>,
    #[command(flatten)]
    pub socket: SocketOption,
}

fn process_number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| {
        format!("{text:?} is not a process ID; `pidof NAME` prints those of a program")
    })
}

/// Programs by path, name or digest. A path that is not UTF-8 stands for the digest of its content,
/// which is what a path selects.
fn program_argument() -> impl TypedValueParser<Value = String> {
    OsStringValueParser::new().try_map(|text| {
        text.into_string().or_else(|text| {
            let path = Path::new(&text);
            if !text.as_encoded_bytes().contains(&b'/') {
                return Err(format!(
                    "the name {} is not UTF-8: give the path, or the digest as `tollgate guard \
                    show` lists it",
                    shown_path(path)
                ));
            }
            Digest::of_file(path).map(|digest| digest.to_string()).map_err(|it| format!("{it:#}"))
        })
    })
}

#[derive(Args)]
pub struct ReleaseArguments {
    /// Process IDs, or names or paths of programs (default: all held processes)
    #[arg(value_name = "PID|PROGRAM")]
    pub targets: Vec<String>,
    #[command(flatten)]
    pub socket: SocketOption,
}

#[derive(Args)]
pub struct GuardShowArguments {
    /// A program: its path, its name, or the start of its digest (6 digits or more), optionally
    /// with [SCOPE] (default: list all baselines)
    #[arg(value_name = "PROGRAM", value_parser = program_argument())]
    pub program: Option<String>,
    #[command(flatten)]
    pub store: StoreOption,
    #[command(flatten)]
    pub result: ResultOptions,
    #[command(flatten)]
    pub socket: SocketOption,
}

#[derive(Args)]
pub struct ProgramArguments {
    /// Programs: path, name, or start of the digest (6 digits or more) of each, optionally
    /// followed by the scope in brackets: python3[backup.py]
    #[arg(required = true, value_name = "PROGRAM", value_parser = program_argument())]
    pub programs: Vec<String>,
    #[command(flatten)]
    pub store: StoreOption,
    #[command(flatten)]
    pub socket: SocketOption,
}

#[derive(Args)]
#[command(group(ArgGroup::new("which").required(true)))]
pub struct ExportArguments {
    /// Programs: path, name, or start of the digest (6 digits or more) of each, optionally
    /// followed by the scope in brackets: python3[backup.py]
    #[arg(group = "which", value_name = "PROGRAM", value_parser = program_argument())]
    pub programs: Vec<String>,
    /// Export all stored baselines
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
    /// Documents written by `tollgate guard export` or `merge`; - is stdin
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Replace the stored baselines of the same programs instead of merging
    #[arg(long)]
    pub replace: bool,
    #[command(flatten)]
    pub store: StoreOption,
    #[command(flatten)]
    pub socket: SocketOption,
}

#[derive(Args)]
pub struct MergeArguments {
    /// Documents written by `tollgate guard export` or `merge`; - is stdin
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

/// Learn from recorded system-call traces, and test others against what was learned
///
/// A PATH is a file, a folder of files, or - for stdin. A file has one of three formats: lines `PID
/// NUMBER`; names or numbers of the calls of a single process; or the output of `strace -f`. It may
/// be compressed by gzip. Root is not needed. Call numbers are not interpreted, so traces from
/// another system can be replayed as well. A process counts as one program even after an execve,
/// where the guard itself would see another program.
#[derive(Args)]
#[command(after_long_help = REPLAY_EXAMPLES)]
pub struct ReplayArguments {
    /// Normal traces to learn from
    #[arg(long, required = true, num_args = 1.., value_name = "PATH")]
    pub train: Vec<PathBuf>,
    /// Normal traces to test; anomalies in them count as false alarms
    #[arg(long, num_args = 1.., value_name = "PATH")]
    pub test_normal: Vec<PathBuf>,
    /// Traces of attacks to test
    #[arg(long, num_args = 1.., value_name = "PATH")]
    pub test_attack: Vec<PathBuf>,
    /// Traces to test that are not known to be normal or attacks
    #[arg(long, num_args = 1.., value_name = "PATH")]
    pub test: Vec<PathBuf>,
    /// The model of normal behaviour (default: both, separately)
    #[arg(long, value_enum)]
    pub model: Option<ModelOption>,
    /// Number of calls in the model's window (default: lookahead 9, sequence 6)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(2..=9))]
    pub length: Option<u8>,
    /// Number of anomalies among 128 calls at which a process counts as detected
    #[arg(
        long,
        value_name = "LFC",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=128)
    )]
    pub at: u32,
    /// The base delay; each anomaly among the latest 128 calls doubles it
    #[arg(long, value_name = "TIME", default_value = "40ms", value_parser = duration)]
    pub delay_factor: Duration,
    /// Number of processes to list, the most anomalous first
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub top: usize,
    /// Print one JSON document instead of text
    #[arg(long)]
    pub json: bool,
    /// Write the result to a file, or - for stdout (the default)
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// `--model`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ModelOption {
    /// Lookahead pairs: pairs of calls, with the distance between them (pH)
    Lookahead,
    /// Whole sequences of calls (stide)
    Sequence,
}

const REPLAY_EXAMPLES: &str = "\
Examples:
  strace -f -o monday ./server; tollgate guard replay --train monday --test tuesday
  tollgate guard replay --train normal/a* --test-normal normal/b* --test-attack intrusion --json";

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;

    use clap::Command;

    use super::*;

    #[test]
    fn path_that_is_not_utf8_selects_its_content() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(std::ffi::OsStr::from_bytes(b"na\xffme"));
        std::fs::write(&path, "program").expect("room");
        let parse = |text: &std::ffi::OsStr| {
            program_argument().parse_ref(&Command::new("test"), None, text)
        };
        assert_eq!(parse(path.as_os_str()).ok(), Some(Digest::of(b"program").to_string()));
        let error = parse(path.file_name().expect("a name")).expect_err("it is no path");
        assert!(error.to_string().contains("or the digest as"), "{error}");
        assert_eq!(parse("find".as_ref()).ok().as_deref(), Some("find"));
    }
}
