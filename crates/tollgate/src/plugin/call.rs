//! `tollgate plugin call`.

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, bail};
use ecode::CALL;
use kernel::plugins::{Numbers, Opened};
use serde::Serialize;

use super::arguments::{CallArguments, With};
use super::build::{Built, Times, built, read};
use super::control::Request;
use super::counted::Counted;
use super::live::OpenReport;
use super::told::{Line, Told, told};
use super::variables::Variables;
use crate::daemon::SocketOption;
use crate::daemon::control::answer;
use crate::format::number_of;
use crate::output::{Output, is_dash, say};

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
    #[serde(flatten)]
    counted: Counted,
}

const SCHEMA: &str = "tollgate.plugin.call/1";

pub fn call(arguments: &CallArguments) -> Result<ExitCode> {
    if is_name(&arguments.plugin) { call_loaded(arguments) } else { call_file(arguments) }
}

/// What is no path is a daemon's plugin.
fn is_name(plugin: &Path) -> bool {
    let text = plugin.as_os_str().as_encoded_bytes();
    !is_dash(plugin) && !text.iter().any(|byte| b"/.".contains(byte)) && !plugin.is_file()
}

fn call_file(arguments: &CallArguments) -> Result<ExitCode> {
    let (result, with) = (&arguments.result, &arguments.with);
    let mut output = Output::open(result.output.as_deref(), with.result())?;
    with.fits_beside(&arguments.plugin)?;
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
    let told = told(&built.program, &plugin.records()?)?.into_iter().map(|(_, told)| told).collect();
    let counted = plugin.faults()?.into();
    let document = Document { schema: SCHEMA, result: returned, call_us, times: Some(times), told, counted };
    document.write(&mut output, result.json)?;
    if let Some(path) = &with.output_data {
        variables.take(path, plugin.data())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The daemon says where it is in the kernel, and what it has told meanwhile, which its other hooks may have, too.
fn call_loaded(arguments: &CallArguments) -> Result<ExitCode> {
    let (result, with) = (&arguments.result, &arguments.with);
    let mut output = Output::open(result.output.as_deref(), with.result())?;
    let name = arguments.plugin.to_string_lossy().into_owned();
    let (open, plugin) = opened(&arguments.socket, &name)?;
    takes(open.parameters, with)?;
    let OpenReport { variables, lines: after, .. } = open;
    variables.put(with, plugin.data())?;
    let before = plugin.faults()?.into();
    let began = Instant::now();
    let returned = plugin.call(&with.arguments)?;
    let call_us = began.elapsed().as_nanos() as f64 / 1e3;
    let counted = Counted::from(plugin.faults()?).since(before);
    let lines: Vec<Line> = answer(&arguments.socket, &Request::Told { name, after })?;
    let told = lines.into_iter().map(|line| line.told).collect();
    let document = Document { schema: SCHEMA, result: returned, call_us, times: None, told, counted };
    document.write(&mut output, result.json)?;
    if let Some(path) = &with.output_data {
        variables.take(path, plugin.data())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// One that was swapped since the daemon said where it is, is asked for once more.
fn opened(socket: &SocketOption, name: &str) -> Result<(OpenReport, Opened)> {
    const TRIES: usize = 10;
    let mut tries = 0;
    loop {
        let open: OpenReport = answer(socket, &Request::Open { name: name.into() })?;
        let OpenReport { program, data, control, .. } = open;
        tries += 1;
        match Opened::new(Numbers { program, data, control }) {
            Err(error) if error.is_absence() && tries < TRIES => {}
            opened => return Ok((open, opened?)),
        }
    }
}

impl Document {
    fn write(&self, output: &mut Output, is_json: bool) -> Result<()> {
        if is_json {
            return output.write_json(self);
        }
        self.told.iter().try_for_each(|told| say(&told.line()))?;
        output.write(&format!("{}\n", self.result))?;
        say_counted(self.counted)
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
            "`on call` takes {}, and not {} (--arg)",
            number_of(parameters, "number"),
            with.arguments.len()
        );
    }
    Ok(())
}

/// What went otherwise than it was written, on stderr.
pub fn say_counted(counted: Counted) -> Result<()> {
    Ok(counted.lines().iter().try_for_each(|line| say(line))?)
}
