//! The command line of `tollgate guard`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::replay::Model;
use crate::cli::duration;

/// Tell what programs do that they never did before (so far: in recorded traces)
#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    Replay(ReplayArguments),
}

/// Learn from traces of system calls, and say of others what the guard would have done
///
/// A PATH is a file or a folder of files: `PID NUMBER` lines, calls by name or number (one process a file), or the
/// output of `strace -f`; each also compressed by gzip. Needs no root. Numbers are taken as they are, so traces of
/// another system can be replayed, too.
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
    /// Write the result to a file (default: stdout)
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

const REPLAY_EXAMPLES: &str = "\
Examples:
  strace -f -o monday ./server; tollgate guard replay --train monday --test tuesday
  tollgate guard replay --train normal/a* --test-normal normal/b* --test-attack intrusion --json";
