//! `tollgate pace`: tasks with deadlines, each run no faster than it needs
//! (docs/decisions/0009-pace.md).

mod arguments;
mod arms;
mod comparison;
mod level_set;
mod levels;
mod machine_levels;
mod plot;
mod policy;
mod recorder;
mod rules;
mod session;
mod simulate;
mod simulate_report;
mod trace_file;
mod watch;
mod watch_outcome;
mod watch_report;

use std::process::ExitCode;

use anyhow::Result;

use arguments::PaceCommand;
pub use arguments::PaceCommandLine;
pub use arms::ARMS;

pub fn run(arguments: &PaceCommandLine) -> Result<ExitCode> {
    match &arguments.command {
        PaceCommand::Levels(arguments) => levels::levels(arguments),
        PaceCommand::Simulate(arguments) => simulate::simulate(arguments),
        PaceCommand::Watch(arguments) => watch::watch(arguments),
    }
}
