//! `tollgate pace simulate`: which deadlines of a trace each policy would have met, and how much
//! energy it would have used.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ::pace::MIN_SAMPLES;
use anyhow::{Result, bail};

use super::arguments::SimulateArguments;
use super::comparison::{announce, report, simulated};
use super::simulate_report::simulation_text;
use super::trace_file::read;
use super::{level_set, plot};
use crate::output::Output;

pub fn simulate(arguments: &SimulateArguments) -> Result<ExitCode> {
    let mut output = Output::open(arguments.output.as_deref(), Output::Stdout)?;
    output.refuse_inputs(&arguments.traces)?;
    output.refuse_inputs(&arguments.levels)?;
    let sets = match arguments.levels.is_empty() {
        true => level_set::built_in()?,
        false => level_set::find_all(&arguments.levels)?,
    };
    let trace = Arc::new(read(&arguments.traces)?);
    if trace.tasks.len() < 2 * MIN_SAMPLES {
        bail!(
            "at least {} tasks are needed, because half of them train the policies, but the trace \
            has {}",
            2 * MIN_SAMPLES,
            trace.tasks.len()
        );
    }
    announce(&trace, "");
    // An interrupt ends the process.
    let simulated = simulated(sets, &trace, &AtomicBool::new(false)).expect("nothing cancels it");
    let report = report(&simulated, &trace);
    if let Some(folder) = &arguments.plot {
        plot::write(folder, &simulated, &report, &trace)?;
    }
    match arguments.json {
        true => output.write_json(&report)?,
        false => output.write(&simulation_text(&report, arguments.top.unwrap_or(usize::MAX)))?,
    }
    Ok(ExitCode::SUCCESS)
}
