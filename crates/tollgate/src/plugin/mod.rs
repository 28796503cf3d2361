//! `tollgate plugin`: small C that runs in the kernel (docs/decisions/0006-plugin.md).

mod arguments;
mod bench;
mod build;
mod call;
mod check;
mod diagnostics;
mod hooks;
mod told;
mod variables;

use std::process::ExitCode;

use anyhow::Result;

pub use arguments::Arguments;
use arguments::Command;

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    match &arguments.command {
        Command::Check(arguments) => check::check(arguments),
        Command::Call(arguments) => call::call(arguments),
        Command::Bench(arguments) => bench::bench(arguments),
    }
}
