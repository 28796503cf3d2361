//! `tollgate pace`: tasks with deadlines, each run no faster than it needs
//! (docs/decisions/0009-pace.md).

mod actuators;
mod arguments;
mod arms;
mod comparison;
mod cycle_counter;
mod domain_speed;
mod estimator_chooser;
mod hardware_counts;
mod json_error;
mod json_object;
mod learned_type;
mod level_set;
mod levels;
mod machine_levels;
mod margin;
mod metrics;
mod paced_types;
mod pacing_report;
mod pacing_session;
mod pacing_setup;
mod picture_names;
mod plot;
mod policy;
mod recorder;
mod report_commands;
mod report_format;
mod requests;
mod restore;
mod rules;
mod sample_store;
mod simulate;
mod simulate_report;
mod speed_thread;
mod speed_watchdog;
mod trace_file;
mod tracked_tasks;
mod type_table;
mod types_command;
mod verdict;
mod watch;
mod watch_outcome;
mod watch_report;
mod watch_session;

use std::process::ExitCode;

use anyhow::Result;

use arguments::PaceCommand;
pub use arguments::{PaceCommandLine, PacingOptions};
pub use arms::ARMS;
pub use pacing_setup::PacingSetup;
pub use requests::REQUEST_KEY;
pub use restore::restore_abandoned;

pub fn run(arguments: &PaceCommandLine) -> Result<ExitCode> {
    match &arguments.command {
        PaceCommand::Levels(arguments) => levels::levels(arguments),
        PaceCommand::Report(arguments) => report_commands::report(arguments),
        PaceCommand::Reset(arguments) => types_command::reset(arguments),
        PaceCommand::Restore => restore::restore(),
        PaceCommand::Simulate(arguments) => simulate::simulate(arguments),
        PaceCommand::Top(socket) => report_commands::top(socket),
        PaceCommand::Types(arguments) => types_command::types(arguments),
        PaceCommand::Watch(arguments) => watch::watch(arguments),
        PaceCommand::Watchdog => speed_watchdog::run_watchdog(),
    }
}
