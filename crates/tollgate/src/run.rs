//! `tollgate run`: a command through the gate, and a report when it ends.

use std::ffi::{CString, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use kernel::gate::Lock;
use kernel::process::{Command, Identity};
use kernel::session::Options;
use kernel::signals::Dispositions;

use crate::cli::{CANNOT_EXECUTE, LensOptions, NOT_FOUND, RunArguments};
use crate::format::command_line;
use crate::output::{Output, say};
use crate::plugin;
use crate::user;
use crate::watch::{Ending, Watch};

pub fn run(arguments: &RunArguments) -> Result<ExitCode> {
    let mut output = Output::open(arguments.result.output.as_deref(), Output::Stderr)?;
    let identity = arguments.user.as_deref().map(user::find).transpose()?;
    let words = &arguments.command;
    let program = match find_program(&words[0]) {
        Ok(program) => program,
        Err(refusal) => return refuse(&words[0], refusal),
    };
    let join = |service: &Option<String>| match service {
        Some(service) => crate::service::join(&arguments.socket, service),
        None => Ok(()),
    };
    let plugins = arguments.plugins.iter().map(|path| plugin::read(path)).collect::<Result<Vec<_>>>()?;
    let has_others = arguments.guard.mode.is_some() || !plugins.is_empty();
    if arguments.service.is_some() && !arguments.lens && !has_others {
        join(&arguments.service)?;
        let error = command(program, arguments, identity, Dispositions::take_over())?.execute();
        return refuse(&words[0], refusal(&error));
    }
    // Where Tollgate stays beside the command, its own work is not the service's.
    let home = match arguments.service {
        Some(_) => Some(crate::service::own_service(&arguments.socket)?),
        None => None,
    };
    let policy = arguments.guard.policy()?;
    let mut options = options(&arguments.lens_options);
    if has_others && !arguments.lens {
        if arguments.lens_options.is_given() {
            bail!(
                "--no-sites, --sample, --slower and --per need --lens where there is a --guard or a --plugin"
            );
        }
        options.mask = 0;
    }
    options.mask |= plugin::mask(&plugins, arguments.result.top, false, policy.is_some())?;
    let mut watch = match policy {
        Some(policy) => Watch::start_guarded(options, policy)?,
        None => Watch::start(options)?,
    };
    if let Some((guard, gate)) = watch.guard() {
        guard.expect_command(gate, &Lock::take()?, &program, words)?;
    }
    watch.load_plugins(&plugins)?;
    // Not before: until there is a command, Ctrl-C is for Tollgate.
    let signals = Dispositions::take_over();
    let command = command(program, arguments, identity, signals)?;
    watch.begin()?;
    join(&arguments.service)?;
    let mut child = {
        let _nursery = watch.gate.nursery(&watch.session, true)?;
        command.spawn()?
    };
    // The command runs: without its daemon, so does Tollgate.
    let _ = join(&home);
    if let Some(error) = child.exec_error() {
        child.collect()?;
        watch.give_up()?;
        return refuse(&words[0], refusal(&error));
    }
    while !child.ended_within(watch.patience(), watch.descriptor()) {
        watch.tend()?;
    }
    let (status, usage) = child.collect()?;
    let exit = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    let ending = Ending {
        command: words.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        exit: Some(exit),
        user_ns: Some(usage.user_ns),
        system_ns: Some(usage.system_ns),
        notes: Vec::new(),
        measures_toll: !arguments.lens_options.no_toll,
    };
    let document = watch.finish(ending)?;
    // The command's status counts for more than a report that nobody can read any more.
    if let Err(error) = arguments.result.print(&document, &mut output) {
        let _ = say(&format!("tollgate: {error:#}"));
    }
    Ok(ExitCode::from(exit as u8))
}

fn command(
    program: PathBuf,
    arguments: &RunArguments,
    identity: Option<Identity>,
    signals: Dispositions,
) -> Result<Command> {
    Ok(Command::new(
        c_string(program.into_os_string())?,
        arguments.command.iter().cloned().map(c_string).collect::<Result<_>>()?,
        std::env::vars_os().map(|(key, value)| c_string(join(key, value))).collect::<Result<_>>()?,
        identity,
        signals,
    ))
}

pub fn options(lens: &LensOptions) -> Options {
    Options {
        mask: lens.mask(),
        per: lens.per(),
        slower_ns: lens.slower.map_or(0, |limit| limit.as_nanos() as u64),
        ..Options::default()
    }
}

fn c_string(text: OsString) -> Result<CString> {
    CString::new(text.into_vec()).context("a word of the command has a NUL byte in it")
}

fn join(mut key: OsString, value: OsString) -> OsString {
    key.push("=");
    key.push(value);
    key
}

enum Refusal {
    NotFound,
    CannotExecute(std::io::Error),
}

fn refusal(error: &std::io::Error) -> Refusal {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR) => Refusal::NotFound,
        errno => Refusal::CannotExecute(std::io::Error::from_raw_os_error(errno.unwrap_or(libc::EIO))),
    }
}

/// As `env` does: 127 where there is no such command, 126 where it cannot be executed.
fn refuse(command: &OsString, refusal: Refusal) -> Result<ExitCode> {
    let name = command_line(&[command.to_string_lossy().into_owned()]);
    let (message, code) = match refusal {
        Refusal::NotFound if Path::new(command).components().count() > 1 => (
            format!("tollgate: cannot run {name}: there is no such file, or its interpreter is missing"),
            NOT_FOUND,
        ),
        Refusal::NotFound => (format!("tollgate: cannot run {name}: no such command in PATH"), NOT_FOUND),
        Refusal::CannotExecute(error) => (format!("tollgate: cannot run {name}: {error}"), CANNOT_EXECUTE),
    };
    let _ = say(&message);
    Ok(ExitCode::from(code))
}

/// Looks the command up as execvp does, so that the command itself makes a single execve.
fn find_program(name: &OsString) -> Result<PathBuf, Refusal> {
    if name.is_empty() {
        return Err(Refusal::NotFound);
    }
    if name.as_bytes().contains(&b'/') {
        return match executable(Path::new(name)) {
            Ok(true) => Ok(name.into()),
            Ok(false) => Err(Refusal::CannotExecute(std::io::Error::from_raw_os_error(libc::EACCES))),
            Err(error) => Err(refusal(&error)),
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let mut refused = Refusal::NotFound;
    for folder in std::env::split_paths(&path) {
        let candidate = folder.join(name);
        match executable(&candidate) {
            Ok(true) => return Ok(candidate),
            Ok(false) => refused = Refusal::CannotExecute(std::io::Error::from_raw_os_error(libc::EACCES)),
            Err(_) => {}
        }
    }
    Err(refused)
}

/// Whether a file that exists may be executed by somebody.
fn executable(path: &Path) -> std::io::Result<bool> {
    use std::os::unix::fs::PermissionsExt as _;
    let metadata = path.metadata()?;
    Ok(metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}
