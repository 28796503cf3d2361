//! `tollgate cost`: measures what arms cost on this machine, with confidence intervals
//! (docs/decisions/0002-cost.md).

mod active_arm;
mod analysis;
mod arguments;
mod arm_file;
mod arms;
mod block;
mod built_in;
mod compare;
mod environment;
mod interleave;
mod list;
mod measured;
mod other_gate;
mod plan;
mod process_group;
mod progress;
mod report;
mod run;
mod runner;
mod selection;
mod stopping;
mod summarize;
mod text;
mod worker;
mod worker_process;

use std::process::ExitCode;

use anyhow::Result;

pub use arguments::CostArguments;
use arguments::CostCommand;

pub fn run(arguments: &CostArguments) -> Result<ExitCode> {
    match &arguments.command {
        CostCommand::Run(arguments) => run::run(arguments),
        CostCommand::List { json } => list::list(*json),
        CostCommand::Compare(arguments) => compare::compare(arguments),
        CostCommand::Worker => worker::worker(),
    }
}
