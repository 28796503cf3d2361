//! The command line of `tollgate pace`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::options::{ResultOptions, SocketOption, positive_duration};
use crate::process_selection::Select;

#[derive(Args)]
pub struct PaceCommandLine {
    #[command(subcommand)]
    pub command: PaceCommand,
}

impl PaceCommandLine {
    /// Whether the command restores the speeds that a killed process has left.
    pub fn restores_speeds(&self) -> bool {
        matches!(self.command, PaceCommand::Restore | PaceCommand::Watchdog)
    }
}

#[derive(Subcommand)]
pub enum PaceCommand {
    Watch(WatchArguments),
    Levels(LevelsArguments),
    Simulate(SimulateArguments),
    Report(PacingReportArguments),
    /// Show the types of tasks that the daemon paces, live
    Top(SocketOption),
    /// Restore the governors and speeds that a killed Tollgate process has left
    ///
    /// This is rarely needed: when Tollgate is killed, its watchdog process restores the speeds,
    /// and if both are killed, the next command of Tollgate that runs as root does. A governor that
    /// another process has set meanwhile is kept.
    Restore,
    Types(TypesArguments),
    Reset(ResetArguments),
    /// Restore the speeds when the Tollgate process that set them has ended (started by pacing)
    #[command(hide = true)]
    Watchdog,
}

/// Find the tasks of programs, and report whether lower speeds would save energy
///
/// No speed is changed. A rule names calls, and a task begins when one of them returns. The task
/// ends when all threads that work on it sleep, or when the thread that began it begins another
/// one. Programs can also begin and end their tasks themselves (docs/pace.md). The report has the
/// work of each type of task, how long its tasks took, and how many missed the deadline. It
/// compares policies as `tollgate pace simulate` does, on the levels of this machine or, if these
/// are not known, on all built-in sets.
#[derive(Args)]
#[command(after_long_help = WATCH_EXAMPLES)]
pub struct WatchArguments {
    /// Read the rules by which tasks begin from this file (default: input, events, timers and
    /// messages, with a deadline of 50 ms; see examples/tasks.toml)
    #[arg(long, value_name = "FILE")]
    pub rules: Option<PathBuf>,
    /// Compare the policies on this set of levels, a built-in one or a file; may be repeated
    /// (default: the set that the file of rules names, otherwise the levels of this machine,
    /// otherwise all built-in sets)
    #[arg(long, value_name = "LEVELS")]
    pub levels: Vec<String>,
    /// Write the tasks to this file, for `tollgate pace simulate`
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    #[command(flatten)]
    pub select: Select,
    /// Watch for this long (10s, 500ms, 2m; default: until Ctrl-C)
    #[arg(long = "for", value_name = "TIME", value_parser = positive_duration)]
    pub duration: Option<Duration>,
    #[command(flatten)]
    pub result: ResultOptions,
    /// A command to run and watch, and its arguments
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

const WATCH_EXAMPLES: &str = "\
Examples:
  tollgate pace watch --rules doom.toml -- chocolate-doom -iwad freedoom1.wad -playdemo demo1
  tollgate pace watch --rules web.toml --trace requests.jsonl --comm php-fpm --for 1m
  tollgate pace simulate --levels rk3399-a72 --plot pictures requests.jsonl";

#[derive(Args)]
pub struct PacingOptions {
    /// Run each task no faster than it needs, by the rules of this file (see docs/pace.md)
    ///
    /// Tasks are found by the rules, or begun by the programs themselves. Their work is learned,
    /// and the speeds of the processors are set so that the target's share of the tasks meets the
    /// deadline. At the end, the system's governor has its processors again.
    #[arg(id = "pace", long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub store: PaceStoreOption,
}

#[derive(Args)]
pub struct PaceStoreOption {
    /// The folder of the stored samples: the work of the latest tasks of each type
    // `--store` has a folder, too, and both are options of the daemon.
    #[arg(
        id = "pace-store",
        long,
        value_name = "DIR",
        env = "TOLLGATE_PACE_STORE",
        hide_env_values = true,
        default_value = "/var/lib/tollgate/pace"
    )]
    pub folder: PathBuf,
}

/// List the types of tasks that have been paced, and the work of their latest tasks
#[derive(Args)]
pub struct TypesArguments {
    #[command(flatten)]
    pub store: PaceStoreOption,
    #[command(flatten)]
    pub result: ResultOptions,
}

/// Discard the stored work of types of tasks, which is then learned anew
///
/// Use this command when a program has changed, so that the work of its earlier tasks says nothing
/// about later ones. Until ten tasks of the type have ended, they run at the fastest speed. First
/// end each `tollgate run --pace`: a run stores all that it knows when it ends.
#[derive(Args)]
pub struct ResetArguments {
    /// Names of types, as `tollgate pace types` shows them
    #[arg(required = true, value_name = "TYPE")]
    pub types: Vec<String>,
    #[command(flatten)]
    pub store: PaceStoreOption,
    #[command(flatten)]
    pub socket: SocketOption,
}

/// Report the types of tasks that the daemon paces: how many missed their deadlines, and at which
/// speeds they ran
///
/// The daemon must have been started with --pace. With --json, the report also has the schedule of
/// each type.
#[derive(Args)]
pub struct PacingReportArguments {
    #[command(flatten)]
    pub result: ResultOptions,
    #[command(flatten)]
    pub socket: SocketOption,
}

/// Show the speeds of a processor, and which of them are worthwhile
///
/// A speed is worthwhile if it needs less power than every mix of other speeds and idle time with
/// the same average speed. Pacing can save energy only if at least two speeds are worthwhile. The
/// efficiency of a speed is the part of the power that it saves compared with the best such mix.
#[derive(Args)]
#[command(after_help = LEVELS_HELP)]
pub struct LevelsArguments {
    /// Built-in sets of levels or files (default: the levels of this machine)
    #[arg(value_name = "LEVELS")]
    pub levels: Vec<String>,
    /// Print one JSON document instead of text
    #[arg(long)]
    pub json: bool,
    /// Write the result to this file; - is stdout, the default
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Show how many deadlines of recorded tasks each policy of speeds would have missed, and how much
/// energy it would have used
///
/// The first half of the tasks trains the policies, and the second half is judged: how many tasks
/// would have missed their deadlines, and how much energy they would have used. The tasks are
/// replayed on one processor, one after the other. The energy is modelled from the power of the
/// levels, and counts what a task uses beyond an idle processor. The policies are:
///
/// fastest: always the fastest speed; ondemand, conservative, schedutil: the formulas of Linux's
/// governors; flat: the slowest constant speed at which the target's share of the tasks should end
/// by the deadline; pace: the sequence of speeds that does the same with the least expected energy;
/// four-steps: a sequence of speeds by the paper's own four steps; clairvoyant: knows the work of
/// each task in advance, which no real policy can.
///
/// Root is not needed, and no speed is changed.
#[derive(Args)]
#[command(after_long_help = SIMULATE_HELP)]
pub struct SimulateArguments {
    /// Traces of tasks, in JSON Lines; - is stdin
    #[arg(required = true, value_name = "TRACE")]
    pub traces: Vec<PathBuf>,
    /// A built-in set of levels or a file; may be repeated (default: all built-in sets)
    #[arg(long, value_name = "LEVELS")]
    pub levels: Vec<String>,
    /// Write a picture (SVG) for each type with judged tasks on each set of levels to this folder
    #[arg(long, value_name = "DIR")]
    pub plot: Option<PathBuf>,
    /// Show at most this many types for each set of levels in the text output: those with the most
    /// tasks (default: all)
    #[arg(long, value_name = "N")]
    pub top: Option<usize>,
    /// Print one JSON document instead of text
    #[arg(long)]
    pub json: bool,
    /// Write the result to this file; - is stdout, the default
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

const LEVELS_HELP: &str = "\
Built-in sets of levels:
  rightspeed      the example of the paper: 300, 500 and 700 MHz
  pentium-m-1600  Intel Pentium M, 600 to 1,600 MHz, a laptop of 2003
  rk3399-a53      Arm Cortex-A53, 408 to 1,512 MHz
  rk3399-a72      Arm Cortex-A72, 408 to 2,016 MHz

A file of levels:
  name = \"my board\"
  source = \"measured at the 5 V input\"
  idle-watts = 0.4
  level = [
      { mhz = 600, watts = 0.9 },
      { mhz = 1200, watts = 2.1 },
  ]";

const SIMULATE_HELP: &str = "\
A trace has one JSON object on each line. The first one has the types of tasks (here on two lines),
and each of the others is a task: its type, when it began (s), its work (cycles) and, if it differs
from that of the type, its deadline (ms):
  {\"schema\":\"tollgate.pace.trace/1\",
   \"types\":[{\"name\":\"frame\",\"deadline_ms\":28.6,\"target\":0.95}]}
  {\"type\":0,\"begin_s\":0.0,\"cycles\":9500000}
  {\"type\":0,\"begin_s\":0.0286,\"cycles\":12300000,\"deadline_ms\":20}

Examples:
  tollgate pace simulate frames.jsonl
  tollgate pace simulate --levels rk3399-a72 --levels my-board.toml --plot pictures frames.jsonl";
