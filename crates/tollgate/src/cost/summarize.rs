//! Summarizes the measurements as a report.

use stats::interval::median;

use super::analysis::{
    Differences, RowLabel, StoppedBy, aa, carry_over, differences, injected, row, row_verdicts,
};
use super::arms::{Arm, OFF};
use super::environment::Environment;
use super::measured::Measured;
use super::plan::{AA, BASE, INJECTED, Plan};
use super::report::{CostReport, SCHEMA};

/// The report of the measurements. After an error, it has what was measured before.
pub fn conclude(
    plan: &Plan,
    measured: Measured,
    environment: Environment,
    limit: f64,
    error: Option<String>,
) -> CostReport {
    let has_quads =
        |index: &usize| measured.times.get(*index).is_some_and(|times| !times[BASE].is_empty());
    let (benchmarks, without): (Vec<_>, Vec<_>) = (0..plan.benchmarks.len()).partition(has_quads);
    let is_below_noise =
        |index: &usize| measured.stopped_by.get(*index) == Some(&Some(StoppedBy::Noise));
    let below_noise = without
        .into_iter()
        .filter(is_below_noise)
        .map(|index| plan.benchmarks[index].name.to_string())
        .collect();
    let of = |index: usize, arm: usize| {
        differences(&measured.times[index][arm], &measured.times[index][BASE])
    };
    let floors: Vec<_> = plan.arms.iter().map(|arm| floor_of(arm, &plan.arms)).collect();
    let (mut rows, mut with_verdict) = (Vec::new(), Vec::<(usize, Differences)>::new());
    let (mut controls, mut leftovers) = (Vec::new(), Vec::new());
    for &index in &benchmarks {
        let placed = &plan.benchmarks[index];
        for (arm, kind) in plan.arms.iter().enumerate().skip(INJECTED + 1) {
            let own = of(index, arm);
            let about = RowLabel {
                benchmark: placed.name.to_string(),
                unit: placed.benchmark.unit.into(),
                arm: kind.name.to_string(),
                base: OFF.into(),
                floor: floors[arm].map(|floor| plan.arms[floor].name.to_string()),
                stopped_by: measured.stopped_by[index].unwrap_or(StoppedBy::Interrupt),
                loss: measured.losses[arm],
            };
            let floor =
                floors[arm].filter(|_| placed.benchmark.in_floors).map(|floor| of(index, floor));
            let Some(row) = row(about, &own, floor.as_ref()) else { continue };
            if !kind.is_reference {
                with_verdict.push((rows.len(), own));
            }
            rows.push(row);
        }
        let count = 2 * benchmarks.len();
        controls.extend(aa(&placed.name, &of(index, AA).logs, count));
        let truth = 1.0 + median(&measured.injected[index]);
        controls.extend(injected(&placed.name, &of(index, INJECTED).logs, truth, count));
        leftovers.extend(carry_over(
            &placed.name,
            &measured.after[index],
            benchmarks.len() * plan.arms.len(),
        ));
    }
    let logs: Vec<_> = with_verdict.iter().map(|(_, own)| own.logs.as_slice()).collect();
    for ((index, _), verdict) in with_verdict.iter().zip(row_verdicts(&logs, limit)) {
        rows[*index].verdict = Some(verdict);
    }
    CostReport {
        schema: SCHEMA.into(),
        command: std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect(),
        environment,
        precision: plan.precision,
        limit,
        budget_s: plan.budget.as_secs_f64(),
        elapsed_s: measured.elapsed.as_secs_f64(),
        seed: plan.seed,
        partial: error.is_some() || measured.was_interrupted,
        error,
        counts: measured.counts,
        controls,
        rows,
        below_noise,
        carry_over: leftovers,
        samples: measured.raw,
    }
}

/// The arm whose toll is the floor of this arm's toll.
fn floor_of(arm: &Arm, arms: &[Arm]) -> Option<usize> {
    let name = Arm::floor(&arm.hooks()?).name;
    arms.iter().position(|arm| arm.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use kernel::benchmark;
    use kernel::gate_programs::GateHook;

    use super::super::analysis::BlockTime;
    use super::super::arguments::StopRule;
    use super::super::built_in::built_in;
    use super::super::measured::RawBlock;
    use super::super::plan::BenchmarkRun;
    use super::*;
    use crate::output::Output;

    #[test]
    fn arms_are_compared_with_the_floor_of_their_hooks() {
        let arms =
            [Arm::floor(&[GateHook::SYS_ENTER]), Arm::floor(&GateHook::used(kernel::wire::LENS))];
        let lens = built_in().into_iter().map(|(arm, _)| arm).find(|arm| &*arm.name == "lens");
        assert_eq!(floor_of(&lens.expect("it is built in"), &arms), Some(1));
        assert_eq!(floor_of(&arms[0], &arms), None);
    }

    /// The peak memory of this process, in bytes.
    fn peak() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").expect("there is one");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("VmHWM");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
    }

    /// Uses blocks with as few samples as possible, because these need the most memory per sample.
    fn keeps_and_writes(samples: usize, most_bytes: u64) {
        const SAMPLES_PER_BLOCK: usize = 7;
        let placed = |benchmark: &'static benchmark::Benchmark| BenchmarkRun {
            name: benchmark.name.into(),
            benchmark,
            cpu: None,
        };
        let plan = Plan {
            arms: built_in().into_iter().map(|(arm, _)| arm).take(4).collect(),
            benchmarks: benchmark::BENCHMARKS.iter().map(placed).collect(),
            stop: StopRule::Precision,
            precision: 0.005,
            settle: Duration::ZERO,
            budget: Duration::ZERO,
            seed: 1,
        };
        let (arms, benchmarks) = (plan.arms.len(), plan.benchmarks.len());
        let quads = samples / (2 * arms * benchmarks * SAMPLES_PER_BLOCK);
        let before = peak();
        let mut measured = Measured {
            times: vec![
                vec![vec![[BlockTime { median: 1.0, mean: 1.0 }; 2]; quads]; arms];
                benchmarks
            ],
            injected: vec![vec![0.02; quads]; benchmarks],
            after: vec![BTreeMap::new(); benchmarks],
            stopped_by: vec![None; benchmarks],
            losses: vec![None; arms],
            ..Measured::default()
        };
        for quad in 0..quads {
            for position in 0..2 * arms {
                measured.raw.extend(plan.benchmarks.iter().map(|placed| {
                    RawBlock {
                        quad,
                        position,
                        arm: plan.arms[position % arms].name.clone(),
                        benchmark: placed.name.clone(),
                        clock_ns: 22.0,
                        loop_ns: 0.25,
                        injected_ns: 0.0,
                        ns: (0..SAMPLES_PER_BLOCK)
                            .map(|batch| 1.0 / (batch + quad + 3) as f64)
                            .collect(),
                    }
                }));
            }
        }
        let report = conclude(&plan, measured, Environment::now(0), 0.02, None);
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let mut output =
            Output::open(Some(&folder.path().join("report")), Output::Stdout).expect("it is ours");
        output.write_json(&report).expect("there is room");
        let grown = peak() - before;
        eprintln!("{} blocks: {} MiB", report.samples.len(), grown >> 20);
        assert!(grown < most_bytes, "{samples} samples took {} MiB", grown >> 20);
    }

    #[test]
    fn a_million_samples_are_small() {
        keeps_and_writes(1_000_000, 51 << 20);
    }

    #[test]
    #[ignore = "the same in earnest: make bench"]
    fn ten_million_samples_are_less_than_512_mib() {
        keeps_and_writes(10_000_000, 512 << 20);
    }
}
