//! The command line. Every option is defined here once; help, completions and the man pages are
//! generated from it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::builder::{
    FalseyValueParser, NonEmptyStringValueParser, OsStringValueParser, TypedValueParser as _,
};
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use kernel::wire;

use crate::daemon::SocketOption;
use crate::output::Output;
use crate::report::{Report, TextOptions, text};
use crate::{cost, daemon, guard, lens, plugin, process_selection, run, service};

/// Exit statuses like those of `env` and `timeout`.
pub const OWN_FAILURE: u8 = 125;
pub const CANNOT_EXECUTE: u8 = 126;
pub const NOT_FOUND: u8 = 127;

const EXIT_STATUS: &str = "\
Exit status:
  run     the command's exit status, or 128 + N if signal N ended it; 127 if the command is not
          found, 126 if it cannot be executed, 125 if Tollgate failed before it started the
          command; a report that cannot be written at the end causes only a message on stderr
  doctor  1 if `tollgate run` cannot work here
  others  0, or 125 if they failed

Environment:
  NO_COLOR         if set, messages have no colours
  TOLLGATE_STORE   folder of the guard's baselines, unless --store is given
  TOLLGATE_SOCKET  control socket of the daemon, unless --socket is given";

/// A programmable gate at the Linux system-call boundary: see where a program's kernel time goes,
/// and what the measurement costs.
#[derive(Parser)]
#[command(name = "tollgate", version, after_help = EXIT_STATUS, disable_help_subcommand = true, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: TollgateCommand,
    /// Also print the messages of libbpf and of the kernel's verifier
    // Placed last before --help, in the help of every command.
    #[arg(short, long, global = true, display_order = 900)]
    pub verbose: bool,
}

#[derive(Subcommand)]
// Deferred: this command does not need the options of other commands, which take a third of a
// millisecond to build.
#[command(defer = true)]
pub enum TollgateCommand {
    /// Run a command through the gate and report where its kernel time went
    ///
    /// The command is watched from its first instruction until it ends, with all its threads and
    /// child processes. It keeps its stdin, stdout, exit status and signals: Tollgate passes on
    /// each signal that it receives, so a signal sent to the whole process group may reach the
    /// command twice. Processes that outlive the command continue unwatched. The report goes to
    /// stderr, or to a file.
    Run(RunArguments),
    /// Report the same for processes that are already running
    ///
    /// Watches until the time of --for has passed, Ctrl-C is pressed, or the last of the processes
    /// has ended.
    Lens(LensArguments),
    /// Manage baselines of normal behaviour, and control the daemon's guard
    Guard(guard::GuardCommandLine),
    /// Charge the work of threads to virtual services, and limit what the services use
    ///
    /// `tollgate daemon --services FILE` puts services and rules in force. All commands except
    /// `check` send a request to that daemon.
    Service(service::ServiceCommandLine),
    /// Compile plugins, small programs in a C dialect, and run them in the kernel
    ///
    /// docs/ecode.md describes the language. The machine needs no compiler.
    Plugin(plugin::PluginCommandLine),
    /// Guard the machine or a part of it, charge work to services, or run plugins, until stopped
    ///
    /// Guard: the daemon learns what each program normally does, reports unusual calls, and with
    /// --guard=enforce responds to them. Control it with `tollgate guard status`, `top`, `events`,
    /// `off`, `hold` and `release`; `normalize` and the other commands on baselines apply to it,
    /// too. PID 1, Tollgate, the journal, the SSH server and the session that started the daemon
    /// are never held, unless --exe names them.
    ///
    /// Services: the daemon puts a file of services and rules in force. The rules assign each
    /// thread to one service at a time. Control it with `tollgate service report`, `top`, `list`,
    /// `explain`, `assign`, `limit` and `apply`.
    ///
    /// Plugins: the daemon runs plugins at their hooks, for all processes that it gates. Control
    /// them with `tollgate plugin load`, `list`, `show`, `set`, `log`, `swap` and `unload`.
    ///
    /// SIGTERM or Ctrl-C ends the daemon. It then stores what the guard has learned, releases all
    /// held processes, and removes services and plugins from the kernel.
    Daemon(daemon::DaemonArguments),
    /// Measure what an extension, an agent, a tracer or a setting costs on this machine, with
    /// confidence intervals
    Cost(CostArguments),
    /// Show which features this kernel has, and what Tollgate uses in place of missing ones
    Doctor(DoctorArguments),
    /// Print a completion script for a shell
    Completions { shell: clap_complete::Shell },
    /// Write the man pages, one for each command, to a folder
    #[command(hide = true)]
    Man { folder: PathBuf },
}

#[derive(Args)]
#[command(after_long_help = RUN_EXAMPLES)]
pub struct RunArguments {
    /// Time calls and report where they block (default if no other extension is selected)
    #[arg(long)]
    pub lens: bool,
    #[command(flatten)]
    pub lens_options: LensOptions,
    #[command(flatten)]
    pub result: ResultOptions,
    /// Run the command as this user (a name, UID or UID:GID) while Tollgate stays root
    #[arg(short, long, value_name = "USER")]
    pub user: Option<String>,
    /// Charge the command's work to this service of a running daemon (`tollgate service list` shows
    /// the services)
    ///
    /// Without --lens, --guard and --plugin, Tollgate executes the command in its own place, and
    /// there is no report.
    #[arg(long, value_name = "NAME")]
    pub service: Option<String>,
    /// Run this plugin at its hooks for the command's threads; may be repeated (docs/ecode.md
    /// describes the language)
    ///
    /// Its output goes to stderr; its variables and maps are in the report. Its name is that of the
    /// file without the extension. If several files have the same name, the later ones are named
    /// NAME-2, NAME-3 and so on.
    #[arg(long = "plugin", value_name = "FILE")]
    pub plugins: Vec<PathBuf>,
    #[command(flatten)]
    pub socket: SocketOption,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<OsString>,
    // Last, because the heading applies to everything that follows.
    #[command(flatten, next_help_heading = "Guard")]
    pub guard: guard::GuardArguments,
}

const RUN_EXAMPLES: &str = "\
Examples:
  tollgate run -- tar cf /dev/null /usr/include
  tollgate run --per process --top 5 -- make -j4
  tollgate run --slower-than 10ms -u www-data -- ./server --port 8080
  tollgate run --json -o report.json -- ./benchmark
  tollgate run --service shop -- ./nightly-report
  tollgate run --plugin examples/reads.ec -- tar cf /dev/null /usr/include
  tollgate run --guard=learn -- ./server
  tollgate guard normalize ./server
  tollgate run --guard=enforce -- ./server";

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

// The processes to watch; several options add up.
#[derive(Args, Debug, Default)]
pub struct Select {
    /// Watch the process with this ID, its threads, and the processes that it forks; may be
    /// repeated
    #[arg(short, long, value_name = "PID")]
    pub pid: Vec<u32>,
    /// Watch processes with this command name (the first 15 bytes are compared), also those that
    /// start later (Tollgate looks twice a second)
    #[arg(long, value_name = "NAME", value_parser = OsStringValueParser::new().try_map(not_empty))]
    pub comm: Vec<OsString>,
    /// Watch processes in this control group or below it (a path under /sys/fs/cgroup, or one from
    /// /proc/PID/cgroup), also those that start later
    #[arg(long, value_name = "PATH", value_parser = process_selection::parse_cgroup)]
    pub cgroup: Vec<String>,
    /// Watch processes of this systemd unit, also those that start later
    #[arg(long, value_name = "UNIT", value_parser = NonEmptyStringValueParser::new())]
    pub unit: Vec<String>,
    /// Watch every process of the machine except Tollgate itself
    #[arg(long)]
    pub all: bool,
}

// What the lens records.
#[derive(Args)]
pub struct LensOptions {
    /// Do not record where calls block (saves a stack walk at some of the sleeps)
    #[arg(long)]
    no_sites: bool,
    /// Count all calls, but time only one in sixteen of the cheap ones on average; the report has
    /// intervals for the estimated times
    #[arg(long)]
    sample: bool,
    /// Also list the slowest calls of those that take at least this long (10ms, 1s): time, thread,
    /// arguments and stacks of each
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub slower_than: Option<Duration>,
    /// Give each process, thread or command its own table
    #[arg(long, value_enum, value_name = "WHAT")]
    per: Option<Per>,
    /// Do not measure the toll at the end, which takes about 0.2 s
    #[arg(long, env = "TOLLGATE_NO_TOLL", hide_env_values = true, value_parser = FalseyValueParser::new())]
    pub no_toll: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Per {
    Process,
    Thread,
    Command,
}

// The format and destination of a result.
#[derive(Args)]
pub struct ResultOptions {
    /// Print one JSON document instead of text
    #[arg(long)]
    pub json: bool,
    /// Write the result to this file; - is stdout (default: stdout; for run, stderr)
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Show at most this many rows of each list in the text output
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub top: usize,
}

#[derive(Args)]
#[command(after_long_help = COST_EXAMPLES)]
pub struct CostArguments {
    #[command(subcommand)]
    command: CostCommand,
}

const COST_EXAMPLES: &str = "\
Examples:
  tollgate cost run
  tollgate cost run --bench getppid,open-close --arm lens --arm lens-bystander --budget 2m
  tollgate cost run --arm-file agents.toml --limit 3% --json -o today.json
  tollgate cost compare yesterday.json today.json --limit 1%";

#[derive(Subcommand)]
enum CostCommand {
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
    /// Read arms of your own from this file: tables [arm.NAME] with start and stop, background,
    /// under, settle, loss, limit, hooks
    #[arg(long, value_name = "ARMS.toml")]
    pub arm_file: Option<PathBuf>,
    /// Stop a benchmark when the 95 % intervals of its rows extend at most this far to each side
    #[arg(long, value_name = "PART", default_value = "0.5%", value_parser = percentage)]
    pub precision: f64,
    /// Stop after this much time, but not before the first quad (default: 10m; with --stop
    /// rightspeed 2,000 s)
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub budget: Option<Duration>,
    /// Wait at least this long between the workloads of two blocks (default: as long as the slowest
    /// arm needs)
    #[arg(long, value_name = "TIME", default_value = "0s", hide_default_value = true, value_parser = duration)]
    pub settle: Duration,
    /// The rule by which a benchmark ends before the time budget is used up
    #[arg(long, value_enum, value_name = "RULE", default_value = "precision")]
    pub stop: cost::StopRule,
    /// The cost that the verdicts compare each arm with
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
    /// The increase in cost that the verdicts compare each arm with
    #[arg(long, value_name = "PART", default_value = "2%", value_parser = percentage)]
    pub limit: f64,
    /// Print one JSON document instead of text
    #[arg(long)]
    pub json: bool,
    /// Write the result to this file; - is stdout, the default
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

#[derive(Args)]
pub struct DoctorArguments {
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
    /// Write the result to this file; - is stdout, the default
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl LensOptions {
    pub fn is_given(&self) -> bool {
        self.no_sites || self.sample || self.slower_than.is_some() || self.per.is_some()
    }

    pub fn mask(&self) -> u32 {
        let mut mask = wire::LENS;
        if !self.no_sites {
            mask |= wire::LENS_SITES;
        }
        if self.sample {
            mask |= wire::LENS_SAMPLE;
        }
        if self.slower_than.is_some() {
            mask |= wire::LENS_SLOW;
        }
        mask
    }

    pub fn per(&self) -> u32 {
        match self.per {
            None => wire::PER_ALL,
            Some(Per::Process) => wire::PER_PROCESS,
            Some(Per::Thread) => wire::PER_THREAD,
            Some(Per::Command) => wire::PER_COMMAND,
        }
    }
}

impl ResultOptions {
    pub fn print(&self, document: &Report, output: &mut Output) -> Result<()> {
        let body = if self.json {
            serde_json::to_string_pretty(document)? + "\n"
        } else {
            text(document, &TextOptions { top: self.top })
        };
        output.write(&body)
    }
}

fn not_empty(name: OsString) -> Result<OsString, &'static str> {
    if name.is_empty() { Err("the name is empty") } else { Ok(name) }
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

/// Parses "10ms", "2s", "1.5s", "2m" or "300us".
pub fn duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 =
        number.parse().map_err(|_| format!("{text:?} is not a time such as 10ms, 1.5s or 2m"))?;
    let seconds = match unit {
        "ns" => 1e-9,
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        "" => return Err(format!("{text:?} has no unit: write {text}ms or {text}s")),
        _ => {
            return Err(format!("{unit:?} is not a unit of time: ns, us, ms, s, m, h or d"));
        }
    };
    Duration::try_from_secs_f64(number * seconds).map_err(|_| format!("{text:?} is too long"))
}

pub fn dispatch(cli: Cli) -> Result<ExitCode> {
    if !cli.verbose {
        kernel::quiet();
    }
    match cli.command {
        TollgateCommand::Run(arguments) => run::run(&arguments),
        TollgateCommand::Lens(LensArguments {
            command: Some(LensCommand::Diff { before, after, result }),
            ..
        }) => lens::diff(&before, &after, &result),
        TollgateCommand::Lens(arguments) => lens::run_lens(&arguments),
        TollgateCommand::Guard(arguments) => guard::run(&arguments),
        TollgateCommand::Service(arguments) => service::run(&arguments),
        TollgateCommand::Plugin(arguments) => plugin::run(&arguments),
        TollgateCommand::Daemon(arguments) => daemon::run(&arguments),
        TollgateCommand::Cost(CostArguments { command }) => match command {
            CostCommand::Run(arguments) => cost::run(&arguments),
            CostCommand::List { json } => cost::list(json),
            CostCommand::Compare(arguments) => cost::compare(&arguments),
            CostCommand::Worker => cost::worker(),
        },
        TollgateCommand::Doctor(arguments) => {
            let mut output = Output::open(arguments.output.as_deref(), Output::Stdout)?;
            let (report, can_run) = crate::doctor::report(arguments.json)?;
            output.write(&report)?;
            Ok(ExitCode::from(u8::from(!can_run)))
        }
        TollgateCommand::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "tollgate", &mut script);
            Output::Stdout.write(&String::from_utf8_lossy(&script))?;
            Ok(ExitCode::SUCCESS)
        }
        TollgateCommand::Man { folder } => {
            clap_mangen::generate_to(Cli::command(), &folder)
                .with_context(|| format!("cannot write the man pages to {}", folder.display()))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Reports bad usage with clap's message and Tollgate's own status, which no command returns.
pub fn refuse(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    if error.use_stderr() { ExitCode::from(OWN_FAILURE) } else { ExitCode::SUCCESS }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn times_need_a_unit() {
        assert_eq!(duration("10ms"), Ok(Duration::from_millis(10)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(duration("7d"), Ok(Duration::from_secs(604_800)));
        assert!(duration("10").unwrap_err().contains("10ms"));
        assert!(duration("10x").unwrap_err().contains("unit"));
        assert!(duration("fast").is_err());
        assert!(duration("-1s").is_err());
    }
}
