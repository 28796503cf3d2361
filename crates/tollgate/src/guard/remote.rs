//! Commands that a daemon carries out, and those on the store that it must know of.

use std::process::ExitCode;

use anyhow::{Result, bail};
use kernel::process::is_root;

use super::arguments::{
    EventsArguments, HoldArguments, OffArguments, Programs, ReleaseArguments, StatusArguments,
};
use super::control::{Request, Status};
use super::select::with_scope;
use super::store::Store;
use super::verbs::{Done, Verb, apply};
use crate::daemon::SocketOption;
use crate::daemon::control::{answer, ask, connect, running};
use crate::format::{number_of, printable};
use crate::output::{self, Output};
use crate::report::{Event, GuardedProgram, losses, scoped};

/// By the daemon, if one uses this store.
pub fn verb(verb: Verb, arguments: &Programs) -> Result<ExitCode> {
    let store = &arguments.store.folder;
    let absolute = |program: &String| {
        let (path, scope) = with_scope(program);
        let absolute = path.contains('/').then(|| std::path::absolute(path)).and_then(Result::ok);
        let scope = scope.map_or_else(String::new, |scope| format!("[{scope}]"));
        absolute.map_or_else(|| program.clone(), |path| path.to_string_lossy().into_owned() + &scope)
    };
    let programs: Vec<_> = arguments.programs.iter().map(absolute).collect();
    let done: Vec<Done> = if serves(&arguments.socket, store)? {
        answer(&arguments.socket, &Request::Verb { verb, programs })?
    } else {
        apply(&Store::new(store), verb, &programs)?
    };
    done.iter().try_for_each(|done| Output::Stdout.write(&format!("{}\n", done.line)))?;
    Ok(ExitCode::SUCCESS)
}

/// Whether a daemon uses this store; then everything that it knows is in it by now.
pub fn serves(socket: &SocketOption, store: &std::path::Path) -> Result<bool> {
    // Without the right to ask a daemon there is none to the store that it writes, either.
    let Ok(Some(stream)) = connect(&socket.path) else { return Ok(false) };
    let (folder, _) = ask(&stream, &Request::Store)?;
    Ok(store.canonicalize().is_ok_and(|store| folder.as_str() == store.to_str()))
}

pub fn status(arguments: &StatusArguments) -> Result<ExitCode> {
    let status: Status = answer(&arguments.socket, &Request::Status)?;
    let mut output = Output::open(arguments.output.as_deref(), Output::Stdout)?;
    if arguments.json {
        output.write_json(&status)?
    } else {
        output.write(&text(&status, arguments.top))?
    }
    Ok(ExitCode::SUCCESS)
}

/// Of weeks.
const CALLS_WIDTH: usize = 14;

fn text(status: &Status, top: usize) -> String {
    use std::fmt::Write as _;
    let mut out = losses(&status.losses);
    let off = if status.is_off { ", OFF: nobody is held until `tollgate guard on`" } else { "" };
    let _ = writeln!(out, "guard ({}) since {}, process {}{off}", status.mode, status.since, status.pid);
    if status.mode == "enforce" {
        let _ =
            writeln!(out, "response: {}; at most {} processes are held", status.response, status.held_most);
    }
    let unheld: u64 = status.programs.iter().map(|program| program.unheld).sum();
    if unheld > 0 {
        let unheld = number_of(unheld as usize, "call");
        let _ = writeln!(out, "{unheld} not held, as so many processes were already (--held-most)");
    }
    let states = |state: &str| status.programs.iter().filter(|program| program.state == state).count();
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
        let place =
            held.unit.iter().chain(&held.container).map(|name| format!("  {name}")).collect::<String>();
        let _ = writeln!(
            out,
            "{}",
            printable(&format!(
                "  {:>7}  {}  {}{place}  {}",
                held.pid,
                held.command,
                scoped(&held.program, held.scope.as_deref()),
                held.left()
            ))
        );
    }
    let _ = writeln!(out, "\n{}", GuardedProgram::heading(CALLS_WIDTH));
    for program in status.programs.iter().take(top) {
        let _ = writeln!(out, "{}", program.row(CALLS_WIDTH));
    }
    if status.programs.len() > top {
        let _ = writeln!(out, "… and {} more (--top)", status.programs.len() - top);
    }
    out
}

pub fn events(arguments: &EventsArguments) -> Result<ExitCode> {
    let stream = running(&arguments.socket.path)?;
    let (_, lines) = ask(&stream, &Request::Events { follow: arguments.follow })?;
    for line in lines {
        let text = if arguments.json { line } else { shown(&line)? };
        if !output::line(&text)? {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn shown(line: &str) -> Result<String> {
    let event: Event = serde_json::from_str(line)?;
    let mut text = format!("{}  {}", event.time, crate::daemon::line(&event));
    if let Some(usual) = event.usual(usize::MAX) {
        text += &format!("\n    {usual}");
    }
    Ok(text)
}

/// First by the tables of holds, as these need no daemon that answers.
pub fn off(arguments: &OffArguments) -> Result<ExitCode> {
    if !is_root() {
        bail!("only root may switch guards off");
    }
    let mut failures = Vec::new();
    if !arguments.daemon {
        let released = kernel::pinned::release(!arguments.killed)?;
        if released.of_killed > 0 || arguments.killed {
            let processes = number_of(released.of_killed, "process");
            print(&format!("let go of {processes} whose guard was killed"))?;
        }
        for (process, held) in released.of_living {
            let held = number_of(held, "process");
            print(&format!("the guard of process {process} is off; let go of {held}"))?;
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

/// Who means only the daemon is to know that there is none.
fn off_at(socket: &SocketOption, is_meant: bool) -> Result<ExitCode> {
    let stream = if is_meant { Some(running(&socket.path)?) } else { connect(&socket.path)? };
    let Some(stream) = stream else {
        return print(&format!("no daemon listens at {}", socket.path.display()));
    };
    let (value, _) = ask(&stream, &Request::Off)?;
    let released: Vec<String> = serde_json::from_value(value)?;
    released.iter().try_for_each(|line| print(line).map(drop))?;
    print("off: programs are watched, and nobody is held until `tollgate guard on`")
}

pub fn on(socket: &SocketOption) -> Result<ExitCode> {
    let _: Vec<String> = answer(socket, &Request::On)?;
    print("on: unusual calls are responded to again")
}

pub fn hold(arguments: &HoldArguments) -> Result<ExitCode> {
    for pid in &arguments.pids {
        let () = answer(&arguments.socket, &Request::Hold { pid: *pid })?;
        print(&format!("{pid}: held until `tollgate guard release {pid}`"))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub fn release(arguments: &ReleaseArguments) -> Result<ExitCode> {
    let request = Request::Release { whom: arguments.whom.clone() };
    let released: Vec<String> = answer(&arguments.socket, &request)?;
    if released.is_empty() {
        return print("nobody is held");
    }
    released.iter().try_for_each(|line| print(line).map(drop))?;
    Ok(ExitCode::SUCCESS)
}

fn print(line: &str) -> Result<ExitCode> {
    Output::Stdout.write(&format!("{line}\n"))?;
    Ok(ExitCode::SUCCESS)
}
