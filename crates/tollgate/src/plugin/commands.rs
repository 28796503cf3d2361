//! Commands on the plugins of a daemon.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail, ensure};
use control::OTHER_VERSION;

use super::arguments::{
    LoadArguments, LogArguments, PluginListArguments, PluginShowArguments, SetArguments,
    SwapArguments, UnloadArguments,
};
use super::check::{read_or_reported, report_problems};
use super::compile::{compiled, has_problems, name_of};
use super::hooks::OffsetSource;
use super::records::{Line, PluginOutput};
use super::report::PluginState;
use super::requests::{ListReport, LoadReport, PluginRequest, PluginSource, ShowReport};
use super::suitability::{is_name, name_error};
use crate::daemon_client::{connect_required, request_one, send_request};
use crate::format::{number_of, printable};
use crate::options::{ResultOptions, SocketOption};
use crate::output::{self, Output, print_message};
use crate::report::{laid_out, losses};
use crate::source_file::SourceFile;

/// Sends a source file to the daemon, which compiles it. Before that, this process checks the file
/// and prints its problems. If the daemon fails, this process compiles the file, too, and prints
/// the problem if the compiler reports one.
fn send_source(
    socket: &SocketOption,
    source: SourceFile,
    result: &ResultOptions,
    output: &mut Output,
    request: impl FnOnce(PluginSource) -> PluginRequest,
) -> Result<LoadReport> {
    let (program, problems) = ecode::check(&source.text, &OffsetSource::ToCheck);
    report_problems(&problems, &source, result, output)?;
    let program = program.with_context(|| has_problems(&source, &problems))?;
    let text = PluginSource { name: source.name.clone(), text: source.text.clone() };
    request_one(socket, &request(text)).or_else(|error| {
        if let Err(problem) = compiled(&program, &source) {
            report_problems(&[*problem], &source, result, output)?;
        }
        Err(error)
    })
}

pub fn load(arguments: &LoadArguments) -> Result<ExitCode> {
    let result = &arguments.result;
    let mut output = Output::open(result.output.as_deref(), Output::Stdout)?;
    output.refuse_inputs([&arguments.file])?;
    let source = read_or_reported(&arguments.file, result, &mut output)?;
    let name = arguments.name.clone().unwrap_or_else(|| name_of(&source));
    let another = if arguments.name.is_some() { "another" } else { "a" };
    ensure!(is_name(&name), "{}: give it {another} --name", name_error(&name));
    let LoadArguments { priority, machine_wide, .. } = *arguments;
    let request = |text| PluginRequest::Load { name, priority, machine_wide, text };
    let report = send_source(&arguments.socket, source, result, &mut output, request)?;
    print_load_report(&report, "loaded", result.json, &mut output)
}

pub fn swap(arguments: &SwapArguments) -> Result<ExitCode> {
    let result = &arguments.result;
    let mut output = Output::open(result.output.as_deref(), Output::Stdout)?;
    output.refuse_inputs([&arguments.file])?;
    let source = read_or_reported(&arguments.file, result, &mut output)?;
    let request = |text| PluginRequest::Swap { name: arguments.name.clone(), text };
    let report = send_source(&arguments.socket, source, result, &mut output, request)?;
    print_load_report(&report, "swapped", result.json, &mut output)
}

fn print_load_report(
    report: &LoadReport,
    what: &str,
    is_json: bool,
    output: &mut Output,
) -> Result<ExitCode> {
    for idle in &report.idle {
        print_message(&format!("tollgate: {} has {idle}", printable(&report.name)))?;
    }
    for lost in &report.not_kept {
        print_message(&format!("not kept: {}", printable(lost)))?;
    }
    if is_json {
        output.write_json(report)?;
        return Ok(ExitCode::SUCCESS);
    }
    if !report.copied.is_empty() {
        let names = report.copied.join(", ");
        print_message(&format!(
            "copied, without changes made during the copy: {}",
            printable(&names)
        ))?;
    }
    let times = &report.times;
    output.write(&format!(
        "{} is {what}: check {:.0} us, compile {:.0} us, load {:.0} us, link {:.2} us; \
        {}\n",
        printable(&report.name),
        times.parse_us,
        times.codegen_us,
        times.verify_us,
        report.link_us,
        number_of(times.instructions, "instruction"),
    ))?;
    Ok(ExitCode::SUCCESS)
}

pub fn unload(arguments: &UnloadArguments) -> Result<ExitCode> {
    let took: f64 =
        request_one(&arguments.socket, &PluginRequest::Unload { name: arguments.name.clone() })?;
    let (name, result) = (&arguments.name, &arguments.result);
    let mut output = Output::open(result.output.as_deref(), Output::Stdout)?;
    if result.json {
        let schema = "tollgate.plugin.unload/1";
        output.write_json(
            &serde_json::json!({ "schema": schema, "name": name, "unlink_us": took }),
        )?;
    } else {
        output.write(&format!("{} is unloaded: unlink {took:.2} us\n", printable(name)))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub fn list(arguments: &PluginListArguments) -> Result<ExitCode> {
    let list: ListReport = request_one(&arguments.socket, &PluginRequest::List)?;
    let result = &arguments.result;
    let mut output = Output::open(result.output.as_deref(), Output::Stdout)?;
    if result.json {
        output.write_json(&list)?;
    } else {
        let lines: String = list.plugins.iter().map(PluginState::line).collect();
        let text = losses(&list.losses) + &lines;
        output.write(&laid_out(&text, output.columns()))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub fn show(arguments: &PluginShowArguments) -> Result<ExitCode> {
    let result = &arguments.result;
    let request = PluginRequest::Show { name: arguments.name.clone(), top: result.top.max(1) };
    let shown: ShowReport = request_one(&arguments.socket, &request)?;
    let mut output = Output::open(result.output.as_deref(), Output::Stdout)?;
    if result.json {
        output.write_json(&shown)?;
    } else {
        let (state, losses) = (&shown.plugin, losses(&shown.losses));
        let text = format!("{losses}{}{}", state.line(), state.memory(result.top));
        output.write(&laid_out(&text, output.columns()))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub fn set(arguments: &SetArguments) -> Result<ExitCode> {
    let request =
        PluginRequest::Set { name: arguments.name.clone(), variables: arguments.variables.clone() };
    let _: bool = request_one(&arguments.socket, &request)?;
    Ok(ExitCode::SUCCESS)
}

pub fn log(arguments: &LogArguments) -> Result<ExitCode> {
    let LogArguments { name, follow, json, socket: SocketOption { path } } = arguments;
    let (_, lines) = send_request(
        connect_required(path)?,
        &PluginRequest::Log { name: name.clone(), follow: *follow },
    )?;
    if *follow {
        output::end_with_the_reader()?;
    }
    let mut is_unloaded = false;
    for text in lines {
        let line: Line = serde_json::from_str(&text).context(OTHER_VERSION)?;
        is_unloaded = matches!(line.output, PluginOutput::Unloaded { .. });
        if !json && !line.output.is_plugin_output() {
            print_message(&line.with_name())?;
            continue;
        }
        let text = match (json, name) {
            (true, _) => text,
            (false, Some(_)) => line.output.line(),
            (false, None) => line.with_name(),
        };
        if !output::line(&text)? {
            return Ok(ExitCode::SUCCESS);
        }
    }
    if *follow && (name.is_none() || !is_unloaded) {
        bail!("the daemon has gone away");
    }
    Ok(ExitCode::SUCCESS)
}
