//! `tollgate plugin check`: compiles a plugin and describes it.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use ecode::{Diagnostic, Severity};
use serde::Serialize;

use super::arguments::PluginCheckArguments;
use super::compile::{CompiledPlugin, build, has_problems, read};
use super::hooks::OffsetSource;
use super::problems::{PluginProblem, print_problems};
use crate::format::{count, number_of, printable};
use crate::options::ResultOptions;
use crate::output::Output;
use crate::source_file::{NotText, SourceFile};

/// The result as JSON (docs/ecode.md).
#[derive(Serialize)]
struct PluginCheckReport<'a> {
    schema: &'static str,
    file: &'a str,
    diagnostics: Vec<PluginProblem<'a>>,
    handlers: Vec<HandlerRow<'a>>,
    maps: Vec<MapRow<'a>>,
    /// The size of global and static variables.
    variable_bytes: u32,
}

#[derive(Serialize)]
struct HandlerRow<'a> {
    hook: &'a str,
    selected: &'a [String],
    /// The number of programs in the kernel. Some hooks need several, for example for IPv4 and
    /// IPv6.
    programs: usize,
    /// The instructions of all programs, with the functions that they call.
    instructions: usize,
}

#[derive(Serialize)]
struct MapRow<'a> {
    name: &'a str,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
}

impl<'a> PluginCheckReport<'a> {
    fn with_problems_only(file: &'a str, diagnostics: Vec<PluginProblem<'a>>) -> Self {
        let schema = "tollgate.plugin.check/1";
        Self {
            schema,
            file,
            diagnostics,
            handlers: Vec::new(),
            maps: Vec::new(),
            variable_bytes: 0,
        }
    }
}

pub fn check(arguments: &PluginCheckArguments) -> Result<ExitCode> {
    let result = &arguments.result;
    let mut output = Output::open(result.output.as_deref(), Output::Stdout)?;
    output.refuse_inputs([&arguments.file])?;
    let source = read_or_reported(&arguments.file, result, &mut output)?;
    let (built, problems) = build(&source, OffsetSource::ToCheck);
    let (handlers, maps) = built.as_ref().map_or_else(Default::default, rows);
    let variable_bytes = built.as_ref().map_or(0, |built| built.object.variable_bytes);
    if result.json {
        let rows = problems.iter().map(|problem| PluginProblem::new(problem, &source)).collect();
        let nothing = PluginCheckReport::with_problems_only(&source.name, rows);
        output.write_json(&PluginCheckReport { handlers, maps, variable_bytes, ..nothing })?;
    } else {
        print_problems(&problems, &source, result.top)?;
        if built.is_some() {
            output.write(&text(&source, &handlers, &maps, variable_bytes))?;
        }
    }
    if built.is_none() {
        bail!(has_problems(&source, &problems));
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads a file. With `--json`, a file that is not text is a problem in the document of `check`.
pub fn read_or_reported(
    file: &Path,
    result: &ResultOptions,
    output: &mut Output,
) -> Result<SourceFile> {
    read(file).or_else(|error| {
        if let Some(problem) = error.downcast_ref::<NotText>().filter(|_| result.json) {
            output.write_json(&PluginCheckReport::with_problems_only(
                &problem.name,
                vec![PluginProblem::not_text(problem)],
            ))?;
        }
        Err(error)
    })
}

/// Prints the problems of a plugin for a command whose own document is about valid plugins. With
/// `--json`, those of a faulty plugin are the document of `check`.
pub fn report_problems(
    problems: &[Diagnostic],
    source: &SourceFile,
    result: &ResultOptions,
    output: &mut Output,
) -> Result<()> {
    let is_faulty = problems.iter().any(|problem| problem.severity == Severity::Error);
    if !result.json || !is_faulty {
        // What the command does does not depend on whether somebody can read its messages.
        let _ = print_problems(problems, source, result.top);
        return Ok(());
    }
    let rows = problems.iter().map(|problem| PluginProblem::new(problem, source)).collect();
    output.write_json(&PluginCheckReport::with_problems_only(&source.name, rows))
}

/// Reads and compiles a plugin, of which only `on call` will be loaded, and prints its problems.
/// Fails if it has errors.
pub fn built_or_reported(
    file: &Path,
    result: &ResultOptions,
    output: &mut Output,
) -> Result<(SourceFile, CompiledPlugin)> {
    let source = read_or_reported(file, result, output)?;
    let (built, problems) = build(&source, OffsetSource::ToCheck);
    report_problems(&problems, &source, result, output)?;
    let built = built.with_context(|| has_problems(&source, &problems))?;
    Ok((source, built))
}

pub fn heading(hook: &str, selected: &[String]) -> String {
    match selected {
        [] => format!("on {hook}"),
        selected => format!("on {hook}({})", selected.join(", ")),
    }
}

fn rows(built: &CompiledPlugin) -> (Vec<HandlerRow<'_>>, Vec<MapRow<'_>>) {
    let handlers = built.program.handlers.iter().enumerate().map(|(number, handler)| {
        let its = built.object.programs.iter().filter(|program| program.handler == number);
        HandlerRow {
            hook: &handler.hook,
            selected: &handler.selected,
            programs: its.clone().count(),
            instructions: its.map(|program| program.instructions.len()).sum(),
        }
    });
    let maps = built.object.maps.iter().map(|map| MapRow {
        name: &map.name,
        key_bytes: map.key_bytes,
        value_bytes: map.value_bytes,
        entries: map.entries,
    });
    (handlers.collect(), maps.collect())
}

fn text(
    source: &SourceFile,
    handlers: &[HandlerRow<'_>],
    maps: &[MapRow<'_>],
    variable_bytes: u32,
) -> String {
    let mut out = format!("{}:\n", printable(&source.name));
    for handler in handlers {
        let programs = match handler.programs {
            1 => String::new(),
            programs => format!(" in {}", number_of(programs, "program")),
        };
        let instructions = number_of(handler.instructions, "instruction");
        let _ = writeln!(
            out,
            "  {}: {instructions}{programs}",
            heading(handler.hook, handler.selected)
        );
    }
    for map in maps {
        let _ = writeln!(
            out,
            "  map {}[{}]: keys of {}, values of {}",
            map.name,
            count(map.entries.into()),
            number_of(map.key_bytes as usize, "byte"),
            number_of(map.value_bytes as usize, "byte")
        );
    }
    if variable_bytes > 0 {
        let bytes = number_of(variable_bytes as usize, "byte");
        let _ = writeln!(out, "  variables: {bytes}");
    }
    out
}
