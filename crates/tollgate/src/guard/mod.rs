//! `tollgate guard`: programs that leave their normal call sequences are slowed down (docs/decisions/0003-guard.md).

mod arguments;
mod replay;
mod report;
mod traces;

use std::process::ExitCode;

use anyhow::Result;

pub use arguments::Arguments;
use arguments::Command;

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    match &arguments.command {
        Command::Replay(arguments) => replay::replay(arguments),
    }
}
