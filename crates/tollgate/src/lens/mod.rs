//! `tollgate lens`: reports where the kernel time of running processes goes, and compares reports.

mod account;
mod arguments;
mod arms;
mod build_report;
mod call_table;
mod cell_values;
mod demangle;
mod diff;
mod file_name;
mod file_table;
mod files;
mod flame;
mod histogram_text;
mod in_band_server;
mod kernel_source;
mod options;
mod order;
mod report;
mod report_text;
mod requests;
mod session;
mod single_calls_text;
mod slow_calls;
mod top;
mod trace;
mod user_symbols;
mod why_report;
mod why_text;

use std::process::ExitCode;

use anyhow::Result;

use crate::output::Output;
use crate::process_watch::{self, ProcessWatch};
use crate::report::print;
pub use arguments::LensArguments;
use arguments::LensCommand;
pub use arms::ARMS;
pub use in_band_server::InBandSocket;
pub use options::LensOptions;
pub use session::LensSetup;

pub fn run(arguments: &LensArguments) -> Result<ExitCode> {
    match &arguments.command {
        Some(LensCommand::Top(arguments)) => top::top(arguments),
        Some(LensCommand::Diff { before, after, result }) => diff::diff(before, after, result),
        None => watch(arguments),
    }
}

/// Watches running processes, and reports at the end.
fn watch(arguments: &LensArguments) -> Result<ExitCode> {
    let mut output = Output::open(arguments.result.output.as_deref(), Output::Stdout)?;
    let watched = ProcessWatch {
        select: &arguments.select,
        duration: arguments.duration,
        measures_toll: !arguments.lens_options.no_toll,
    };
    let report = process_watch::watch(&watched, vec![Box::new(arguments.lens_options.setup()?)])?;
    print(&report, &arguments.result, &mut output)?;
    Ok(ExitCode::SUCCESS)
}
