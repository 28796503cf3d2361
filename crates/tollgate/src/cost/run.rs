//! `tollgate cost run`: measures arms, and reports what they cost.

use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use stats::sequential::rightspeed;

use super::analysis::ControlVerdict;
use super::arguments::{CostRunArguments, StopRule};
use super::environment::Environment;
use super::measured::Measured;
use super::other_gate::is_gated;
use super::plan::Plan;
use super::progress::Progress;
use super::runner::pinned_cpu;
use super::selection::{select_arms, select_benchmarks};
use super::summarize::conclude;
use super::text;
use crate::exit_status::OWN_FAILURE;
use crate::output::{Output, print_message, without_numbers};

/// Enough for about a hundred quads of all benchmarks.
const BUDGET: Duration = Duration::from_secs(600);

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Measures the arms that the command line selects, and prints the report.
pub fn run(arguments: &CostRunArguments) -> Result<ExitCode> {
    let mut output = Output::open(arguments.output.as_deref(), Output::Stdout)?;
    output.refuse_inputs(&arguments.arm_file)?;
    let cpu = pinned_cpu()?;
    let plan = Plan {
        arms: select_arms(arguments)?,
        benchmarks: select_benchmarks(&arguments.bench, cpu)?,
        stop: arguments.stop,
        precision: arguments.precision,
        settle: arguments.settle,
        budget: arguments.budget.unwrap_or(match arguments.stop {
            StopRule::Precision => BUDGET,
            StopRule::Rightspeed => rightspeed::TIME,
        }),
        seed: arguments.seed.unwrap_or_else(any_seed),
    };
    if is_gated() {
        bail!(
            "a gate is loaded already: end the other Tollgate sessions, whose cost would be in \
            every arm"
        );
    }
    kernel::signals::on_interrupt(&INTERRUPTED)?;
    let mut environment = Environment::now(cpu);
    let mut progress = Progress::new(plan.budget, plan.precision);
    let mut measured = Measured::default();
    let result = plan.run(&mut measured, &INTERRUPTED, &mut progress);
    progress.finish();
    environment.ended(measured.clock_ns, measured.loop_ns);
    let error = result.err().map(|error| without_numbers(&format!("{error:#}")));
    let failed = error.is_some();
    if let Some(error) = &error {
        let _ = print_message(&format!("tollgate: {error}"));
    }
    let report = conclude(&plan, measured, environment, arguments.limit, error);
    let untrusted = report.controls_with(ControlVerdict::Failed);
    if arguments.json && untrusted > 0 {
        let _ = print_message(&format!(
            "tollgate: {untrusted} of {} controls failed: the figures cannot be trusted",
            report.controls.len()
        ));
    }
    if arguments.json {
        output.write_json(&report)?;
    } else {
        output.write(&text::text(&report))?;
    }
    Ok(ExitCode::from(if failed { OWN_FAILURE } else { report.conclusion().status() }))
}

/// A seed that JSON readers keep exact: below 2^53.
fn any_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_nanos() as u64 >> 11)
}
