//! `tollgate cost`: what does it cost, on this machine, and how sure are we (docs/decisions/0002-cost.md).

mod analysis;
mod arm_file;
mod arms;
mod commands;
mod compare;
mod document;
mod environment;
mod lab;
mod list;
mod progress;
mod text;
mod worker;

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use kernel::benchmark::BENCHMARKS;
use stats::interval::median;
use stats::sequential::rightspeed;

pub use compare::compare;
pub use list::list;
pub use worker::worker;

use crate::cli::CostRunArguments;
use crate::output::{Output, say};
use analysis::{About, Differences, StoppedBy, aa, carry_over, differences, injected, judge, row};
use arms::{Arm, EMPTY, Kind, OFF, built_in};
use document::{Document, SCHEMA};
use environment::Environment;
pub use lab::Stop;
use lab::{AA, BASE, Exercise, INJECTED, Measured, Plan, pinned_cpu};
use progress::Progress;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

pub fn run(arguments: &CostRunArguments) -> Result<ExitCode> {
    let mut output = Output::open(arguments.output.as_deref(), Output::Stdout)?;
    let cpu = pinned_cpu()?;
    let plan = Plan {
        arms: chosen_arms(arguments)?,
        exercises: chosen_exercises(&arguments.bench, cpu)?,
        stop: arguments.stop,
        precision: arguments.precision,
        budget: match arguments.stop {
            Stop::Precision => arguments.budget,
            Stop::Rightspeed => rightspeed::TIME,
        },
        seed: arguments.seed.unwrap_or_else(any_seed),
    };
    if plan.arms.iter().any(Arm::is_built_in_kernel) && kernel::gate::is_loaded() {
        bail!(
            "a gate is loaded already: end the other Tollgate sessions, as what they cost would be in every arm"
        );
    }
    kernel::signals::on_interrupt(&INTERRUPTED)?;
    let mut environment = Environment::now(cpu);
    let mut progress = Progress::new(plan.budget, plan.precision);
    let mut measured = Measured::default();
    let result = plan.run(&mut measured, &INTERRUPTED, &mut progress);
    progress.finish();
    environment.ended(measured.clock_ns, measured.loop_ns);
    let error = result.err().map(|error| format!("{error:#}"));
    let failed = error.is_some();
    if let Some(error) = &error {
        let _ = say(&format!("tollgate: {error}"));
    }
    let document = conclude(&plan, measured, environment, arguments, error);
    if arguments.json {
        output.write(&(serde_json::to_string(&document)? + "\n"))?;
    } else {
        output.write(&text::text(&document))?;
    }
    Ok(ExitCode::from(if failed { crate::cli::OWN_FAILURE } else { document.conclusion().status() }))
}

fn any_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_nanos() as u64)
}

/// Off and the controls, the floor where there can be one, and what was asked for.
fn chosen_arms(arguments: &CostRunArguments) -> Result<Vec<Arm>> {
    let mut known: Vec<_> = built_in().into_iter().map(|(arm, _)| arm).collect();
    let mut of_file = Vec::new();
    if let Some(path) = &arguments.arm_file {
        for (name, arm) in arm_file::read(path)? {
            if known.iter().any(|known| known.name == name) {
                bail!("arm {name:?} of {} has the name of a built-in one", path.display());
            }
            of_file.push(name.clone());
            known.push(Arm { name, kind: Kind::File(arm) });
        }
    }
    let mut wanted = arguments.arm.clone();
    if wanted.is_empty() {
        wanted = if of_file.is_empty() { vec!["lens".into()] } else { of_file };
    }
    let control = |name: &str| Arm { name: name.into(), kind: Kind::Off };
    let mut arms = vec![control(OFF), control("aa"), control("injected")];
    let with_floor = kernel::process::is_root() && std::path::Path::new("/sys/kernel/btf/vmlinux").exists();
    if with_floor && !wanted.iter().any(|name| name == EMPTY) {
        wanted.insert(0, EMPTY.into());
    }
    for name in wanted.iter().filter(|name| *name != OFF) {
        let Some(arm) = known.iter().find(|arm| arm.name == *name) else {
            bail!(
                "there is no arm {name:?}; `tollgate cost list` shows the built-in ones, --arm-file brings others"
            );
        };
        if arm.is_built_in_kernel() && !kernel::process::is_root() {
            bail!("arm {name:?} loads programs into the kernel, which needs root; run it with sudo");
        }
        if !arms.iter().any(|chosen| chosen.name == *name) {
            arms.push(arm.clone());
        }
    }
    Ok(arms)
}

/// "getppid" stays on one processor; "getppid:free" goes where the scheduler likes.
fn chosen_exercises(names: &[String], cpu: usize) -> Result<Vec<Exercise>> {
    if names.is_empty() {
        let pinned = |benchmark: &'static kernel::benchmark::Benchmark| Exercise {
            name: benchmark.name.into(),
            benchmark,
            cpu: Some(cpu),
        };
        return Ok(BENCHMARKS.iter().map(pinned).collect());
    }
    let one = |name: &String| {
        let (plain, free) = match name.split_once(':') {
            None => (name.as_str(), false),
            Some((plain, "free")) => (plain, true),
            Some((_, other)) => bail!("{name:?}: {other:?} is not \"free\""),
        };
        let benchmark = worker::find(plain)?;
        Ok(Exercise { name: name.clone(), benchmark, cpu: (!free).then_some(cpu) })
    };
    names.iter().map(one).collect()
}

fn conclude(
    plan: &Plan,
    measured: Measured,
    environment: Environment,
    arguments: &CostRunArguments,
    error: Option<String>,
) -> Document {
    let others = INJECTED + 1..plan.arms.len();
    let floor_arm = plan.arms.iter().position(|arm| arm.name == EMPTY);
    let has_quads = |index: &usize| measured.times.get(*index).is_some_and(|times| !times[BASE].is_empty());
    let exercises: Vec<_> = (0..plan.exercises.len()).filter(has_quads).collect();
    let of =
        |index: usize, arm: usize| differences(&measured.times[index][arm], &measured.times[index][BASE]);
    let (mut rows, mut judged) = (Vec::new(), Vec::<(usize, Differences)>::new());
    let (mut controls, mut leftovers) = (Vec::new(), Vec::new());
    for &index in &exercises {
        let exercise = &plan.exercises[index];
        let floor = floor_arm.filter(|_| exercise.benchmark.in_floors).map(|arm| of(index, arm));
        for arm in others.clone() {
            let own = of(index, arm);
            let about = About {
                benchmark: exercise.name.clone(),
                unit: exercise.benchmark.unit.into(),
                arm: plan.arms[arm].name.clone(),
                base: OFF.into(),
                stopped_by: measured.stopped_by[index].unwrap_or(StoppedBy::Interrupt),
                loss: measured.losses[arm],
            };
            let is_floor = Some(arm) == floor_arm;
            let Some(row) = row(about, &own, floor.as_ref().filter(|_| !is_floor)) else { continue };
            if !is_floor {
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
    for ((place, _), verdict) in judged.iter().zip(judge(&logs, arguments.limit)) {
        rows[*place].verdict = Some(verdict);
    }
    Document {
        schema: SCHEMA.into(),
        command: std::env::args().collect(),
        environment,
        precision: arguments.precision,
        limit: arguments.limit,
        budget_s: plan.budget.as_secs_f64(),
        elapsed_s: measured.elapsed.as_secs_f64(),
        seed: plan.seed,
        partial: error.is_some() || INTERRUPTED.load(Ordering::Relaxed),
        error,
        counts: measured.counts,
        controls,
        rows,
        carry_over: leftovers,
        samples: measured.raw,
    }
}
