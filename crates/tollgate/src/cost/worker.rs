//! The worker, the process that does the timed work of one block. It may run under the command of a
//! file arm (`under`), and be gated or not.
//!
//! It reads one request from stdin and writes the reply to stdout, both as JSON.

use std::hint::black_box;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use kernel::benchmark::{self, Benchmark, BenchmarkFn, spin};
use kernel::clock::now_ns;
use kernel::cpus;
use serde::{Deserialize, Serialize};
use stats::interval::median;

/// The minimum time of a batch, in nanoseconds and as a multiple of the time of a clock reading. A
/// batch should take as long as a thousand clock readings. It is sized for twice as many, because
/// the processor may later be twice as fast.
const BATCH_NS: f64 = 60_000.0;
const CLOCKS_PER_BATCH: f64 = 2000.0;
/// Batches are sized by the shortest of this many, because an interrupted batch takes longer. If
/// there were only a few, all of them could be interrupted on a busy machine.
const SIZING_BATCHES: usize = 21;
/// If batches of one size take this long together, three of them suffice.
const SIZING_NS: f64 = 20e6;
/// Batches that measure the worker's own clock, loop and spin.
const OWN_BATCHES: usize = 21;
const OWN_UNITS: u32 = 20_000;

/// The work of one block.
#[derive(Debug, Serialize, Deserialize)]
pub struct WorkerRequest {
    pub tasks: Vec<TimedBenchmark>,
}

/// One benchmark of a block.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TimedBenchmark {
    pub benchmark: String,
    /// The processor to stay on. `None` for any processor.
    pub cpu: Option<usize>,
    /// Units per batch. If 0, the worker determines the number.
    pub units: u32,
    pub batches: usize,
    /// Steps of the chain that is injected into each batch.
    pub spin: u64,
}

/// The times of one block.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct WorkerReply {
    pub tasks: Vec<Timing>,
    /// Nanoseconds per step of a long chain such as the injected one.
    pub spin_ns: f64,
    /// Nanoseconds from one clock reading to the next.
    pub clock_ns: f64,
    /// Nanoseconds per iteration of the loop around the units.
    pub loop_ns: f64,
}

/// The times of one benchmark in a block.
#[derive(Debug, Serialize, Deserialize)]
pub struct Timing {
    pub units: u32,
    /// Nanoseconds per unit, one value for each batch; clock and loop are subtracted, so a value
    /// may be negative.
    pub ns: Vec<f64>,
    /// Nanoseconds per batch that the injected chain took, timed separately; 0 without one.
    pub injected_ns: f64,
}

/// Reads the request, does the work, and writes the reply.
pub fn worker() -> Result<ExitCode> {
    let request: WorkerRequest =
        serde_json::from_reader(std::io::stdin()).context("no request on stdin")?;
    let own = measure_overheads();
    let anywhere = cpus::allowed();
    let mut tasks = Vec::new();
    for task in &request.tasks {
        let cpus = task.cpu.map_or_else(|| anywhere.clone(), |cpu| vec![cpu]);
        if !cpus::run_on_any(&cpus) {
            bail!("this process may not run on processors {cpus:?}");
        }
        tasks.push(timing(task, &own)?);
    }
    serde_json::to_writer(std::io::stdout(), &WorkerReply { tasks, ..own })?;
    Ok(ExitCode::SUCCESS)
}

fn timing(task: &TimedBenchmark, own: &WorkerReply) -> Result<Timing> {
    let benchmark = find_benchmark(&task.benchmark)?;
    let mut work = benchmark.prepare();
    let mut less = benchmark.subtrahend();
    let (mut before, mut after) = (benchmark.before(), benchmark.after());
    let mut complete_batch = |units, steps| {
        before.iter_mut().for_each(|before| before(units));
        let times = batch(&mut work, units, steps);
        after.iter_mut().for_each(|after| after(units));
        times
    };
    let units = match task.units {
        0 => calibrate_units(
            |units| complete_batch(units, 0).0 as f64,
            benchmark.max_units,
            own.clock_ns,
        ),
        units => units,
    };
    let around = own.clock_ns + own.loop_ns * f64::from(units);
    let mut one = || {
        let (ns, injected) = complete_batch(units, task.spin);
        let besides = less.as_mut().map_or(around, |less| batch(less, units, 0).0 as f64);
        ((ns as f64 - besides) / f64::from(units), injected as f64)
    };
    // The first batch warms the caches up and is not counted.
    one();
    let (ns, injected): (Vec<_>, Vec<_>) = (0..task.batches).map(|_| one()).unzip();
    Ok(Timing { units, ns, injected_ns: median(&injected) })
}

/// The benchmark of this name. It is an error if there is none.
pub fn find_benchmark(name: &str) -> Result<&'static Benchmark> {
    benchmark::find(name)
        .with_context(|| format!("there is no benchmark {name:?}; `tollgate cost list` shows all"))
}

/// The nanoseconds of the whole batch, and of the chain that is injected at its end. The chain is
/// timed here because it takes longer after calls than by itself. The clock reading before the
/// chain counts as injected work, so its time is added to that of the chain.
fn batch(work: &mut BenchmarkFn, units: u32, steps: u64) -> (u64, u64) {
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

fn calibrate_units(mut batch_ns: impl FnMut(u32) -> f64, max_units: u32, clock_ns: f64) -> u32 {
    let enough_ns = BATCH_NS.max(CLOCKS_PER_BATCH * clock_ns);
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
    while units < max_units && !is_enough(units) {
        units = (units * 2).min(max_units);
    }
    units
}

fn measure_overheads() -> WorkerReply {
    let typical =
        |one: &mut dyn FnMut() -> f64| median(&(0..OWN_BATCHES).map(|_| one()).collect::<Vec<_>>());
    let clock_ns = typical(&mut || batch(&mut empty_benchmark(), 0, 0).0 as f64);
    let mut around = empty_benchmark();
    let per_turn = |ns: u64| (ns as f64 - clock_ns) / f64::from(OWN_UNITS);
    let loop_ns = typical(&mut || per_turn(batch(&mut around, OWN_UNITS, 0).0));
    let steps = u64::from(OWN_UNITS);
    let per_step = |ns: u64| (ns as f64 - clock_ns) / steps as f64;
    let spin_ns = typical(&mut || per_step(batch(&mut empty_benchmark(), 0, steps).1));
    WorkerReply { tasks: Vec::new(), spin_ns, clock_ns, loop_ns }
}

fn empty_benchmark() -> BenchmarkFn {
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
        // A unit takes a microsecond, and seven of eight batches are interrupted for as long as a
        // batch should take.
        let mut batches = 0;
        let timed = |units: u32| {
            batches += 1;
            f64::from(units) * 1000.0 + if batches % 8 == 0 { 0.0 } else { BATCH_NS }
        };
        assert_eq!(calibrate_units(timed, 1 << 20, 20.0), 64);
        // A clock reading takes a microsecond.
        let evenly = |units: u32| f64::from(units) * 1000.0;
        assert_eq!(calibrate_units(evenly, 1 << 20, 1000.0), 2048);
        assert_eq!(calibrate_units(evenly, 512, 1000.0), 512);
    }

    #[test]
    fn long_units_are_timed_three_times() {
        let mut batches = 0;
        let timed = |units: u32| {
            batches += 1;
            f64::from(units) * SIZING_NS
        };
        assert_eq!(calibrate_units(timed, 1 << 20, 20.0), 1);
        assert_eq!(batches, 3);
    }

    fn of(name: &str, units: u32, spin: u64) -> Timing {
        let task = TimedBenchmark { benchmark: name.into(), cpu: None, units, batches: 5, spin };
        timing(&task, &measure_overheads()).expect("it is there")
    }

    #[test]
    fn every_benchmark_takes_some_time() {
        for benchmark in benchmark::BENCHMARKS {
            let timing = of(benchmark.name, 0, 0);
            assert!(timing.units > 0, "{}", benchmark.name);
            // Only the median is tested. If the benchmark has a subtrahend, an interruption of the
            // subtrahend makes a batch negative.
            assert!(median(&timing.ns) > 0.0, "{}: {:?}", benchmark.name, timing.ns);
        }
    }

    #[test]
    fn batches_outweigh_the_clock() {
        let own = measure_overheads();
        let timing = of("getpid", 0, 0);
        let shortest = timing.ns.iter().fold(f64::MAX, |least, ns| least.min(*ns));
        // The limit is 0.2 %. Batches are sized for 0.05 %; the rest is left to noise and to a
        // processor that has become faster.
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
        assert!(find_benchmark("getpidd").unwrap_err().to_string().contains("cost list"));
    }
}
