//! `tollgate run`: runs a command through the gate, and reports when it ends.

use std::ffi::{CString, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use kernel::gate::Lock;
use kernel::process::{Credentials, GatedCommand};
use kernel::signals::Dispositions;

use crate::exit_status::{CANNOT_EXECUTE, NOT_FOUND};
use crate::format::command_line;
use crate::guard::GuardArguments;
use crate::lens::LensOptions;
use crate::options::{ResultOptions, SocketOption};
use crate::output::{Output, print_message};
use crate::plugin;
use crate::report::print;
use crate::session_runner::{SessionEnd, SessionRunner};
use crate::user;

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
    pub guard: GuardArguments,
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

pub fn run(arguments: &RunArguments) -> Result<ExitCode> {
    let mut output = Output::open(arguments.result.output.as_deref(), Output::Stderr)?;
    let identity = arguments.user.as_deref().map(user::find).transpose()?;
    let words = &arguments.command;
    let program = match find_program(&words[0]) {
        Ok(program) => program,
        Err(refusal) => return refuse(&words[0], refusal),
    };
    let join = |service: &Option<String>| match service {
        Some(service) => crate::service::assign_self(&arguments.socket, service),
        None => Ok(()),
    };
    let plugins =
        arguments.plugins.iter().map(|path| plugin::read(path)).collect::<Result<Vec<_>>>()?;
    let has_others = arguments.guard.mode.is_some() || !plugins.is_empty();
    if arguments.service.is_some() && !arguments.lens && !has_others {
        join(&arguments.service)?;
        let error = command(program, arguments, identity, Dispositions::take_over())?.execute();
        return refuse(&words[0], refusal(&error));
    }
    // If Tollgate keeps running beside the command, its own work must not be charged to the
    // service.
    let home = match arguments.service {
        Some(_) => Some(crate::service::own_service(&arguments.socket)?),
        None => None,
    };
    let policy = arguments.guard.policy()?;
    let lens = match has_others && !arguments.lens {
        false => arguments.lens_options.setup(),
        true if arguments.lens_options.is_given() => bail!(
            "with --guard or --plugin, the options --no-sites, --sample, --slower-than and --per \
            need --lens"
        ),
        true => LensSetup::off(),
    };
    let has_guard = policy.is_some();
    let mut extensions: Vec<Box<dyn ExtensionSetup>> = vec![Box::new(lens)];
    if let Some(policy) = policy {
        extensions.push(Box::new(GuardSetup { policy, daemon: None }));
    }
    if !plugins.is_empty() {
        let top = arguments.result.top;
        extensions.push(Box::new(PluginSetup::of_command(plugins, top, has_guard)?));
    }
    let mut watch = SessionRunner::start(extensions)?;
    watch.prepare_command(&program, words)?;
    // Not earlier: until the command exists, Ctrl-C is for Tollgate.
    let signals = Dispositions::take_over();
    let command = command(program, arguments, identity, signals)?;
    watch.begin()?;
    join(&arguments.service)?;
    let mut child = {
        let _pending = watch.pending_children()?;
        command.spawn()?
    };
    // The command runs already, so Tollgate continues even if the daemon has ended.
    let _ = join(&home);
    if let Some(error) = child.exec_error() {
        child.reap()?;
        watch.cancel()?;
        return refuse(&words[0], refusal(&error));
    }
    while !child.ended_within(watch.deadline(), watch.descriptor()) {
        watch.tend()?;
    }
    let (status, usage) = child.reap()?;
    let exit = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    let ending = SessionEnd {
        command: words.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        exit: Some(exit),
        user_ns: Some(usage.user_ns),
        system_ns: Some(usage.system_ns),
        notes: Vec::new(),
        measures_toll: !arguments.lens_options.no_toll,
    };
    let document = watch.finish(ending)?;
    // The command's status matters more than a report that has no reader any more.
    if let Err(error) = print(&document, &arguments.result, &mut output) {
        let _ = print_message(&format!("tollgate: {error:#}"));
    }
    Ok(ExitCode::from(exit as u8))
}

fn command(
    program: PathBuf,
    arguments: &RunArguments,
    identity: Option<Credentials>,
    signals: Dispositions,
) -> Result<GatedCommand> {
    Ok(GatedCommand::new(
        c_string(program.into_os_string())?,
        arguments.command.iter().cloned().map(c_string).collect::<Result<_>>()?,
        std::env::vars_os()
            .map(|(key, value)| c_string(join(key, value)))
            .collect::<Result<_>>()?,
        identity,
        signals,
    ))
}

fn c_string(text: OsString) -> Result<CString> {
    CString::new(text.into_vec()).context("an argument of the command contains a NUL byte")
}

fn join(mut key: OsString, value: OsString) -> OsString {
    key.push("=");
    key.push(value);
    key
}

enum ExecFailure {
    NotFound,
    CannotExecute(std::io::Error),
}

fn refusal(error: &std::io::Error) -> ExecFailure {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR) => ExecFailure::NotFound,
        errno => ExecFailure::CannotExecute(std::io::Error::from_raw_os_error(
            errno.unwrap_or(libc::EIO),
        )),
    }
}

/// Like `env`: 127 if the command does not exist, and 126 if it cannot be executed.
fn refuse(command: &OsString, refusal: ExecFailure) -> Result<ExitCode> {
    let name = command_line(&[command.to_string_lossy().into_owned()]);
    let (message, code) = match refusal {
        ExecFailure::NotFound if Path::new(command).components().count() > 1 => (
            format!(
                "tollgate: cannot run {name}: there is no such file, or its interpreter is missing"
            ),
            NOT_FOUND,
        ),
        ExecFailure::NotFound => {
            (format!("tollgate: cannot run {name}: no such command in PATH"), NOT_FOUND)
        }
        ExecFailure::CannotExecute(error) => {
            (format!("tollgate: cannot run {name}: {error}"), CANNOT_EXECUTE)
        }
    };
    let _ = print_message(&message);
    Ok(ExitCode::from(code))
}

/// Looks the command up like execvp, so that the command itself makes a single execve.
fn find_program(name: &OsString) -> Result<PathBuf, ExecFailure> {
    if name.is_empty() {
        return Err(ExecFailure::NotFound);
    }
    if name.as_bytes().contains(&b'/') {
        return match executable(Path::new(name)) {
            Ok(true) => Ok(name.into()),
            Ok(false) => {
                Err(ExecFailure::CannotExecute(std::io::Error::from_raw_os_error(libc::EACCES)))
            }
            Err(error) => Err(refusal(&error)),
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let mut refused = ExecFailure::NotFound;
    for folder in std::env::split_paths(&path) {
        let candidate = folder.join(name);
        match executable(&candidate) {
            Ok(true) => return Ok(candidate),
            Ok(false) => {
                refused =
                    ExecFailure::CannotExecute(std::io::Error::from_raw_os_error(libc::EACCES))
            }
            Err(_) => {}
        }
    }
    Err(refused)
}

/// Whether an existing file may be executed by any user.
fn executable(path: &Path) -> std::io::Result<bool> {
    use std::os::unix::fs::PermissionsExt as _;
    let metadata = path.metadata()?;
    Ok(metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}
