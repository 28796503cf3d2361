//! `tollgate plugin build`: prints the disassembly of a plugin.

use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::Result;
use ecode::Compiled;
use serde::Serialize;

use super::arguments::PluginCheckArguments;
use super::check::{built_or_reported, heading};
use crate::format::{number_of, printable};
use crate::output::Output;
use crate::source_file::SourceFile;

/// The result as JSON (docs/ecode.md).
#[derive(Serialize)]
struct DisassemblyReport<'a> {
    schema: &'static str,
    file: &'a str,
    parse_us: f64,
    codegen_us: f64,
    /// The instructions of all programs.
    instructions: usize,
    programs: Vec<ProgramRow<'a>>,
}

#[derive(Serialize)]
struct ProgramRow<'a> {
    hook: &'a str,
    selected: &'a [String],
    section: &'a str,
    #[serde(rename = "listing")]
    disassembly: Vec<InstructionRow>,
}

#[derive(Serialize)]
struct InstructionRow {
    at: usize,
    line: u32,
    column: u32,
    bytes: String,
    text: String,
}

pub fn build(arguments: &PluginCheckArguments) -> Result<ExitCode> {
    let result = &arguments.result;
    let mut output = Output::open(result.output.as_deref(), Output::Stdout)?;
    output.refuse_inputs([&arguments.file])?;
    let (source, built) = built_or_reported(&arguments.file, result, &mut output)?;
    if result.json {
        output.write_json(&DisassemblyReport {
            schema: "tollgate.plugin.build/1",
            file: &source.name,
            parse_us: built.parse_us,
            codegen_us: built.codegen_us,
            instructions: built.instructions(),
            programs: built.object.programs.iter().map(row).collect(),
        })?;
    } else {
        output.write(
            &built.object.programs.iter().map(|program| text(program, &source)).collect::<String>(),
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

fn row(program: &Compiled) -> ProgramRow<'_> {
    let disassembly = program.disassemble().into_iter().map(|instruction| InstructionRow {
        at: instruction.at,
        line: instruction.line,
        column: instruction.column,
        bytes: instruction.bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
        text: instruction.text,
    });
    let (hook, selected, section) = (&program.hook, &program.selected, program.section);
    ProgramRow { hook, selected, section, disassembly: disassembly.collect() }
}

fn text(program: &Compiled, source: &SourceFile) -> String {
    let heading = heading(&program.hook, &program.selected);
    let instructions = number_of(program.instructions.len(), "instruction");
    let mut out = format!("{heading}: {instructions}, {}\n", program.section);
    let lines: Vec<_> = source.text.lines().collect();
    let mut shown = 0;
    for instruction in program.disassemble() {
        if instruction.line != shown {
            shown = instruction.line;
            let line = lines.get((shown as usize).wrapping_sub(1)).map_or("", |line| line.trim());
            let _ = writeln!(out, "  {}:{shown}: {}", printable(&source.name), printable(line));
        }
        let _ = writeln!(out, "    {:>5}: {}", instruction.at, instruction.text);
    }
    out
}
