//! `tollgate plugin`: programs in a small C that run in the kernel (docs/decisions/0006-plugin.md).

mod arguments;
mod arms;
mod bench;
mod call;
mod check;
mod commands;
mod compile;
mod disassembly;
mod extension;
mod faults;
mod hooks;
mod log_followers;
mod problems;
mod records;
mod replies;
mod report;
mod requests;
mod session;
mod state_transfer;
mod suitability;
mod variables;

use std::process::ExitCode;

use anyhow::Result;

use arguments::PluginCommand;
pub use arguments::PluginCommandLine;
pub use arms::ARMS;
pub use compile::read_all;
pub use session::{PluginScope, PluginSetup};

pub fn run(arguments: &PluginCommandLine) -> Result<ExitCode> {
    match &arguments.command {
        PluginCommand::Check(arguments) => check::check(arguments),
        PluginCommand::Build(arguments) => disassembly::build(arguments),
        PluginCommand::Call(arguments) => call::call(arguments),
        PluginCommand::Bench(arguments) => bench::bench(arguments),
        PluginCommand::Load(arguments) => commands::load(arguments),
        PluginCommand::List(arguments) => commands::list(arguments),
        PluginCommand::Show(arguments) => commands::show(arguments),
        PluginCommand::Set(arguments) => commands::set(arguments),
        PluginCommand::Log(arguments) => commands::log(arguments),
        PluginCommand::Swap(arguments) => commands::swap(arguments),
        PluginCommand::Unload(arguments) => commands::unload(arguments),
    }
}
