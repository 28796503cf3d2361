//! Summarizes the measurements as a document.

use stats::interval::median;

use super::analysis::{
    Differences, RowLabel, StoppedBy, aa, carry_over, differences, injected, judge, row,
};
use super::arms::{Arm, OFF};
use super::document::{CostDocument, SCHEMA};
use super::environment::Environment;
use super::runner::{AA, BASE, INJECTED, Measured, Plan};

pub fn conclude(
    plan: &Plan,
    measured: Measured,
    environment: Environment,
    limit: f64,
    error: Option<String>,
) -> CostDocument {
    let has_quads =
        |index: &usize| measured.times.get(*index).is_some_and(|times| !times[BASE].is_empty());
    let (exercises, without): (Vec<_>, Vec<_>) = (0..plan.exercises.len()).partition(has_quads);
    let is_drowned =
        |index: &usize| measured.stopped_by.get(*index) == Some(&Some(StoppedBy::Noise));
    let drowned = without
        .into_iter()
        .filter(is_drowned)
        .map(|index| plan.exercises[index].name.to_string())
        .collect();
    let of = |index: usize, arm: usize| {
        differences(&measured.times[index][arm], &measured.times[index][BASE])
    };
    let floors: Vec<_> = plan.arms.iter().map(|arm| floor_of(arm, &plan.arms)).collect();
    let (mut rows, mut judged) = (Vec::new(), Vec::<(usize, Differences)>::new());
    let (mut controls, mut leftovers) = (Vec::new(), Vec::new());
    for &index in &exercises {
        let exercise = &plan.exercises[index];
        for (arm, kind) in plan.arms.iter().enumerate().skip(INJECTED + 1) {
            let own = of(index, arm);
            let about = RowLabel {
                benchmark: exercise.name.to_string(),
                unit: exercise.benchmark.unit.into(),
                arm: kind.name.to_string(),
                base: OFF.into(),
                floor: floors[arm].map(|floor| plan.arms[floor].name.to_string()),
                stopped_by: measured.stopped_by[index].unwrap_or(StoppedBy::Interrupt),
                loss: measured.losses[arm],
            };
            let floor =
                floors[arm].filter(|_| exercise.benchmark.in_floors).map(|floor| of(index, floor));
            let Some(row) = row(about, &own, floor.as_ref()) else { continue };
            if !kind.is_reference {
                judged.push((rows.len(), own));
            }
            rows.push(row);
        }
        let count = 2 * exercises.len();
        controls.extend(aa(&exercise.name, &of(index, AA).logs, count));
        let truth = 1.0 + median(&measured.injected[index]);
        controls.extend(injected(&exercise.name, &of(index, INJECTED).logs, truth, count));
        leftovers.extend(carry_over(
            &exercise.name,
            &measured.after[index],
            exercises.len() * plan.arms.len(),
        ));
    }
    let logs: Vec<_> = judged.iter().map(|(_, own)| own.logs.as_slice()).collect();
    for ((place, _), verdict) in judged.iter().zip(judge(&logs, limit)) {
        rows[*place].verdict = Some(verdict);
    }
    CostDocument {
        schema: SCHEMA.into(),
        command: std::env::args().collect(),
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
        drowned,
        carry_over: leftovers,
        samples: measured.raw,
    }
}

/// The arm whose toll is the floor of this one's.
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
    use super::super::runner::{BenchmarkRun, RawBlock};
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

    /// Uses blocks with the fewest possible samples, which need the most memory.
    fn keeps_and_writes(samples: usize, most_bytes: u64) {
        const SAMPLES_A_BLOCK: usize = 7;
        let exercise = |benchmark: &'static benchmark::Benchmark| BenchmarkRun {
            name: benchmark.name.into(),
            benchmark,
            cpu: None,
        };
        let plan = Plan {
            arms: built_in().into_iter().map(|(arm, _)| arm).take(4).collect(),
            exercises: benchmark::BENCHMARKS.iter().map(exercise).collect(),
            stop: StopRule::Precision,
            precision: 0.005,
            settle: Duration::ZERO,
            budget: Duration::ZERO,
            seed: 1,
        };
        let (arms, exercises) = (plan.arms.len(), plan.exercises.len());
        let quads = samples / (2 * arms * exercises * SAMPLES_A_BLOCK);
        let before = peak();
        let mut measured = Measured {
            times: vec![
                vec![vec![[BlockTime { median: 1.0, mean: 1.0 }; 2]; quads]; arms];
                exercises
            ],
            injected: vec![vec![0.02; quads]; exercises],
            after: vec![BTreeMap::new(); exercises],
            stopped_by: vec![None; exercises],
            losses: vec![None; arms],
            ..Measured::default()
        };
        for quad in 0..quads {
            for place in 0..2 * arms {
                measured.raw.extend(plan.exercises.iter().map(|exercise| RawBlock {
                    quad,
                    place,
                    arm: plan.arms[place % arms].name.clone(),
                    benchmark: exercise.name.clone(),
                    clock_ns: 22.0,
                    loop_ns: 0.25,
                    injected_ns: 0.0,
                    ns: (0..SAMPLES_A_BLOCK).map(|batch| 1.0 / (batch + quad + 3) as f64).collect(),
                }));
            }
        }
        let document = conclude(&plan, measured, Environment::now(0), 0.02, None);
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let mut output = Output::open(Some(&folder.path().join("document")), Output::Stdout)
            .expect("it is ours");
        output.write_json(&document).expect("there is room");
        let grown = peak() - before;
        eprintln!("{} blocks: {} MiB", document.samples.len(), grown >> 20);
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
