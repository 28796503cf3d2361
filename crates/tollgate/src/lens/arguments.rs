//! The command line of `tollgate lens`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::options::LensOptions;
use crate::options::{ResultOptions, duration};
use crate::process_selection::Select;

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, after_long_help = LENS_EXAMPLES)]
pub struct LensArguments {
    #[command(subcommand)]
    pub command: Option<LensCommand>,
    #[command(flatten)]
    pub select: Select,
    /// Watch for this long (10s, 500ms, 2m; default: until Ctrl-C)
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
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
  tollgate lens diff before.json after.json";

#[derive(Subcommand)]
pub enum LensCommand {
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
