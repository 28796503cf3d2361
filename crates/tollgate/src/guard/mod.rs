//! `tollgate guard`: slows down programs that depart from their normal call sequences
//! (docs/decisions/0003-guard.md).

mod activity;
mod arguments;
mod arms;
mod baseline;
mod clock;
mod commands;
mod container_image;
mod ended_programs;
mod event_file;
mod event_log;
mod event_recorder;
mod events;
mod executed_files;
mod extension;
mod file_digests;
mod filter;
mod hold_control;
mod identifier;
mod import;
mod import_export;
mod job_queue;
mod metrics;
mod persist;
mod placement;
mod policy;
mod preload;
mod program_file;
mod program_table;
mod replay;
mod replay_report;
mod replies;
mod report;
mod requests;
mod resolve;
mod response_text;
mod scopes;
mod selected_programs;
mod session;
mod show;
mod store;
mod store_folder;
mod top;
mod traces;
mod tracked_program;
mod training_stops;
mod transitions;
mod unguarded_programs;
mod watchdog;

use std::process::ExitCode;

use anyhow::Result;

use arguments::GuardCommand;
pub use arguments::{GuardCommandLine, StoreOption};
pub use arms::ARMS;
pub use commands::release_abandoned;
pub use events::Events;
pub use filter::{ExemptProgram, ProgramFilter};
pub use policy::{GuardArguments, GuardOptions, Mode, Policy};
pub use requests::REQUEST_KEY;
pub use session::GuardSetup;
use transitions::Transition;

pub fn run(arguments: &GuardCommandLine) -> Result<ExitCode> {
    match &arguments.command {
        GuardCommand::Replay(arguments) => replay::replay(arguments),
        GuardCommand::Show(arguments) => show::show(arguments),
        GuardCommand::Export(arguments) => import_export::export(arguments),
        GuardCommand::Import(arguments) => import_export::import(arguments),
        GuardCommand::Merge(arguments) => import_export::merge(arguments),
        GuardCommand::Normalize(arguments) => {
            commands::transition(Transition::Normalize, arguments)
        }
        GuardCommand::Tolerize(arguments) => commands::transition(Transition::Tolerize, arguments),
        GuardCommand::Sensitize(arguments) => {
            commands::transition(Transition::Sensitize, arguments)
        }
        GuardCommand::Reset(arguments) => commands::transition(Transition::Reset, arguments),
        GuardCommand::Status(arguments) => commands::status(arguments),
        GuardCommand::Top(socket) => top::top(socket),
        GuardCommand::Events(arguments) => commands::events(arguments),
        GuardCommand::Off(arguments) => commands::off(arguments),
        GuardCommand::On(socket) => commands::on(socket),
        GuardCommand::Hold(arguments) => commands::hold(arguments),
        GuardCommand::Release(arguments) => commands::release(arguments),
        GuardCommand::Watchdog(arguments) => watchdog::run_watchdog(arguments),
    }
}
