//! Commands on plugins that a daemon has.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};

use super::arguments::{
    ListArguments, LoadArguments, LogArguments, SetArguments, ShowArguments, SwapArguments, UnloadArguments,
};
use super::build::{checked, compiled, name_of, read};
use super::control::{Request, Text};
use super::diagnostics::tell;
use super::live::LoadReport;
use super::state::State;
use super::told::{Line, Told};
use crate::cli::ResultOptions;
use crate::daemon::SocketOption;
use crate::daemon::control::{OTHER_VERSION, answer, ask, running};
use crate::format::printable;
use crate::output::{self, Output, say};
use crate::source::Source;

/// What is wrong with it is told here, where its text is. The daemon compiles it; it is only compiled here as well to tell why that
/// failed.
fn put(
    socket: &SocketOption,
    source: Source,
    top: usize,
    request: impl FnOnce(Text) -> Request,
) -> Result<LoadReport> {
    let program = checked(&source, top)?;
    let text = Text { name: source.name.clone(), text: source.text.clone() };
    answer(socket, &request(text)).or_else(|error| {
        if let Err(problem) = compiled(&program, &source) {
            tell(&[*problem], &source, top)?;
        }
        Err(error)
    })
}

pub fn load(arguments: &LoadArguments) -> Result<ExitCode> {
    let source = read(&arguments.file)?;
    let name = arguments.name.clone().unwrap_or_else(|| name_of(&source));
    let priority = arguments.priority;
    let request = |text| Request::Load { name, priority, text };
    told(&put(&arguments.socket, source, arguments.result.top, request)?, "loaded", &arguments.result)
}

pub fn swap(arguments: &SwapArguments) -> Result<ExitCode> {
    let source = read(&arguments.file)?;
    let request = |text| Request::Swap { name: arguments.name.clone(), text };
    told(&put(&arguments.socket, source, arguments.result.top, request)?, "swapped", &arguments.result)
}

fn told(report: &LoadReport, what: &str, result: &ResultOptions) -> Result<ExitCode> {
    let mut output = Output::open(result.output.as_deref(), Output::Stdout)?;
    for idle in &report.idle {
        say(&format!("tollgate: {} has {idle}", printable(&report.name)))?;
    }
    for lost in &report.not_kept {
        say(&format!("not kept: {}", printable(lost)))?;
    }
    if result.json {
        output.write_json(report)?;
        return Ok(ExitCode::SUCCESS);
    }
    if !report.copied.is_empty() {
        let names = report.copied.join(", ");
        say(&format!("copied, without what changed at that moment: {}", printable(&names)))?;
    }
    let times = &report.times;
    output.write(&format!(
        "{} is {what}: checked in {:.0}, compiled in {:.0}, taken by the kernel in {:.0} us, linked in {:.2} us; {} instructions\n",
        printable(&report.name),
        times.parse_us,
        times.codegen_us,
        times.verify_us,
        report.link_us,
        times.instructions,
    ))?;
    Ok(ExitCode::SUCCESS)
}

pub fn unload(arguments: &UnloadArguments) -> Result<ExitCode> {
    let took: f64 = answer(&arguments.socket, &Request::Unload { name: arguments.name.clone() })?;
    let (name, result) = (&arguments.name, &arguments.result);
    let mut output = Output::open(result.output.as_deref(), Output::Stdout)?;
    if result.json {
        let schema = "tollgate.plugin.unload/1";
        output.write_json(&serde_json::json!({ "schema": schema, "name": name, "unlink_us": took }))?;
    } else {
        output.write(&format!("{} is unloaded: unlinked in {took:.2} us\n", printable(name)))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub fn list(arguments: &ListArguments) -> Result<ExitCode> {
    let list: Vec<State> = answer(&arguments.socket, &Request::List)?;
    let result = &arguments.result;
    let mut output = Output::open(result.output.as_deref(), Output::Stdout)?;
    if result.json {
        output.write_json(&serde_json::json!({ "schema": "tollgate.plugin.list/1", "plugins": list }))?;
    } else {
        output.write(&list.iter().map(State::line).collect::<String>())?;
    }
    Ok(ExitCode::SUCCESS)
}

pub fn show(arguments: &ShowArguments) -> Result<ExitCode> {
    let result = &arguments.result;
    let request = Request::Show { name: arguments.name.clone(), top: result.top.max(1) };
    let state: State = answer(&arguments.socket, &request)?;
    let mut output = Output::open(result.output.as_deref(), Output::Stdout)?;
    if result.json {
        output.write_json(&serde_json::json!({ "schema": "tollgate.plugin.show/1", "plugin": state }))?;
    } else {
        output.write(&format!("{}{}", state.line(), state.memory(result.top)))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub fn set(arguments: &SetArguments) -> Result<ExitCode> {
    let request = Request::Set { name: arguments.name.clone(), variables: arguments.variables.clone() };
    let _: bool = answer(&arguments.socket, &request)?;
    Ok(ExitCode::SUCCESS)
}

pub fn log(arguments: &LogArguments) -> Result<ExitCode> {
    let LogArguments { name, follow, json, socket: SocketOption { path } } = arguments;
    let (_, lines) = ask(&running(path)?, &Request::Log { name: name.clone(), follow: *follow })?;
    let mut is_unloaded = false;
    for text in lines {
        let line: Line = serde_json::from_str(&text).context(OTHER_VERSION)?;
        is_unloaded = matches!(line.told, Told::Unloaded { .. });
        if !json && !line.told.is_of_plugin() {
            say(&line.named())?;
            continue;
        }
        let text = match (json, name) {
            (true, _) => text,
            (false, Some(_)) => line.told.line(),
            (false, None) => line.named(),
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
