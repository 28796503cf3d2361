//! `tollgate guard`: programs that leave their normal call sequences are slowed down (docs/decisions/0003-guard.md).

mod arguments;
mod baseline;
mod exchange;
mod live;
mod policy;
mod program;
mod replay;
mod report;
mod select;
mod show;
mod store;
mod traces;
mod verbs;
mod warden;

use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;

pub use arguments::Arguments;
use arguments::Command;
pub use live::{Guard, Notice};
pub use policy::{GuardArguments, Policy, watching};

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    match &arguments.command {
        Command::Replay(arguments) => replay::replay(arguments),
        Command::Show(arguments) => show::show(arguments),
        Command::Export(arguments) => exchange::export(arguments),
        Command::Import(arguments) => exchange::import(arguments),
        Command::Merge(arguments) => exchange::merge(arguments),
        Command::Normalize(arguments) => verbs::normalize(arguments),
        Command::Tolerize(arguments) => verbs::tolerize(arguments),
        Command::Sensitize(arguments) => verbs::sensitize(arguments),
        Command::Reset(arguments) => verbs::reset(arguments),
        Command::Warden(arguments) => warden::keep(arguments),
    }
}

/// A clock before 1970 is set wrongly, and not worth a failure.
fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
