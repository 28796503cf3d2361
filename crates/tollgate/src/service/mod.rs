//! `tollgate service`: work follows its owner across processes (docs/decisions/0005-service.md).

mod arguments;
mod check;
mod problems;
mod source;
mod words;

use std::process::ExitCode;

use anyhow::Result;

pub use arguments::Arguments;
use arguments::Command;

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    match &arguments.command {
        Command::Check(arguments) => check::check(arguments),
    }
}
