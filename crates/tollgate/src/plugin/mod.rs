//! `tollgate plugin`: small C that runs in the kernel (docs/decisions/0006-plugin.md).

mod arguments;
mod bench;
mod build;
mod call;
mod check;
pub mod control;
mod counted;
mod diagnostics;
mod hooks;
mod listing;
pub mod live;
mod remote;
pub mod state;
mod swap;
mod told;
mod variables;

use std::process::ExitCode;

use anyhow::Result;

pub use arguments::Arguments;
use arguments::Command;
pub use build::read;
pub use control::Request;
pub use live::{Plugins, mask};
pub use state::State;
pub use told::{Line, Told};

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    match &arguments.command {
        Command::Check(arguments) => check::check(arguments),
        Command::Build(arguments) => listing::build(arguments),
        Command::Call(arguments) => call::call(arguments),
        Command::Bench(arguments) => bench::bench(arguments),
        Command::Load(arguments) => remote::load(arguments),
        Command::List(arguments) => remote::list(arguments),
        Command::Show(arguments) => remote::show(arguments),
        Command::Set(arguments) => remote::set(arguments),
        Command::Log(arguments) => remote::log(arguments),
        Command::Swap(arguments) => remote::swap(arguments),
        Command::Unload(arguments) => remote::unload(arguments),
    }
}
