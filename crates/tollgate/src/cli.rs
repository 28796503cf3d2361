//! The command line: every option is defined here once; help, completions and the man page follow from it.

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
use crate::report::{Document, Layout, text};
use crate::{cost, daemon, guard, lens, plugin, run, select, service};

/// As `env` and `timeout` do.
pub const OWN_FAILURE: u8 = 125;
pub const CANNOT_EXECUTE: u8 = 126;
pub const NOT_FOUND: u8 = 127;

const EXIT_STATUS: &str = "\
Exit status:
  run     the command's own, or 128 + N if signal N ended it; 127 if there is no such command,
          126 if it cannot be executed, 125 if Tollgate itself failed before it began; a report
          that cannot be written later is told on stderr only
  doctor  1 if `tollgate run` cannot work here
  others  0, or 125 if they failed

Environment:
  NO_COLOR         no colours in messages
  TOLLGATE_STORE   the folder of the guard's baselines, where --store does not say
  TOLLGATE_SOCKET  the daemon's control socket, where --socket does not say";

/// A programmable gate at the Linux system-call boundary: see where a program's kernel time goes, and what
/// looking cost.
#[derive(Parser)]
#[command(name = "tollgate", version, after_help = EXIT_STATUS, disable_help_subcommand = true, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    /// Also show what libbpf and the kernel's verifier say
    // The last before --help, in the help of every command.
    #[arg(short, long, global = true, display_order = 900)]
    pub verbose: bool,
}

#[derive(Subcommand)]
// Options of other commands are nothing to this one, and take a third of a millisecond to put together.
#[command(defer = true)]
pub enum Command {
    /// Run a command through the gate and report where its kernel time went
    ///
    /// The command is seen from its first instruction on, with all its threads and child processes, until it
    /// ends. Its stdin, stdout, exit status and signals stay its own: a signal to Tollgate is passed on (one that kill
    /// sends to the whole process group may come twice). What the command leaves running is let go. The report goes to
    /// stderr, or to a file.
    Run(RunArguments),
    /// Report the same for processes that already run
    ///
    /// Watches until --for has passed, or until Ctrl-C, or until the last of the processes has ended.
    Lens(LensArguments),
    /// What programs normally do: baselines, which `run --guard` and the daemon use, and whom the daemon holds
    Guard(guard::Arguments),
    /// Virtual services: whose work a thread does, and what that uses
    ///
    /// `tollgate daemon --services FILE` puts services and rules in force; all but `check` ask it.
    Service(service::Arguments),
    /// Plugins: small C that is compiled here, and runs in the kernel
    ///
    /// docs/ecode.md has the language. No compiler is needed on the machine.
    Plugin(plugin::Arguments),
    /// Guard the whole machine, or a part of it, or charge its work to services, until stopped
    ///
    /// Guard: learns what every program normally does, tells what is unusual, and with --guard=enforce responds to it. `tollgate
    /// guard status`, `top`, `events`, `off`, `hold` and `release` talk to it, and so do `normalize` and the like. PID 1,
    /// Tollgate, the journal, the SSH server and the session that it was started from are never held, unless --exe names them.
    ///
    /// Services: puts a file of services and rules in force, by which each thread works for one of them at a time. `tollgate
    /// service report`, `top`, `list`, `explain`, `assign` and `apply` talk to it.
    ///
    /// Plugins: runs them at their hooks, for all processes that it gates. `tollgate plugin load`, `list`, `show`, `swap`, `unload` and
    /// the like talk to it.
    ///
    /// SIGTERM or Ctrl-C ends it: what the guard learned is stored, everybody whom it holds runs again, nobody works for
    /// a service any more, and no plugin runs.
    Daemon(daemon::DaemonArguments),
    /// Measure what an extension, an agent, a tracer or a setting costs on this machine, and how sure that is
    Cost(CostArguments),
    /// Find out what this kernel offers, and what Tollgate uses instead of what it lacks
    Doctor(DoctorArguments),
    /// Print a completion script for a shell
    Completions { shell: clap_complete::Shell },
    /// Write the man pages, one a command, to a folder
    #[command(hide = true)]
    Man { folder: PathBuf },
}

#[derive(Args)]
#[command(after_long_help = RUN_EXAMPLES)]
pub struct RunArguments {
    /// Time calls and say where they block (the default without another extension)
    #[arg(long)]
    pub lens: bool,
    #[command(flatten)]
    pub lens_options: LensOptions,
    #[command(flatten)]
    pub result: ResultOptions,
    /// Run the command as this user (a name, UID or UID:GID) while Tollgate stays root
    #[arg(short, long, value_name = "USER")]
    pub user: Option<String>,
    /// Have the command work for this service of a running daemon (`tollgate service list`)
    ///
    /// Without --lens, --guard and --plugin, Tollgate becomes the command, and nothing is reported.
    #[arg(long, value_name = "NAME")]
    pub service: Option<String>,
    /// Run this plugin at its hooks, for the command; may be repeated (docs/ecode.md has the language)
    ///
    /// What it prints goes to stderr; its variables and maps are in the report. It is called as its file, without what is behind the
    /// dot; of several with the same name, the later ones NAME-2, NAME-3 and so on.
    #[arg(long = "plugin", value_name = "FILE")]
    pub plugins: Vec<PathBuf>,
    #[command(flatten)]
    pub socket: SocketOption,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<OsString>,
    // Last, as the heading is that of all that follows.
    #[command(flatten, next_help_heading = "Guard")]
    pub guard: guard::GuardArguments,
}

const RUN_EXAMPLES: &str = "\
Examples:
  tollgate run -- tar cf /dev/null /usr/include
  tollgate run --per process --top 5 -- make -j4
  tollgate run --slower 10ms -u www-data -- ./server --port 8080
  tollgate run --json -o report.json -- ./benchmark
  tollgate run --service shop -- ./nightly-report
  tollgate run --plugin examples/reads.ec -- tar cf /dev/null /usr/include
  tollgate run --guard=learn -- ./server, then tollgate guard normalize ./server, then
  tollgate run --guard=enforce -- ./server";

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, after_long_help = LENS_EXAMPLES)]
pub struct LensArguments {
    #[command(subcommand)]
    pub command: Option<LensCommand>,
    #[command(flatten)]
    pub select: Select,
    /// Watch for this long (10s, 500ms, 2m); without it, until Ctrl-C
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
        /// A report written with --json
        before: PathBuf,
        /// The report to compare with it
        after: PathBuf,
        #[command(flatten)]
        result: ResultOptions,
    },
}

// Which processes; several options add up.
#[derive(Args, Debug, Default)]
pub struct Select {
    /// The process with this number, all its threads, and what it forks; may be repeated
    #[arg(short, long, value_name = "PID")]
    pub pid: Vec<u32>,
    /// Processes with this command name (its first 15 bytes count); also later ones, looked for twice a second
    #[arg(long, value_name = "NAME", value_parser = OsStringValueParser::new().try_map(not_empty))]
    pub comm: Vec<OsString>,
    /// Processes in this control group or below it (a path under /sys/fs/cgroup, or as /proc/PID/cgroup
    /// names it); also later ones, as above
    #[arg(long, value_name = "PATH", value_parser = select::parse_cgroup)]
    pub cgroup: Vec<String>,
    /// Processes of this systemd unit; also later ones, as above
    #[arg(long, value_name = "UNIT", value_parser = NonEmptyStringValueParser::new())]
    pub unit: Vec<String>,
    /// Every process of the machine but this one
    #[arg(long)]
    pub all: bool,
}

// What the lens records.
#[derive(Args)]
pub struct LensOptions {
    /// Leave out where calls block (saves a stack walk at some of the sleeps)
    #[arg(long)]
    no_sites: bool,
    /// Time only some of the cheap calls (one in sixteen on average); count all, and say how sure the times are
    #[arg(long)]
    sample: bool,
    /// Also list the slowest of the calls that take at least this long (10ms, 1s), each with its time,
    /// thread, arguments and stacks
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub slower: Option<Duration>,
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

// The result's format and place.
#[derive(Args)]
pub struct ResultOptions {
    /// Print one JSON document instead of text
    #[arg(long)]
    pub json: bool,
    /// Write the result to a file, or - for stdout (default: stdout; for run, stderr)
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Show at most this many rows of each list of the text
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

/// Compare arms with nothing on, block by block in random order
///
/// Each arm is switched on and off anew for each block, and the workload started anew. Two controls are in every
/// run: A/A (nothing on, twice) and an injected cost of about 2 %. A benchmark ends when the intervals of all its
/// rows are as narrow as --precision, or when the time is up.
#[derive(Args)]
#[command(after_long_help = COST_STATUS)]
pub struct CostRunArguments {
    /// Benchmarks, by comma (default: all, each on one processor; NAME:free leaves it to the scheduler)
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub bench: Vec<String>,
    /// An arm to compare with nothing on; may be repeated (default: lens, or all arms of --arm-file)
    #[arg(long, value_name = "NAME")]
    pub arm: Vec<String>,
    /// Arms of one's own: tables [arm.NAME] with start and stop, background, under, settle, loss, limit, hooks
    #[arg(long, value_name = "ARMS.toml")]
    pub arm_file: Option<PathBuf>,
    /// Stop when a row's 95 % interval is this much to each side
    #[arg(long, value_name = "PART", default_value = "0.5%", value_parser = percentage)]
    pub precision: f64,
    /// Stop when this much time has passed, but not before the first quad (default: 10m; with --stop rightspeed 2,000 s)
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub budget: Option<Duration>,
    /// Wait at least this much between the workloads of two blocks (default: as long as the slowest arm needs)
    #[arg(long, value_name = "TIME", default_value = "0s", hide_default_value = true, value_parser = duration)]
    pub settle: Duration,
    /// The rule that ends a benchmark before the time is up
    #[arg(long, value_enum, value_name = "RULE", default_value = "precision")]
    pub stop: cost::Stop,
    /// What an arm may cost
    #[arg(long, value_name = "PART", default_value = "2%", value_parser = percentage)]
    pub limit: f64,
    /// The order of blocks again (default: a new one)
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Print one JSON document instead of text, with every sample
    #[arg(long)]
    pub json: bool,
    /// Write the result to a file, or - for stdout (the default)
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

const COST_STATUS: &str = "\
Exit status:
  0 within the limit, 1 dearer or controls failed, 3 inconclusive, 125 for errors";

/// Compare two runs' arms, such as before and after a change
#[derive(Args)]
#[command(after_long_help = COST_STATUS)]
pub struct CostCompareArguments {
    /// A document written with --json
    pub before: PathBuf,
    /// The document to compare with it
    pub after: PathBuf,
    /// How much dearer an arm may have become
    #[arg(long, value_name = "PART", default_value = "2%", value_parser = percentage)]
    pub limit: f64,
    /// Print one JSON document instead of text
    #[arg(long)]
    pub json: bool,
    /// Write the result to a file, or - for stdout (the default)
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

#[derive(Args)]
pub struct DoctorArguments {
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
    /// Write the result to a file, or - for stdout (the default)
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl LensOptions {
    pub fn is_given(&self) -> bool {
        self.no_sites || self.sample || self.slower.is_some() || self.per.is_some()
    }

    pub fn mask(&self) -> u32 {
        let mut mask = wire::LENS;
        if !self.no_sites {
            mask |= wire::LENS_SITES;
        }
        if self.sample {
            mask |= wire::LENS_SAMPLE;
        }
        if self.slower.is_some() {
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
    pub fn print(&self, document: &Document, output: &mut Output) -> Result<()> {
        let body = if self.json {
            serde_json::to_string_pretty(document)? + "\n"
        } else {
            text(document, &Layout { top: self.top })
        };
        output.write(&body)
    }
}

fn not_empty(name: OsString) -> Result<OsString, &'static str> {
    if name.is_empty() { Err("it is empty") } else { Ok(name) }
}

/// "0.5%", "2%": as a fraction of 1.
fn percentage(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').ok_or_else(|| format!("{text:?} has no %: say {text}%"))?;
    match number.trim().parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent.is_finite() => Ok(percent / 100.0),
        _ => Err(format!("{text:?} is not a part such as 0.5% or 2%")),
    }
}

/// "10ms", "2s", "1.5s", "2m", "300us".
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
        "" => return Err(format!("{text:?} has no unit: say {text}ms or {text}s")),
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
        Command::Run(arguments) => run::run(&arguments),
        Command::Lens(LensArguments {
            command: Some(LensCommand::Diff { before, after, result }), ..
        }) => lens::diff(&before, &after, &result),
        Command::Lens(arguments) => lens::watch(&arguments),
        Command::Guard(arguments) => guard::run(&arguments),
        Command::Service(arguments) => service::run(&arguments),
        Command::Plugin(arguments) => plugin::run(&arguments),
        Command::Daemon(arguments) => daemon::run(&arguments),
        Command::Cost(CostArguments { command }) => match command {
            CostCommand::Run(arguments) => cost::run(&arguments),
            CostCommand::List { json } => cost::list(json),
            CostCommand::Compare(arguments) => cost::compare(&arguments),
            CostCommand::Worker => cost::worker(),
        },
        Command::Doctor(arguments) => {
            let mut output = Output::open(arguments.output.as_deref(), Output::Stdout)?;
            let (report, can_run) = crate::doctor::report(arguments.json)?;
            output.write(&report)?;
            Ok(ExitCode::from(u8::from(!can_run)))
        }
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "tollgate", &mut script);
            Output::Stdout.write(&String::from_utf8_lossy(&script))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Man { folder } => {
            clap_mangen::generate_to(Cli::command(), &folder)
                .with_context(|| format!("cannot write the man pages to {}", folder.display()))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Bad usage: the message clap wrote, and Tollgate's own status, which is no command's.
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
