//! `tollgate pace watch`: finds the tasks of programs, and compares the policies of speeds.

use std::process::ExitCode;

use ::pace::LevelFile;
use anyhow::{Result, bail};

use super::arguments::WatchArguments;
use super::watch_outcome::WatchOutcome;
use super::watch_session::PaceWatchSetup;
use super::{level_set, machine_levels, rules};
use crate::command::{self, find_program, refuse};
use crate::extension::ExtensionSetup;
use crate::output::{Output, without_numbers};
use crate::process_watch::{self, ProcessWatch};
use crate::report::print;
use crate::session_runner::SessionRunner;

pub fn watch(arguments: &WatchArguments) -> Result<ExitCode> {
    let words = &arguments.command;
    let otherwise = if words.is_empty() { Output::Stdout } else { Output::Stderr };
    let mut output = Output::open(arguments.result.output.as_deref(), otherwise)?;
    let trace = arguments.trace.as_ref().map(|path| Output::at(path, "the trace"));
    let trace = trace.transpose()?;
    for written in [Some(&output), trace.as_ref()].into_iter().flatten() {
        written.refuse_inputs(&arguments.levels)?;
        written.refuse_inputs(&arguments.rules)?;
    }
    let (rules, levels) = rules::read(arguments.rules.as_deref())?;
    let named = match levels {
        Some(levels) if arguments.levels.is_empty() => vec![levels],
        _ => level_set::find_all(&arguments.levels)?,
    };
    let (sets, summary) = compared(named)?;
    let outcome = WatchOutcome { sets, summary, trace };
    let setup: Box<dyn ExtensionSetup> = Box::new(PaceWatchSetup { rules, outcome });
    if words.is_empty() && arguments.select.is_empty() {
        bail!(
            "name a command to run and watch (-- CMD), or processes that run already (-p PID, \
            --comm NAME, --cgroup PATH, --unit UNIT or --all)"
        );
    }
    if words.is_empty() {
        let watched = ProcessWatch {
            select: &arguments.select,
            duration: arguments.duration,
            measures_toll: false,
        };
        let report = process_watch::watch(&watched, vec![setup])?;
        print(&report, &arguments.result, &mut output)?;
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.duration.is_some() {
        bail!("--for is for running processes; the watch of a command ends with the command");
    }
    if !arguments.select.is_empty() {
        bail!("give either a command, or processes to watch (-p, --comm, --cgroup, --unit, --all)");
    }
    let program = match find_program(&words[0]) {
        Ok(program) => program,
        Err(refusal) => return refuse(&words[0], refusal),
    };
    let mut runner = SessionRunner::start(vec![setup])?;
    runner.prepare_command(&program, words)?;
    let child = command::start(&mut runner, program, words, None, &[], || Ok(()))?;
    command::finish(runner, child, words, false, &arguments.result, &mut output)
}

/// The sets of levels to compare on, and a sentence about this machine.
fn compared(named: Vec<LevelFile>) -> Result<(Vec<LevelFile>, String)> {
    match machine_levels::find() {
        Ok(own) => {
            let summaries: Vec<_> = own
                .iter()
                .map(|set| {
                    let name = set.name.as_deref().unwrap_or_default();
                    format!("this machine ({name}): {}", level_set::summary(set))
                })
                .collect();
            let sets = if named.is_empty() { own } else { named };
            Ok((sets, summaries.join("; ")))
        }
        Err(error) => {
            let sets = if named.is_empty() { level_set::built_in()? } else { named };
            let what = "what follows is what pacing would do on other machines";
            Ok((sets, without_numbers(&format!("{error:#}; {what}"))))
        }
    }
}
