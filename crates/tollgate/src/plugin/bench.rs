//! `tollgate plugin bench`: measures compilation and calls of a plugin.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use kernel::plugin::LoadedPlugin;
use serde::Serialize;
use stats::interval::{median, median_interval};

use super::arguments::BenchArguments;
use super::call::{check_argument_count, warn_faults};
use super::check::built_or_reported;
use super::compile::{CompileTimes, build, built};
use super::hooks::OffsetSource;
use super::variables::Variables;
use crate::format::number_of;
use crate::output::Output;
use crate::source_file::SourceFile;

const CALLS: u32 = 1000;
/// Calls between two readings of the records. Their records must fit into the buffer in the kernel.
const CALLS_AT_ONCE: u32 = 100;
const CONFIDENCE: f64 = 0.97;

/// The result as JSON, with medians over the rounds (docs/ecode.md).
#[derive(Serialize)]
struct BenchReport {
    schema: &'static str,
    rounds: u32,
    confidence: f64,
    #[serde(flatten)]
    times: CompileTimes,
    /// The whole time from source to kernel.
    load_us: MedianInterval,
    /// The time of a call of a plugin that does nothing.
    floor_ns: MedianInterval,
    call_ns: MedianInterval,
    /// The difference between `call_ns` and `floor_ns` in each round.
    difference_ns: MedianInterval,
}

#[derive(Serialize, Clone, Copy)]
struct MedianInterval {
    median: f64,
    low: f64,
    high: f64,
}

pub fn bench(arguments: &BenchArguments) -> Result<ExitCode> {
    let result = &arguments.result;
    let mut output = Output::open(result.output.as_deref(), Output::Stdout)?;
    output.refuse_inputs([&arguments.file])?;
    output.refuse_inputs(&arguments.with.input)?;
    arguments.with.check_stdin_use(&arguments.file)?;
    let (source, built_once) = built_or_reported(&arguments.file, result, &mut output)?;
    let (handler, parameters) = built_once.call_handler()?;
    check_argument_count(parameters, &arguments.with)?;
    let (plugin, _) = built_once.load(&source)?;
    Variables::of(&built_once).write_input(&arguments.with, plugin.data())?;
    let nothing = SourceFile::new("nothing".into(), "on call { return 0; }".into());
    let (floor, _) = built(&nothing, 0)?.load(&nothing)?;
    let (mut loads, mut floors, mut calls) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..arguments.rounds {
        let (built, _) = build(&source, OffsetSource::ToCheck);
        loads.push(built.context("it was built before")?.load(&source)?.1);
        floors.push(a_call(&floor, 0, &[])?);
        calls.push(a_call(&plugin, handler, &arguments.with.arguments)?);
    }
    let differences: Vec<_> = calls.iter().zip(&floors).map(|(call, floor)| call - floor).collect();
    let of = |part: fn(&CompileTimes) -> f64| loads.iter().map(part).collect::<Vec<_>>();
    let typical = |part| to_thousandths(median(&of(part)));
    let report = BenchReport {
        schema: "tollgate.plugin.bench/1",
        rounds: arguments.rounds,
        confidence: CONFIDENCE,
        times: CompileTimes {
            parse_us: typical(|times| times.parse_us),
            codegen_us: typical(|times| times.codegen_us),
            verify_us: typical(|times| times.verify_us),
            instructions: built_once.instructions(),
        },
        load_us: range(&of(|times| times.parse_us + times.codegen_us + times.verify_us))?,
        floor_ns: range(&floors)?,
        call_ns: range(&calls)?,
        difference_ns: range(&differences)?,
    };
    if result.json {
        output.write_json(&report)?;
    } else {
        output.write(&text(&report))?;
        warn_faults(plugin.faults()?.into())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The mean time of a call in nanoseconds.
fn a_call(plugin: &LoadedPlugin, handler: usize, arguments: &[u64]) -> Result<f64> {
    let mut took = Duration::ZERO;
    for _ in 0..CALLS / CALLS_AT_ONCE {
        let began = Instant::now();
        for _ in 0..CALLS_AT_ONCE {
            plugin.call(handler, arguments)?;
        }
        took += began.elapsed();
        plugin.records()?;
    }
    Ok(took.as_nanos() as f64 / f64::from(CALLS))
}

fn range(samples: &[f64]) -> Result<MedianInterval> {
    let interval = median_interval(samples, CONFIDENCE).context("there are no rounds")?;
    let [median, low, high] = [median(samples), interval.low, interval.high].map(to_thousandths);
    Ok(MedianInterval { median, low, high })
}

/// Rounds a time to as many digits as the clock has: sums and differences have more.
fn to_thousandths(time: f64) -> f64 {
    (time * 1e3).round() / 1e3
}

fn text(report: &BenchReport) -> String {
    let BenchReport { times, load_us, floor_ns, call_ns, difference_ns, .. } = report;
    let ns = |range: &MedianInterval| {
        format!("{:.0} ns [{:.0}, {:.0}]", range.median, range.low, range.high)
    };
    format!(
        "source to kernel {:.0} us [{:.0}, {:.0}]: check {:.0} us, \
         compile {:.0} us, load {:.0} us; {}\n\
         a call           {}\n\
         an empty plugin  {}\n\
         difference       {}\n\
         medians of {} rounds, with {:.0} % intervals\n",
        load_us.median,
        load_us.low,
        load_us.high,
        times.parse_us,
        times.codegen_us,
        times.verify_us,
        number_of(times.instructions, "instruction"),
        ns(call_ns),
        ns(floor_ns),
        ns(difference_ns),
        report.rounds,
        100.0 * report.confidence,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_the_digits_of_the_clock() {
        let range = range(&[70.1 + 6.021, 76.12100000000001, 0.1 + 0.2]).expect("rounds");
        assert_eq!([range.median, range.high], [76.121; 2]);
        assert_eq!(to_thousandths(0.1 + 0.2), 0.3);
    }
}
