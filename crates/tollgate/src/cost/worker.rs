//! The process that does the timed work: started anew for each block, below any prefix, gated or not.
//!
//! It reads one request from stdin and answers on stdout, both JSON.

use std::hint::black_box;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use kernel::benchmark::{self, Benchmark, Work, spin};
use kernel::clock::now_ns;
use kernel::cpus;
use serde::{Deserialize, Serialize};
use stats::interval::median;

/// A batch lasts at least so long, and so many times as long as it takes to time it: twice a thousand
/// times, as the processor may be twice as fast later as when the batch is sized.
const BATCH_NS: f64 = 60_000.0;
const CLOCKS_A_BATCH: f64 = 2000.0;
const MOST_UNITS: u32 = 1 << 20;
/// A batch is sized by the shortest of this many, as one that is interrupted takes longer: on a
/// busy machine, each of a few may be.
const SIZING_BATCHES: usize = 21;
/// After three batches, sizing takes no more time than this.
const SIZING_NS: f64 = 20e6;
/// Batches from which the worker's own clock, loop and spin are known.
const OWN_BATCHES: usize = 21;
const OWN_UNITS: u32 = 20_000;

#[derive(Debug, Serialize, Deserialize)]
pub struct Request {
    pub tasks: Vec<Task>,
}

/// One benchmark of a block.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Task {
    pub benchmark: String,
    /// The processor to stay on; none: wherever the scheduler likes.
    pub cpu: Option<usize>,
    /// Units a batch; 0: find out how many.
    pub units: u32,
    pub batches: usize,
    /// Steps of the chain that are injected into each batch.
    pub spin: u64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Answer {
    pub tasks: Vec<Timing>,
    /// Nanoseconds a step of a long chain such as the injected one.
    pub spin_ns: f64,
    /// Nanoseconds from one clock reading to the next.
    pub clock_ns: f64,
    /// Nanoseconds a turn of the loop around the units.
    pub loop_ns: f64,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Timing {
    pub units: u32,
    /// Nanoseconds a unit, one for each batch; clock and loop are subtracted, signed.
    pub ns: Vec<f64>,
    /// Nanoseconds a batch that the injected chain took, timed by itself; 0 without one.
    pub injected_ns: f64,
}

pub fn worker() -> Result<ExitCode> {
    let request: Request = serde_json::from_reader(std::io::stdin()).context("no request on stdin")?;
    let own = own_costs();
    let anywhere = cpus::allowed();
    let mut tasks = Vec::new();
    for task in &request.tasks {
        let cpus = task.cpu.map_or_else(|| anywhere.clone(), |cpu| vec![cpu]);
        if !cpus::run_on_any(&cpus) {
            bail!("this process may not run on processors {cpus:?}");
        }
        tasks.push(timing(task, &own)?);
    }
    serde_json::to_writer(std::io::stdout(), &Answer { tasks, ..own })?;
    Ok(ExitCode::SUCCESS)
}

fn timing(task: &Task, own: &Answer) -> Result<Timing> {
    let benchmark = find(&task.benchmark)?;
    let mut work = benchmark.prepare();
    let mut less = benchmark.less();
    let units = match task.units {
        0 => enough_units(|units| batch(&mut work, units, 0).0 as f64, own.clock_ns),
        units => units,
    };
    let around = own.clock_ns + own.loop_ns * f64::from(units);
    let mut one = || {
        let (ns, injected) = batch(&mut work, units, task.spin);
        let besides = less.as_mut().map_or(around, |less| batch(less, units, 0).0 as f64);
        ((ns as f64 - besides) / f64::from(units), injected as f64)
    };
    // The first batch warms caches up, and is not kept.
    one();
    let (ns, injected): (Vec<_>, Vec<_>) = (0..task.batches).map(|_| one()).unzip();
    Ok(Timing { units, ns, injected_ns: median(&injected) })
}

pub fn find(name: &str) -> Result<&'static Benchmark> {
    benchmark::find(name)
        .with_context(|| format!("there is no benchmark {name:?}; `tollgate cost list` shows all"))
}

/// Nanoseconds of all, and of the chain that is injected at the end: it takes longer after calls than by itself. The
/// clock reading between the two is part of what is injected, and of its time.
fn batch(work: &mut Work, units: u32, steps: u64) -> (u64, u64) {
    let began = now_ns();
    work(units);
    let done = now_ns();
    if steps == 0 {
        return (done - began, 0);
    }
    spin(steps);
    let end = now_ns();
    (end - began, end - done)
}

fn enough_units(mut batch_ns: impl FnMut(u32) -> f64, clock_ns: f64) -> u32 {
    let enough_ns = BATCH_NS.max(CLOCKS_A_BATCH * clock_ns);
    let mut is_enough = |units| {
        let mut all_ns = 0.0;
        for batches in 1..=SIZING_BATCHES {
            let ns = batch_ns(units);
            if ns < enough_ns {
                return false;
            }
            all_ns += ns;
            if batches >= 3 && all_ns > SIZING_NS {
                break;
            }
        }
        true
    };
    let mut units = 1;
    while units < MOST_UNITS && !is_enough(units) {
        units *= 2;
    }
    units
}

fn own_costs() -> Answer {
    let typical = |one: &mut dyn FnMut() -> f64| median(&(0..OWN_BATCHES).map(|_| one()).collect::<Vec<_>>());
    let clock_ns = typical(&mut || batch(&mut nothing(), 0, 0).0 as f64);
    let mut around = nothing();
    let per_turn = |ns: u64| (ns as f64 - clock_ns) / f64::from(OWN_UNITS);
    let loop_ns = typical(&mut || per_turn(batch(&mut around, OWN_UNITS, 0).0));
    let steps = u64::from(OWN_UNITS);
    let per_step = |ns: u64| (ns as f64 - clock_ns) / steps as f64;
    let spin_ns = typical(&mut || per_step(batch(&mut nothing(), 0, steps).1));
    Answer { tasks: Vec::new(), spin_ns, clock_ns, loop_ns }
}

fn nothing() -> Work {
    Box::new(|units| {
        for unit in 0..units {
            black_box(unit);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_that_are_interrupted_are_not_taken_for_long_ones() {
        // A unit takes a microsecond, and all batches but each eighth are interrupted for as long
        // as is enough.
        let mut batches = 0;
        let timed = |units: u32| {
            batches += 1;
            f64::from(units) * 1000.0 + if batches % 8 == 0 { 0.0 } else { BATCH_NS }
        };
        assert_eq!(enough_units(timed, 20.0), 64);
        // Reading the clock takes a microsecond.
        assert_eq!(enough_units(|units| f64::from(units) * 1000.0, 1000.0), 2048);
    }

    #[test]
    fn long_units_are_timed_three_times() {
        let mut batches = 0;
        let timed = |units: u32| {
            batches += 1;
            f64::from(units) * SIZING_NS
        };
        assert_eq!(enough_units(timed, 20.0), 1);
        assert_eq!(batches, 3);
    }

    fn of(name: &str, units: u32, spin: u64) -> Timing {
        let task = Task { benchmark: name.into(), cpu: None, units, batches: 5, spin };
        timing(&task, &own_costs()).expect("it is there")
    }

    #[test]
    fn every_benchmark_takes_some_time() {
        for benchmark in benchmark::BENCHMARKS {
            let timing = of(benchmark.name, 0, 0);
            assert!(timing.units > 0, "{}", benchmark.name);
            // Not each batch: where one is less another, an interruption of the other makes the difference negative.
            assert!(median(&timing.ns) > 0.0, "{}: {:?}", benchmark.name, timing.ns);
        }
    }

    #[test]
    fn batches_outweigh_the_clock() {
        let own = own_costs();
        let timing = of("getpid", 0, 0);
        let shortest = timing.ns.iter().fold(f64::MAX, |least, ns| least.min(*ns));
        // Of the 0.1 % half is left to noise.
        assert!(own.clock_ns < shortest * f64::from(timing.units) / 500.0, "{own:?} {timing:?}");
    }

    #[test]
    fn an_injected_spin_takes_longer() {
        let units = of("getppid", 0, 0).units;
        let (without, with) = (of("getppid", units, 0), of("getppid", units, 200_000));
        assert!(median(&with.ns) > 1.5 * median(&without.ns));
    }

    #[test]
    fn unknown_benchmarks_are_refused() {
        assert!(find("getpidd").unwrap_err().to_string().contains("cost list"));
    }
}
