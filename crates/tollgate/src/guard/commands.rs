//! Commands that a daemon executes, and commands on the store that a daemon must know about.

use std::process::ExitCode;

use anyhow::{Result, bail};
use kernel::process::is_root;

use super::arguments::{
    EventsArguments, HoldArguments, OffArguments, ProgramArguments, ReleaseArguments,
    StatusArguments,
};
use super::report::{
    GuardEvent, GuardedPrograms, RETRAINED, continues_text, unidentified_text, with_scope,
};
use super::requests::{GuardRequest, Status};
use super::resolve::split_scope;
use super::store::Store;
use super::transitions::{Transition, TransitionResult, apply};
use crate::daemon_client::{connect, connect_required, request_one, send_request};
use crate::format::{number_of, printable, shown_path};
use crate::options::SocketOption;
use crate::output::{self, Output, print_message};
use crate::report::losses;

/// The same programs, whose paths are absolute: a daemon has another current folder.
fn with_absolute_paths(programs: &[String]) -> Vec<String> {
    let absolute = |program: &String| {
        let (path, scope) = split_scope(program);
        let absolute = path.contains('/').then(|| std::path::absolute(path)).and_then(Result::ok);
        let scope = scope.map_or_else(String::new, |scope| format!("[{scope}]"));
        absolute
            .map_or_else(|| program.clone(), |path| path.to_string_lossy().into_owned() + &scope)
    };
    programs.iter().map(absolute).collect()
}

/// Applies a transition: through the daemon if one uses this store.
pub fn transition(transition: Transition, arguments: &ProgramArguments) -> Result<ExitCode> {
    let store = &arguments.store.folder;
    let programs = with_absolute_paths(&arguments.programs);
    let done: Vec<TransitionResult> = if is_served_by_daemon(&arguments.socket, store)? {
        request_one(&arguments.socket, &GuardRequest::Transition { transition, programs })?
    } else {
        apply(&Store::new(store), transition, &programs)?
    };
    done.iter().try_for_each(|done| Output::Stdout.write(&format!("{}\n", done.line)))?;
    Ok(ExitCode::SUCCESS)
}

/// Whether a daemon uses this store. If so, the daemon has stored everything that it knows by the
/// time this function returns.
pub fn is_served_by_daemon(socket: &SocketOption, store: &std::path::Path) -> Result<bool> {
    // A process that may not connect to a daemon has no access to the daemon's store either.
    let Ok(Some(stream)) = connect(&socket.path) else { return Ok(false) };
    let (folder, _) = send_request(stream, &GuardRequest::Store)?;
    Ok(store.canonicalize().is_ok_and(|store| folder.as_str() == store.to_str()))
}

/// Prints the state of the daemon's guard.
pub fn status(arguments: &StatusArguments) -> Result<ExitCode> {
    let status: Status = request_one(&arguments.socket, &GuardRequest::Status)?;
    let mut output = Output::open(arguments.output.as_deref(), Output::Stdout)?;
    if arguments.json {
        output.write_json(&status)?
    } else {
        output.write(&text(&status, arguments.top, output.columns()))?
    }
    Ok(ExitCode::SUCCESS)
}

/// Wide enough for the number of calls of some weeks.
const CALLS_WIDTH: usize = 14;

fn text(status: &Status, top: usize, columns: Option<usize>) -> String {
    use std::fmt::Write as _;
    let mut out = losses(&status.losses);
    let off =
        if status.is_off { ", OFF: no process is held until `tollgate guard on`" } else { "" };
    let _ = writeln!(
        out,
        "guard ({}) since {}, process {}{off}",
        status.mode, status.since, status.pid
    );
    if status.mode == "enforce" {
        let _ = writeln!(
            out,
            "response: {}; at most {} processes are held",
            status.response, status.held_most
        );
    }
    let unheld: u64 = status.programs.iter().map(|program| program.unheld).sum();
    if unheld > 0 {
        let unheld = number_of(unheld as usize, "call");
        let _ = writeln!(out, "{unheld} not held, because --max-held processes were held already");
    }
    if let Some(continues) = continues_text(status.foreign_continues) {
        let _ = writeln!(out, "{continues}");
    }
    if let Some(ended) = unidentified_text(status.unidentified) {
        let _ = writeln!(out, "{ended}");
    }
    for program in status.programs.iter().filter(|program| program.retrained > 0) {
        let _ = writeln!(out, "{}: {RETRAINED}", program.title());
    }
    let states =
        |state: &str| status.programs.iter().filter(|program| program.state == state).count();
    let _ = writeln!(
        out,
        "{}: {} training, {} frozen, {} normal",
        number_of(status.programs.len(), "program"),
        states("training"),
        states("frozen"),
        states("normal")
    );
    let _ = writeln!(out, "\nheld now: {}", number_of(status.held.len(), "process"));
    for held in &status.held {
        let location = held
            .unit
            .iter()
            .chain(&held.container)
            .map(|name| format!("  {name}"))
            .collect::<String>();
        let _ = writeln!(
            out,
            "{}",
            printable(&format!(
                "  {:>7}  {}  {}{location}  {}",
                held.pid,
                held.command,
                with_scope(&held.program, held.scope.as_deref()),
                held.left()
            ))
        );
    }
    let shown = &status.programs[..status.programs.len().min(top)];
    let table = GuardedPrograms::new(shown, CALLS_WIDTH, columns);
    let _ = writeln!(out, "\n{}", table.heading());
    for program in shown {
        let _ = writeln!(out, "{}", table.row(program));
        if let Some(line) = program.not_identified_text() {
            let _ = writeln!(out, "  {line}");
        }
    }
    let left_out = table.left_out();
    if !left_out.is_empty() {
        let _ = writeln!(out, "{left_out}");
    }
    if status.programs.len() > top {
        let _ = writeln!(out, "… and {} more (--top)", status.programs.len() - top);
    }
    out
}

/// Prints the events that the daemon has recorded, and with `--follow` later ones.
pub fn events(arguments: &EventsArguments) -> Result<ExitCode> {
    let stream = connect_required(&arguments.socket.path)?;
    let (_, lines) = send_request(stream, &GuardRequest::Events { follow: arguments.follow })?;
    if arguments.follow {
        output::end_with_the_reader()?;
    }
    for line in lines {
        let text = if arguments.json { line } else { event_text(&line)? };
        if !output::line(&text)? {
            return Ok(ExitCode::SUCCESS);
        }
    }
    if arguments.follow {
        bail!("the daemon has ended");
    }
    Ok(ExitCode::SUCCESS)
}

fn event_text(line: &str) -> Result<String> {
    let event: GuardEvent = serde_json::from_str(line)?;
    let mut text = format!("{}  {}", event.time, event.line());
    if let Some(expected) = event.expected_text(usize::MAX) {
        text += &format!("\n    {expected}");
    }
    Ok(text)
}

/// Releases the processes of guards that were killed together with their watchdogs. All commands
/// begin with this. Only root can have started a guard, and only root can release its processes.
pub fn release_abandoned() {
    if !is_root() {
        return;
    }
    let messages = match kernel::guard::hold_table::release_orphaned_holds(false) {
        Ok(released) => {
            let mut messages = released.failures;
            if released.of_killed > 0 {
                let processes = number_of(released.of_killed, "process");
                messages.push(format!("released {processes} whose guard was killed"));
            }
            messages
        }
        Err(error) => vec![format!("{:#}", anyhow::Error::from(error))],
    };
    for message in messages {
        let _ = print_message(&format!("tollgate: {message}"));
    }
}

/// Uses the tables of holds first, because this works even if the daemon does not respond.
pub fn off(arguments: &OffArguments) -> Result<ExitCode> {
    if !is_root() {
        bail!("only root may switch guards off");
    }
    let mut failures = Vec::new();
    if !arguments.daemon {
        let released = kernel::guard::hold_table::release_orphaned_holds(!arguments.killed)?;
        if released.of_killed > 0 || arguments.killed {
            let processes = number_of(released.of_killed, "process");
            print(&format!("released {processes} whose guard was killed"))?;
        }
        for (process, held) in released.of_living {
            let held = number_of(held, "process");
            print(&format!("switched off the guard of process {process}; released {held}"))?;
        }
        failures = released.failures;
    }
    if !arguments.killed
        && let Err(error) = off_at(&arguments.socket, arguments.daemon)
    {
        failures.push(format!("{error:#}"));
    }
    if !failures.is_empty() {
        bail!(failures.join("; "));
    }
    Ok(ExitCode::SUCCESS)
}

/// Switches off the guard of the daemon at the socket. With `is_required`, it is an error if no
/// daemon is listening.
fn off_at(socket: &SocketOption, is_required: bool) -> Result<ExitCode> {
    let stream =
        if is_required { Some(connect_required(&socket.path)?) } else { connect(&socket.path)? };
    let Some(stream) = stream else {
        return print(&format!("no daemon is listening at {}", shown_path(&socket.path)));
    };
    let (value, _) = send_request(stream, &GuardRequest::Off)?;
    let released: Vec<String> = serde_json::from_value(value)?;
    released.iter().try_for_each(|line| print(line).map(drop))?;
    print("off: anomalies are only reported, and no process is held, until `tollgate guard on`")
}

/// Switches responses on again.
pub fn on(socket: &SocketOption) -> Result<ExitCode> {
    let _: Vec<String> = request_one(socket, &GuardRequest::On)?;
    print("on: the guard responds to anomalies again")
}

/// Holds processes one by one. If one cannot be held, the others are held nevertheless.
pub fn hold(arguments: &HoldArguments) -> Result<ExitCode> {
    let mut failures = Vec::new();
    for pid in &arguments.pids {
        let held: Result<()> = request_one(&arguments.socket, &GuardRequest::Hold { pid: *pid });
        if let Err(error) = held {
            // Without a daemon, all fail for the same reason.
            let failure = format!("{error:#}");
            failures.extend(Some(failure).filter(|failure| !failures.contains(failure)));
            continue;
        }
        print(&format!("{pid}: held until `tollgate guard release {pid}`"))?;
    }
    // `main` prints the last failure.
    let Some(last) = failures.pop() else { return Ok(ExitCode::SUCCESS) };
    for failure in failures {
        print_message(&format!("tollgate: {failure}"))?;
    }
    bail!(last)
}

/// Releases held processes.
pub fn release(arguments: &ReleaseArguments) -> Result<ExitCode> {
    let request = GuardRequest::Release { targets: with_absolute_paths(&arguments.targets) };
    let released: Vec<String> = request_one(&arguments.socket, &request)?;
    if released.is_empty() {
        return print("no process is held");
    }
    released.iter().try_for_each(|line| print(line).map(drop))?;
    Ok(ExitCode::SUCCESS)
}

fn print(line: &str) -> Result<ExitCode> {
    Output::Stdout.write(&format!("{line}\n"))?;
    Ok(ExitCode::SUCCESS)
}
