//! The command line of `tollgate cost`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use crate::options::duration;

#[derive(Args)]
#[command(after_long_help = COST_EXAMPLES)]
pub struct CostArguments {
    #[command(subcommand)]
    pub command: CostCommand,
}

const COST_EXAMPLES: &str = "\
Examples:
  tollgate cost run
  tollgate cost run --bench getppid,open-close --arm lens --arm lens-bystander --budget 2m
  tollgate cost run --arm-file agents.toml --limit 3% --json -o today.json
  tollgate cost compare yesterday.json today.json --limit 1%";

#[derive(Subcommand)]
pub enum CostCommand {
    Run(CostRunArguments),
    /// Show the benchmarks and the built-in arms
    List {
        /// Print one JSON document instead of text
        #[arg(long)]
        json: bool,
    },
    Compare(CostCompareArguments),
    /// Do the timed work of a block (started by `run`)
    #[command(hide = true)]
    Worker,
}

/// Compare arms with an arm that has nothing on, block by block in random order
///
/// For each block the arm is switched on and off again, and the workload is started anew. Every run
/// has two controls: A/A (a second arm with nothing on) and an injected cost of about 2 %. A
/// benchmark ends when the intervals of all its rows are as narrow as --precision, or when the time
/// budget is used up.
#[derive(Args)]
#[command(after_long_help = COST_STATUS)]
pub struct CostRunArguments {
    /// Benchmarks, separated by commas (default: all, each pinned to one processor; NAME:free is
    /// not pinned)
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub bench: Vec<String>,
    /// An arm to compare; may be repeated (default: lens, or all arms of --arm-file)
    #[arg(long, value_name = "NAME")]
    pub arm: Vec<String>,
    /// Read arms of your own from this file. It has tables [arm.NAME] with the keys start, stop,
    /// background, under, settle, loss, limit and hooks (docs/cost.md)
    #[arg(long, value_name = "ARMS.toml")]
    pub arm_file: Option<PathBuf>,
    /// Stop a benchmark when the 95 % intervals of its rows extend at most this far to each side
    #[arg(long, value_name = "PART", default_value = "0.5%", value_parser = percentage)]
    pub precision: f64,
    /// Stop the run after this time; at least one quad (two blocks of each arm) is always
    /// measured (default: 10m, or 2,000
    /// s with --stop=rightspeed)
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub budget: Option<Duration>,
    /// Wait at least this long between the workloads of two blocks (default: as long as the slowest
    /// arm needs)
    #[arg(
        long,
        value_name = "TIME",
        default_value = "0s",
        hide_default_value = true,
        value_parser = duration
    )]
    pub settle: Duration,
    /// The rule by which a benchmark ends before the time budget is used up
    #[arg(long, value_enum, value_name = "RULE", default_value = "precision")]
    pub stop: StopRule,
    /// The limit of the verdicts: they say whether an arm costs more than this
    #[arg(long, value_name = "PART", default_value = "2%", value_parser = percentage)]
    pub limit: f64,
    /// Seed of the random order of blocks; the same seed gives the same order (default: a new one)
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Print one JSON document instead of text, with every sample
    #[arg(long)]
    pub json: bool,
    /// Write the result to this file; - is stdout, the default
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// When a benchmark has been run often enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StopRule {
    /// When each interval of a ratio is as narrow as --precision, checked after 12, 24, 48 … quads
    Precision,
    /// As in RightSpeed: when each arm's mean is known to 0.01 %, when there are 10,000 runs, or
    /// when 2,000 s have passed
    Rightspeed,
}

const COST_STATUS: &str = "\
Exit status:
  0 within the limit, 1 above the limit or controls failed, 3 inconclusive, 125 for errors";

/// Compare the arms of two runs, for example before and after a change
#[derive(Args)]
#[command(after_long_help = COST_STATUS)]
pub struct CostCompareArguments {
    /// The earlier document, written with --json
    pub before: PathBuf,
    /// The later document, written with --json
    pub after: PathBuf,
    /// The limit of the verdicts: they say whether an arm's cost has increased by more than this
    #[arg(long, value_name = "PART", default_value = "2%", value_parser = percentage)]
    pub limit: f64,
    /// Print one JSON document instead of text
    #[arg(long)]
    pub json: bool,
    /// Write the result to this file; - is stdout, the default
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Parses "0.5%" or "2%" as a fraction of 1.
fn percentage(text: &str) -> Result<f64, String> {
    let number =
        text.strip_suffix('%').ok_or_else(|| format!("{text:?} has no %: write {text}%"))?;
    match number.trim().parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent.is_finite() => Ok(percent / 100.0),
        _ => Err(format!("{text:?} is not a percentage such as 0.5% or 2%")),
    }
}
