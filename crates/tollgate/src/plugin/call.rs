//! `tollgate plugin call`.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, bail};
use ecode::interpret::Faults;
use kernel::plugins::Plugin;
use serde::Serialize;

use super::arguments::{CallArguments, With};
use super::build::{Built, Times, built, read};
use super::hooks::CALL;
use super::told::{Told, told};
use super::variables::Variables;
use crate::format::number_of;
use crate::output::{Output, say};

/// docs/ecode.md describes it.
#[derive(Serialize)]
struct Document {
    schema: &'static str,
    result: i32,
    /// With the way into the kernel and back.
    call_us: f64,
    #[serde(flatten)]
    times: Times,
    told: Vec<Told>,
    outside: u64,
    cut_short: u64,
    full: u64,
    lost: u64,
}

pub fn call(arguments: &CallArguments) -> Result<ExitCode> {
    let result = &arguments.result;
    let mut output = Output::open(result.output.as_deref(), Output::Stdout)?;
    let source = read(&arguments.file)?;
    let built = built(&source, result.top)?;
    let handler = on_call(&built, &arguments.with)?;
    let (plugin, times) = built.load(&source)?;
    let mut variables = Variables::of(&built);
    variables.put(&arguments.with, &plugin)?;
    let began = Instant::now();
    let returned = plugin.call(handler, &arguments.with.arguments)?;
    let call_us = began.elapsed().as_nanos() as f64 / 1e3;
    let told = told(&built.program, &plugin)?;
    if result.json {
        let Faults { outside, cut_short, full, lost } = plugin.faults()?;
        let schema = "tollgate.plugin.call/1";
        output.write_json(&Document {
            schema,
            result: returned,
            call_us,
            times,
            told,
            outside,
            cut_short,
            full,
            lost,
        })?;
    } else {
        let lines: String = told.iter().map(Told::line).collect();
        output.write(&format!("{lines}{returned}\n"))?;
        tell_faults(&plugin)?;
    }
    if let Some(path) = &arguments.with.output_data {
        variables.take(path, &plugin)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The handler, for as many numbers.
pub fn on_call(built: &Built, with: &With) -> Result<usize> {
    let Some(handler) = built.handler(CALL) else {
        bail!("the plugin has no `on call`");
    };
    let function = &built.program.functions[built.program.handlers[handler].function];
    if function.parameters != with.arguments.len() {
        bail!(
            "`on call` takes {}, and there are {} (--arg)",
            number_of(function.parameters, "number"),
            with.arguments.len()
        );
    }
    Ok(handler)
}

/// What went otherwise than it was written, on stderr.
pub fn tell_faults(plugin: &Plugin) -> Result<()> {
    let Faults { outside, cut_short, full, lost } = plugin.faults()?;
    let told = [
        (outside, "an element outside of its array"),
        (cut_short, "a loop that was cut short"),
        (full, "an entry for which a map had no room"),
        (lost, "a record for which there was no room"),
    ];
    for (times, what) in told.into_iter().filter(|(times, _)| *times > 0) {
        say(&format!("{}: {what}", number_of(times as usize, "time")))?;
    }
    Ok(())
}
