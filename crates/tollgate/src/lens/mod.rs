//! `tollgate lens`: reports where the kernel time of running processes goes, and compares reports.

mod arguments;
mod arms;
mod build_report;
mod diff;
mod options;
mod report;
mod report_text;
mod session;
mod slow_calls;
mod watch;

use std::process::ExitCode;

use anyhow::Result;

pub use arguments::LensArguments;
use arguments::LensCommand;
pub use arms::ARMS;
pub use options::LensOptions;
pub use session::LensSetup;

pub fn run(arguments: &LensArguments) -> Result<ExitCode> {
    match &arguments.command {
        Some(LensCommand::Diff { before, after, result }) => diff::diff(before, after, result),
        None => watch::watch(arguments),
    }
}
