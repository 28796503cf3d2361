//! `tollgate plugin bench`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use kernel::plugins::Plugin;
use serde::Serialize;
use stats::interval::{median, median_interval};

use super::arguments::BenchArguments;
use super::build::{Times, build, built, read};
use super::call::{on_call, say_counted, takes};
use super::hooks::Machine;
use super::variables::Variables;
use crate::output::Output;
use crate::source::Source;

const CALLS: u32 = 1000;
/// What so many tell is to have room in the kernel.
const CALLS_AT_ONCE: u32 = 100;
const CONFIDENCE: f64 = 0.97;

/// docs/ecode.md describes it. Medians over the rounds.
#[derive(Serialize)]
struct Document {
    schema: &'static str,
    rounds: u32,
    confidence: f64,
    #[serde(flatten)]
    times: Times,
    /// Of the text into the kernel, all of it.
    load_us: Range,
    /// Of a plugin that does nothing.
    floor_ns: Range,
    call_ns: Range,
    /// Of both, in each round.
    difference_ns: Range,
}

#[derive(Serialize, Clone, Copy)]
struct Range {
    median: f64,
    low: f64,
    high: f64,
}

pub fn bench(arguments: &BenchArguments) -> Result<ExitCode> {
    let result = &arguments.result;
    let mut output = Output::open(result.output.as_deref(), Output::Stdout)?;
    arguments.with.fits_beside(&arguments.file)?;
    let source = read(&arguments.file)?;
    let built_once = built(&source, result.top)?;
    let (handler, parameters) = on_call(&built_once)?;
    takes(parameters, &arguments.with)?;
    let (plugin, _) = built_once.load(&source)?;
    Variables::of(&built_once).put(&arguments.with, plugin.data())?;
    let nothing = Source::new("nothing".into(), "on call { return 0; }".into());
    let (floor, _) = built(&nothing, 0)?.load(&nothing)?;
    let (mut loads, mut floors, mut calls) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..arguments.rounds {
        let (built, _) = build(&source, Machine::ToCheck);
        loads.push(built.context("it was built before")?.load(&source)?.1);
        floors.push(a_call(&floor, 0, &[])?);
        calls.push(a_call(&plugin, handler, &arguments.with.arguments)?);
    }
    let differences: Vec<_> = calls.iter().zip(&floors).map(|(call, floor)| call - floor).collect();
    let of = |part: fn(&Times) -> f64| loads.iter().map(part).collect::<Vec<_>>();
    let document = Document {
        schema: "tollgate.plugin.bench/1",
        rounds: arguments.rounds,
        confidence: CONFIDENCE,
        times: Times {
            parse_us: median(&of(|times| times.parse_us)),
            codegen_us: median(&of(|times| times.codegen_us)),
            verify_us: median(&of(|times| times.verify_us)),
            instructions: built_once.instructions(),
        },
        load_us: range(&of(|times| times.parse_us + times.codegen_us + times.verify_us))?,
        floor_ns: range(&floors)?,
        call_ns: range(&calls)?,
        difference_ns: range(&differences)?,
    };
    if result.json {
        output.write_json(&document)?;
    } else {
        output.write(&text(&document))?;
        say_counted(plugin.faults()?.into())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Nanoseconds.
fn a_call(plugin: &Plugin, handler: usize, arguments: &[u64]) -> Result<f64> {
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

fn range(samples: &[f64]) -> Result<Range> {
    let interval = median_interval(samples, CONFIDENCE).context("there are no rounds")?;
    Ok(Range { median: median(samples), low: interval.low, high: interval.high })
}

fn text(document: &Document) -> String {
    let Document { times, load_us, floor_ns, call_ns, difference_ns, .. } = document;
    let ns = |range: &Range| format!("{:.0} ns [{:.0}, {:.0}]", range.median, range.low, range.high);
    format!(
        "text to kernel   {:.0} us [{:.0}, {:.0}]: checked in {:.0}, compiled in {:.0}, taken by the kernel in {:.0} us; {} instructions\n\
         a call           {}\n\
         of nothing       {}\n\
         difference       {}\n\
         medians of {} rounds, with {:.0} % intervals\n",
        load_us.median,
        load_us.low,
        load_us.high,
        times.parse_us,
        times.codegen_us,
        times.verify_us,
        times.instructions,
        ns(call_ns),
        ns(floor_ns),
        ns(difference_ns),
        document.rounds,
        100.0 * document.confidence,
    )
}
