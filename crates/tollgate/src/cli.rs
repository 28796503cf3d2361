//! The command line. Every option is defined here once; help, completions and the man pages are
//! generated from it.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::{Args, CommandFactory, Parser, Subcommand};
use kernel::standard_stream::StandardStream;

use crate::exit_status::OWN_FAILURE;
use crate::format::shown_path;
use crate::output::Output;
use crate::{cost, daemon, guard, lens, man_pages, pace, plugin, run, service};

const EXIT_STATUS: &str = "\
Exit status:
  run     the command's exit status, or 128 + N if signal N ended it; 127 if the command is not
          found, 126 if it cannot be executed, 125 if Tollgate failed before it started the
          command; a report that cannot be written at the end causes only a message on stderr; if
          SIGINT ended the command, it ends Tollgate, too
  cost    `run` and `compare`: 1 above a limit, 3 if inconclusive (see their help)
  doctor  1 if `tollgate run` cannot work here
  others  0, or 125 if they failed

Environment:
  NO_COLOR             if set, messages have no colours
  TOLLGATE_STORE       folder of the guard's baselines, unless --store is given
  TOLLGATE_PACE_STORE  folder of pace's samples, unless --pace-store is given
  TOLLGATE_SOCKET      control socket of the daemon, unless --socket is given";

/// A programmable gate at the Linux system-call boundary: see where a program's kernel time goes,
/// and what the measurement costs.
#[derive(Parser)]
#[command(
    name = "tollgate",
    version,
    after_help = EXIT_STATUS,
    disable_help_subcommand = true,
    infer_long_args = true,
    max_term_width = 100
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: TollgateCommand,
    /// Also print the messages of libbpf and of the kernel's verifier
    // This order places the option last before --help in the help of every command.
    #[arg(short, long, global = true, display_order = 900)]
    pub verbose: bool,
}

#[derive(Subcommand)]
// Deferred, because each command needs only its own options, and those of all commands take a third
// of a millisecond to build.
#[command(defer = true)]
pub enum TollgateCommand {
    /// Run a command through the gate and report where its kernel time went
    ///
    /// The command is watched from its first instruction until it ends, with all its threads and
    /// child processes. It keeps its stdin, stdout, exit status and signals: Tollgate passes on
    /// each signal that it receives, except SIGCHLD, SIGKILL and SIGSTOP. So a signal sent to the
    /// whole process group may reach the command twice. Processes that outlive the command continue
    /// unwatched. The report goes to stderr, or to a file.
    Run(run::RunArguments),
    /// Report where the kernel time of running processes goes
    ///
    /// Watches until the time of --for has passed, Ctrl-C is pressed, or the last of the processes
    /// has ended.
    Lens(lens::LensArguments),
    /// Manage baselines of normal behaviour, and control the daemon's guard
    Guard(guard::GuardCommandLine),
    /// Charge the work of threads to virtual services, and limit what the services use
    ///
    /// `tollgate daemon --services FILE` activates services and rules. All commands except `check`
    /// send a request to that daemon.
    Service(service::ServiceCommandLine),
    /// Compile plugins, small programs in a C dialect, and run them in the kernel
    ///
    /// docs/ecode.md describes the language. The machine needs no compiler.
    Plugin(plugin::PluginCommandLine),
    /// Find out whether lower speeds would save energy, and set them for tasks with deadlines
    ///
    /// `tollgate pace watch` shows what lower speeds would save, and changes no speed. `tollgate
    /// run --pace FILE` and `tollgate daemon --pace FILE` set the speeds of the processors.
    Pace(pace::PaceCommandLine),
    /// Guard the machine, charge work to services, pace tasks, or run plugins, until stopped
    ///
    /// Guard: the daemon learns what each program normally does, reports anomalies, and with
    /// --guard=enforce responds to them. Control it with `tollgate guard status`, `top`, `events`,
    /// `off`, `hold` and `release`; `normalize` and the other commands on baselines apply to it,
    /// too. PID 1, Tollgate, the journal and the SSH server are never held, unless --exe names
    /// them. Without --exe, the processes of the login session (setsid) that started the daemon
    /// are not held either.
    ///
    /// Services: the daemon activates the services and rules of a file. The rules assign each
    /// thread to one service at a time. Control it with `tollgate service report`, `top`, `list`,
    /// `explain`, `assign`, `limit` and `apply`.
    ///
    /// Plugins: the daemon runs plugins at their hooks, for all processes that it gates. Control
    /// them with `tollgate plugin load`, `list`, `show`, `set`, `log`, `swap` and `unload`.
    ///
    /// Pace: the daemon runs tasks with deadlines no faster than they need. It sets the speeds of
    /// the processors while such tasks are unfinished. `tollgate pace report` and `top` show the
    /// tasks, and `tollgate pace reset` discards what was learned of a type.
    ///
    /// SIGTERM or Ctrl-C ends the daemon. It then stores what the guard has learned, releases all
    /// held processes, restores the speeds, and removes services and plugins from the kernel.
    Daemon(daemon::DaemonArguments),
    /// Measure what an extension, an agent, a tracer or a setting costs on this machine, with
    /// confidence intervals
    Cost(cost::CostArguments),
    /// Show which features this kernel has, and what Tollgate uses in place of missing ones
    Doctor(DoctorArguments),
    /// Print a completion script for a shell
    Completions { shell: clap_complete::Shell },
    /// Print the help of a command, as `--help` does
    #[command(hide = true)]
    Help { command: Vec<OsString> },
    /// Write the man pages, one for each command, to a folder
    #[command(hide = true)]
    Man { folder: PathBuf },
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

/// Executes the command, and returns its exit status.
pub fn dispatch(cli: Cli) -> Result<ExitCode> {
    if !cli.verbose {
        kernel::quiet();
    }
    // `pace restore` reports what it restores, and the watchdog waits until its process has ended.
    let restores = matches!(&cli.command, TollgateCommand::Pace(pace) if pace.restores_speeds());
    if !restores {
        pace::restore_abandoned();
    }
    // `guard off` reports what it releases, and the watchdog waits until its process has ended.
    let releases =
        matches!(&cli.command, TollgateCommand::Guard(guard) if guard.releases_processes());
    if !releases {
        guard::release_abandoned();
    }
    let lifts = matches!(&cli.command, TollgateCommand::Service(service) if service.lifts_limits());
    if !lifts {
        service::lift_abandoned();
    }
    match cli.command {
        TollgateCommand::Run(arguments) => run::run(&arguments),
        TollgateCommand::Lens(arguments) => lens::run(&arguments),
        TollgateCommand::Guard(arguments) => guard::run(&arguments),
        TollgateCommand::Service(arguments) => service::run(&arguments),
        TollgateCommand::Plugin(arguments) => plugin::run(&arguments),
        TollgateCommand::Pace(arguments) => pace::run(&arguments),
        TollgateCommand::Daemon(arguments) => daemon::run(&arguments),
        TollgateCommand::Cost(arguments) => cost::run(&arguments),
        TollgateCommand::Doctor(arguments) => {
            let mut output = Output::open(arguments.output.as_deref(), Output::Stdout)?;
            let (report, can_run) = crate::doctor::report(arguments.json, output.columns())?;
            output.write(&report)?;
            Ok(ExitCode::from(u8::from(!can_run)))
        }
        TollgateCommand::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "tollgate", &mut script);
            Output::Stdout.write(&String::from_utf8_lossy(&script))?;
            Ok(ExitCode::SUCCESS)
        }
        TollgateCommand::Help { command } => help(command),
        TollgateCommand::Man { folder } => {
            man_pages::write(Cli::command(), &folder).with_context(|| {
                format!("cannot write the man pages to {}", shown_path(&folder))
            })?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn help(command: Vec<OsString>) -> Result<ExitCode> {
    let words = ["tollgate".into()].into_iter().chain(command).chain(["--help".into()]);
    match Cli::try_parse_from(words) {
        // `tollgate help run -- ls` names no option of Tollgate.
        Ok(_) => help(Vec::new()),
        Err(error) => refuse(&error),
    }
}

/// Parses the command line.
pub fn parse() -> Result<Cli, clap::Error> {
    Cli::try_parse().map_err(|error| {
        // Help, which is an error as well, names the variables.
        if !error.use_stderr() {
            return error;
        }
        // The usage in a message shows the options that are given, and not those by which
        // environment variables are read. Without the variables, there may be no error.
        let mut command = Cli::command();
        command.build();
        with_clear_errors(command).try_get_matches().err().unwrap_or(error)
    })
}

/// Without the variables, and with negative numbers as values of options: the message then names
/// the option, and does not call the number an unexpected argument.
fn with_clear_errors(command: clap::Command) -> clap::Command {
    let with_clear_error = |argument: clap::Arg| {
        let is_option = argument.get_action().takes_values() && !argument.is_positional();
        argument.env(None::<&str>).allow_negative_numbers(is_option)
    };
    command.mut_args(with_clear_error).mut_subcommands(with_clear_errors)
}

/// Prints clap's message. Bad usage has the exit status of Tollgate's own failures; help succeeds.
pub fn refuse(error: &clap::Error) -> Result<ExitCode> {
    if error.use_stderr() {
        // If the terminal is gone, this error cannot be printed.
        let _ = error.print();
        return Ok(ExitCode::from(OWN_FAILURE));
    }
    let what = match error.kind() {
        clap::error::ErrorKind::DisplayVersion => "the version",
        _ => "the help",
    };
    let cannot_write = || format!("cannot write {what} to stdout");
    ensure!(!StandardStream::STDOUT.was_closed(), "{}: it is closed", cannot_write());
    match error.print() {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        printed => printed.with_context(cannot_write)?,
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    /// The full names of the command's visible parts that its help does not describe.
    fn undescribed(command: &clap::Command, path: &str) -> Vec<String> {
        let arguments = command
            .get_arguments()
            .filter(|argument| !argument.is_hide_set() && argument.get_help().is_none())
            .map(|argument| format!("{path} {}", argument.get_id()));
        let commands = command.get_subcommands().filter(|command| !command.is_hide_set());
        let of_commands = commands.flat_map(|command| {
            let path = format!("{path} {}", command.get_name());
            let own = command.get_about().is_none().then(|| path.clone());
            own.into_iter().chain(undescribed(command, &path)).collect::<Vec<_>>()
        });
        arguments.chain(of_commands).collect()
    }

    #[test]
    fn help_describes_every_command_and_argument() {
        assert_eq!(undescribed(&Cli::command(), "tollgate"), Vec::<String>::new());
    }
}
