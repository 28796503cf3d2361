//! `tollgate plugin call`.

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, bail};
use ecode::interpret::Faults;
use kernel::plugins::{Numbers, Opened};
use serde::Serialize;

use super::arguments::{CallArguments, With};
use super::build::{Built, Times, built, read};
use super::control::Request;
use super::hooks::CALL;
use super::live::OpenReport;
use super::told::{Told, told};
use super::variables::Variables;
use crate::daemon::control::answer;
use crate::format::number_of;
use crate::output::{Output, say};

/// docs/ecode.md describes it.
#[derive(Serialize)]
struct Document {
    schema: &'static str,
    result: i32,
    /// With the way into the kernel and back.
    call_us: f64,
    /// Of a plugin that was compiled for it.
    #[serde(flatten)]
    times: Option<Times>,
    told: Vec<Told>,
    outside: u64,
    cut_short: u64,
    full: u64,
    lost: u64,
}

pub fn call(arguments: &CallArguments) -> Result<ExitCode> {
    if is_name(&arguments.plugin) { call_loaded(arguments) } else { call_file(arguments) }
}

/// What is no path is a daemon's plugin.
fn is_name(plugin: &Path) -> bool {
    let text = plugin.as_os_str().as_encoded_bytes();
    text != b"-" && !text.iter().any(|byte| b"/.".contains(byte)) && !plugin.is_file()
}

fn call_file(arguments: &CallArguments) -> Result<ExitCode> {
    let (result, with) = (&arguments.result, &arguments.with);
    let mut output = Output::open(result.output.as_deref(), Output::Stdout)?;
    let source = read(&arguments.plugin)?;
    let built = built(&source, result.top)?;
    let (program, parameters) = on_call(&built)?;
    takes(parameters, with)?;
    let (plugin, times) = built.load(&source)?;
    let variables = Variables::of(&built);
    variables.put(with, plugin.data())?;
    let began = Instant::now();
    let returned = plugin.call(program, &with.arguments)?;
    let call_us = began.elapsed().as_nanos() as f64 / 1e3;
    let told = told(&built.program, &plugin)?;
    let document = Document::new(returned, call_us, Some(times), told, plugin.faults()?);
    document.write(&mut output, result.json)?;
    if let Some(path) = &with.output_data {
        variables.take(path, plugin.data())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The daemon only says where it is in the kernel; what it tells is in `tollgate plugin log`.
fn call_loaded(arguments: &CallArguments) -> Result<ExitCode> {
    let (result, with) = (&arguments.result, &arguments.with);
    let mut output = Output::open(result.output.as_deref(), Output::Stdout)?;
    let name = arguments.plugin.to_string_lossy().into_owned();
    let open: OpenReport = answer(&arguments.socket, &Request::Open { name })?;
    takes(open.parameters, with)?;
    let OpenReport { program, data, control, variables, .. } = open;
    let plugin = Opened::new(Numbers { program, data, control })?;
    variables.put(with, plugin.data())?;
    let before = plugin.faults()?;
    let began = Instant::now();
    let returned = plugin.call(&with.arguments)?;
    let call_us = began.elapsed().as_nanos() as f64 / 1e3;
    let faults = since(plugin.faults()?, before);
    Document::new(returned, call_us, None, Vec::new(), faults).write(&mut output, result.json)?;
    if let Some(path) = &with.output_data {
        variables.take(path, plugin.data())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn since(now: Faults, before: Faults) -> Faults {
    Faults {
        outside: now.outside - before.outside,
        cut_short: now.cut_short - before.cut_short,
        full: now.full - before.full,
        lost: now.lost - before.lost,
    }
}

impl Document {
    fn new(result: i32, call_us: f64, times: Option<Times>, told: Vec<Told>, faults: Faults) -> Self {
        let Faults { outside, cut_short, full, lost } = faults;
        let schema = "tollgate.plugin.call/1";
        Self { schema, result, call_us, times, told, outside, cut_short, full, lost }
    }

    fn write(&self, output: &mut Output, is_json: bool) -> Result<()> {
        if is_json {
            return output.write_json(self);
        }
        let lines: String = self.told.iter().map(Told::line).collect();
        output.write(&format!("{lines}{}\n", self.result))?;
        let Self { outside, cut_short, full, lost, .. } = *self;
        say_faults(&Faults { outside, cut_short, full, lost })
    }
}

/// The program of its handler, and how many numbers that takes.
pub fn on_call(built: &Built) -> Result<(usize, usize)> {
    let Some(program) = built.handler(CALL) else {
        bail!("the plugin has no `on call`");
    };
    let handler = &built.program.handlers[built.object.programs[program].handler];
    Ok((program, built.program.functions[handler.function].parameters))
}

pub fn takes(parameters: usize, with: &With) -> Result<()> {
    if parameters != with.arguments.len() {
        bail!(
            "`on call` takes {}, and there are {} (--arg)",
            number_of(parameters, "number"),
            with.arguments.len()
        );
    }
    Ok(())
}

/// What went otherwise than it was written, on stderr.
pub fn say_faults(faults: &Faults) -> Result<()> {
    Ok(super::told::faults(faults).iter().try_for_each(|line| say(line))?)
}
