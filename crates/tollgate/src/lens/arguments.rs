//! The command line of `tollgate lens`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, value_parser};

use super::options::LensOptions;
use super::top::level::TopLevel;
use crate::options::{ResultOptions, duration, positive_duration};
use crate::process_selection::Select;

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, after_long_help = LENS_EXAMPLES)]
pub struct LensArguments {
    #[command(subcommand)]
    pub command: Option<LensCommand>,
    #[command(flatten)]
    pub select: Select,
    /// Watch for this long (10s, 500ms, 2m; default: until Ctrl-C)
    #[arg(long = "for", value_name = "TIME", value_parser = positive_duration)]
    pub duration: Option<Duration>,
    #[command(flatten)]
    pub lens_options: LensOptions,
    #[command(flatten)]
    pub result: ResultOptions,
}

const LENS_EXAMPLES: &str = "\
Examples:
  tollgate lens -p 1234 --for 10s
  tollgate lens --unit nginx.service --per process
  tollgate lens --all --for 5s --top 10
  tollgate lens -p 1234 --for 10s --flame-blocked blocked.svg
  tollgate lens top
  tollgate lens top -p 1234 --once
  tollgate lens top --unit nginx.service --by file
  tollgate lens diff before.json after.json";

#[derive(Subcommand)]
pub enum LensCommand {
    /// Show live which programs, processes, threads and calls take time in the kernel
    ///
    /// Without -p, --comm, --cgroup or --unit, shows all processes. The arrow keys select a row,
    /// Enter shows what it consists of, and Backspace goes back. Tab changes between programs,
    /// processes, threads, calls, blocking sites and, with --by file, files and sockets. An
    /// underlined letter sorts by its column. q and Ctrl-C end the view. Without a terminal, tables
    /// are printed instead, one in each interval.
    Top(TopArguments),
    /// Compare two reports written with --json
    Diff {
        /// The earlier report, written with --json
        before: PathBuf,
        /// The later report, written with --json
        after: PathBuf,
        #[command(flatten)]
        result: ResultOptions,
    },
}

#[derive(Args)]
pub struct TopArguments {
    #[command(flatten)]
    pub select: Select,
    /// What the rows are at first. Calls are counted by file only with `file`, which costs more
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = TopLevel::Process)]
    pub by: TopLevel,
    /// The time between two readings
    #[arg(long, value_name = "TIME", value_parser = interval, default_value = "1s")]
    pub interval: Duration,
    /// Print this many tables as text, one in each interval, instead of a view
    #[arg(short = 'n', long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Print one table, as --count 1
    #[arg(long, conflicts_with = "count")]
    pub once: bool,
    /// Print at most this many rows of each table (not in a view)
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub top: usize,
    /// Do not record where calls block (saves a stack walk at some of the sleeps)
    #[arg(long)]
    pub no_sites: bool,
    /// Count all calls, but time only one in sixteen of the cheap ones on average
    #[arg(long)]
    pub sample: bool,
}

/// The gate's counters take some milliseconds to read.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

fn interval(text: &str) -> Result<Duration, String> {
    let interval = duration(text)?;
    if interval < MIN_INTERVAL {
        return Err("the shortest interval is 100ms".into());
    }
    Ok(interval)
}
