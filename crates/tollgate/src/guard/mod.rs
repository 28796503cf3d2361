//! `tollgate guard`: programs that leave their normal call sequences are slowed down (docs/decisions/0003-guard.md).

mod arguments;
mod baseline;
mod content;
mod control;
mod exchange;
mod expect;
mod file;
mod image;
mod keep;
mod live;
mod placement;
mod policy;
mod program;
mod rehearsal;
mod remote;
mod replay;
mod report;
mod scope;
mod select;
mod selection;
mod show;
mod store;
mod top;
mod traces;
mod verbs;
mod warden;

use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;

use arguments::Command;
pub use arguments::{Arguments, StoreOption};
pub use control::{Request, Status};
pub use keep::Save;
pub use live::{Guard, Notice};
pub use policy::{GuardArguments, GuardOptions, Mode, Policy, watching};
pub use selection::Selection;
use verbs::Verb;

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    match &arguments.command {
        Command::Replay(arguments) => replay::replay(arguments),
        Command::Show(arguments) => show::show(arguments),
        Command::Export(arguments) => exchange::export(arguments),
        Command::Import(arguments) => exchange::import(arguments),
        Command::Merge(arguments) => exchange::merge(arguments),
        Command::Normalize(arguments) => remote::verb(Verb::Normalize, arguments),
        Command::Tolerize(arguments) => remote::verb(Verb::Tolerize, arguments),
        Command::Sensitize(arguments) => remote::verb(Verb::Sensitize, arguments),
        Command::Reset(arguments) => remote::verb(Verb::Reset, arguments),
        Command::Status(arguments) => remote::status(arguments),
        Command::Top(socket) => top::top(socket),
        Command::Events(arguments) => remote::events(arguments),
        Command::Off(arguments) => remote::off(arguments),
        Command::On(socket) => remote::on(socket),
        Command::Hold(arguments) => remote::hold(arguments),
        Command::Release(arguments) => remote::release(arguments),
        Command::Warden(arguments) => warden::keep(arguments),
    }
}

/// A clock before 1970 is set wrongly, and not worth a failure.
fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
