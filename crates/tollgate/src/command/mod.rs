//! Runs a command in a session.

mod find_program;

use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use kernel::clock::now_ns;
use kernel::job_control::{detach_tracees, reap_orphans, stop_with, stopped_by};
use kernel::process::{Child, GatedCommand};
use kernel::signals::Dispositions;

use crate::exit_status;
use crate::options::ResultOptions;
use crate::output::{Output, print_message, wait_for_messages};
use crate::report::print;
use crate::session_runner::{SessionEnd, SessionRunner};
use crate::user::User;
use crate::watchdog::is_watchdog;
pub use find_program::{find_program, refusal, refuse};

/// The note on a command that has called ptrace(PTRACE_TRACEME).
const TRACE_ME: &str =
    "the command has asked its parent to trace it, which is Tollgate: it is not traced";

/// Starts a command in a session. The session's extensions must have been prepared for the command.
/// `before` is called just before the command's process is created. Fails with an exit status if
/// the program cannot be executed. `variables` are set in the command's environment.
pub fn start(
    runner: &mut SessionRunner,
    program: PathBuf,
    words: &[OsString],
    user: Option<User>,
    variables: &[(OsString, OsString)],
    before: impl FnOnce() -> Result<()>,
) -> Result<Result<Child, ExitCode>> {
    // Signals are taken over only now, because Ctrl-C is for Tollgate until the command exists.
    let command = gated(program, words, user, variables, Dispositions::take_over())?;
    runner.begin(&[])?;
    before()?;
    let mut child = {
        let _pending = runner.pending_children()?;
        command.spawn()?
    };
    if let Some(error) = child.exec_error() {
        child.reap()?;
        return Ok(Err(refuse(&words[0], refusal(&error))?));
    }
    Ok(Ok(child))
}

/// Tends the session until the command has ended, and prints the report. Returns the exit status of
/// the command, or that of its refusal ([`start`]); if SIGINT has ended the command, it ends
/// Tollgate, too. Once the command runs, a failure becomes a note of the report: neither what was
/// measured nor the exit status is lost.
pub fn finish(
    mut runner: SessionRunner,
    started: Result<Child, ExitCode>,
    words: &[OsString],
    measures_toll: bool,
    options: &ResultOptions,
    output: &mut Output,
) -> Result<ExitCode> {
    let child = match started {
        Ok(child) => child,
        Err(refused) => {
            runner.cancel()?;
            return Ok(refused);
        }
    };
    let mut notes = Vec::new();
    while !child.ended_within(runner.deadline(), runner.descriptor()) {
        if let Err(error) = runner.tend() {
            note_once(&mut notes, format!("{error:#}"));
        }
        if detach_tracees(child.pid) {
            note_once(&mut notes, TRACE_ME.to_owned());
        }
        if let Some(signal) = stopped_by(child.pid)
            && !runner.is_stopped_by_guard(child.pid)
        {
            stop_with(child.pid, signal);
        }
        reap_orphans(|ended| ended == child.pid || is_watchdog(ended));
    }
    let ended_ns = now_ns();
    let (status, usage) = child.reap()?;
    let exit = exit_status::of_command(status);
    let ending = SessionEnd {
        command: words.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        exit: Some(exit),
        ended_ns: Some(ended_ns),
        user_ns: Some(usage.user_ns),
        system_ns: Some(usage.system_ns),
        notes,
        measures_toll,
    };
    // The command's status matters more than a report that has no reader any more.
    if let Err(error) = print(&runner.finish(ending), options, output) {
        let _ = print_message(&format!("tollgate: {error:#}"));
    }
    if status.signal() == Some(libc::SIGINT) {
        wait_for_messages(None);
        kernel::signals::end_by_interrupt();
    }
    Ok(ExitCode::from(exit as u8))
}

/// The failure of a periodic action is repeated until the end, but noted once.
fn note_once(notes: &mut Vec<String>, note: String) {
    if !notes.contains(&note) {
        notes.push(note);
    }
}

/// The command as the kernel crate starts it.
pub fn gated(
    program: PathBuf,
    words: &[OsString],
    user: Option<User>,
    variables: &[(OsString, OsString)],
    signals: Dispositions,
) -> Result<GatedCommand> {
    let of_user = user.iter().flat_map(|user| &user.environment);
    let of_user = of_user.map(|(name, value)| (OsString::from(name), OsString::from(value)));
    let changes: Vec<_> = of_user.chain(variables.iter().cloned()).collect();
    let is_changed = |name: &OsString| changes.iter().any(|(changed, _)| changed == name);
    let kept = std::env::vars_os().filter(|(name, _)| !is_changed(name)).collect::<Vec<_>>();
    Ok(GatedCommand::new(
        c_string(program.into_os_string())?,
        words.iter().cloned().map(c_string).collect::<Result<_>>()?,
        kept.into_iter()
            .chain(changes)
            .map(|(name, value)| c_string(join(name, value)))
            .collect::<Result<_>>()?,
        user.map(|user| user.credentials),
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
