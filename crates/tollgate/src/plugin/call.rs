//! `tollgate plugin call`: calls the `on call` of a plugin.

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, bail};
use kernel::plugin::{ForeignPlugin, PluginIds};
use serde::Serialize;

use super::arguments::{CallArguments, CallInput};
use super::check::built_or_reported;
use super::compile::CompileTimes;
use super::faults::FaultCounts;
use super::records::{Line, PluginOutput, decode_records};
use super::requests::{OpenReport, PluginRequest};
use super::variables::Variables;
use crate::daemon_client::request_one;
use crate::format::number_of;
use crate::options::SocketOption;
use crate::output::{Output, is_stdio, print_message};

/// The result as JSON (docs/ecode.md).
#[derive(Serialize)]
struct CallReport {
    schema: &'static str,
    result: i32,
    /// The time of the call, with the path into the kernel and back.
    call_us: f64,
    /// `None` for a daemon's plugin, which was compiled before.
    #[serde(flatten)]
    times: Option<CompileTimes>,
    #[serde(rename = "told")]
    plugin_output: Vec<PluginOutput>,
    #[serde(flatten)]
    faults: FaultCounts,
}

const SCHEMA: &str = "tollgate.plugin.call/1";

pub fn call(arguments: &CallArguments) -> Result<ExitCode> {
    if is_name(&arguments.plugin) { call_loaded(arguments) } else { call_file(arguments) }
}

/// Whether an argument names a daemon's plugin, instead of being a path.
fn is_name(plugin: &Path) -> bool {
    let text = plugin.as_os_str().as_encoded_bytes();
    !is_stdio(plugin) && !text.iter().any(|byte| b"/.".contains(byte)) && !plugin.is_file()
}

fn call_file(arguments: &CallArguments) -> Result<ExitCode> {
    let (result, with) = (&arguments.result, &arguments.with);
    let mut output = Output::open(result.output.as_deref(), with.result())?;
    output.refuse_inputs(with.input.iter().chain([&arguments.plugin]))?;
    with.check_stdin_use(&arguments.plugin)?;
    let (source, built) = built_or_reported(&arguments.plugin, result, &mut output)?;
    let (program, parameters) = built.call_handler()?;
    check_argument_count(parameters, with)?;
    let (plugin, times) = built.load(&source)?;
    let variables = Variables::of(&built);
    variables.write_input(with, plugin.data())?;
    let began = Instant::now();
    let returned = plugin.call(program, &with.arguments)?;
    let call_us = began.elapsed().as_nanos() as f64 / 1e3;
    let plugin_output = decode_records(&built.program, &plugin.records()?)?
        .into_iter()
        .map(|(_, output)| output)
        .collect();
    let faults = plugin.faults()?.into();
    let report = CallReport {
        schema: SCHEMA,
        result: returned,
        call_us,
        times: Some(times),
        plugin_output,
        faults,
    };
    report.write(&mut output, result.json)?;
    if let Some(path) = &with.output_data {
        variables.read_output(path, plugin.data())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Calls a plugin of the daemon. The daemon provides the plugin's IDs and, after the call, the
/// plugin's new output. Some of the output may be from the plugin's other hooks.
fn call_loaded(arguments: &CallArguments) -> Result<ExitCode> {
    let (result, with) = (&arguments.result, &arguments.with);
    let mut output = Output::open(result.output.as_deref(), with.result())?;
    output.refuse_inputs(&with.input)?;
    let name = arguments.plugin.to_string_lossy().into_owned();
    let (open, plugin) = opened(&arguments.socket, &name)?;
    check_argument_count(open.parameters, with)?;
    let OpenReport { variables, lines: after, .. } = open;
    variables.write_input(with, plugin.data())?;
    let before = plugin.faults()?.into();
    let began = Instant::now();
    let returned = plugin.call(&with.arguments)?;
    let call_us = began.elapsed().as_nanos() as f64 / 1e3;
    let faults = FaultCounts::from(plugin.faults()?).since(before);
    let lines: Vec<Line> =
        request_one(&arguments.socket, &PluginRequest::OutputSince { name, after })?;
    let plugin_output = lines.into_iter().map(|line| line.output).collect();
    let report = CallReport {
        schema: SCHEMA,
        result: returned,
        call_us,
        times: None,
        plugin_output,
        faults,
    };
    report.write(&mut output, result.json)?;
    if let Some(path) = &with.output_data {
        variables.read_output(path, plugin.data())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens a daemon's plugin. Requests the IDs again if a swap has made them invalid.
fn opened(socket: &SocketOption, name: &str) -> Result<(OpenReport, ForeignPlugin)> {
    const TRIES: usize = 10;
    let mut tries = 0;
    loop {
        let open: OpenReport = request_one(socket, &PluginRequest::Open { name: name.into() })?;
        let OpenReport { program, data, control, .. } = open;
        tries += 1;
        match ForeignPlugin::new(PluginIds { program, data, control }) {
            Err(error) if error.is_absence() && tries < TRIES => {}
            opened => return Ok((open, opened?)),
        }
    }
}

impl CallReport {
    fn write(&self, output: &mut Output, is_json: bool) -> Result<()> {
        if is_json {
            return output.write_json(self);
        }
        self.plugin_output.iter().try_for_each(|output| print_message(&output.line()))?;
        output.write(&format!("{}\n", self.result))?;
        warn_faults(self.faults)
    }
}

pub fn check_argument_count(parameters: usize, with: &CallInput) -> Result<()> {
    if parameters != with.arguments.len() {
        bail!(
            "`on call` takes {}, but {} given (--arg)",
            number_of(parameters, "number"),
            match with.arguments.len() {
                1 => "1 was".into(),
                given => format!("{given} were"),
            }
        );
    }
    Ok(())
}

/// Prints the plugin's faults on stderr.
pub fn warn_faults(faults: FaultCounts) -> Result<()> {
    Ok(faults.lines().iter().try_for_each(|line| print_message(line))?)
}
