//! A plugin's text into what the kernel loads, and the time that takes.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ecode::{Diagnostic, Object, Program};
use kernel::gate::Gate;
use kernel::plugins::{Hooks, Plugin, Shared, Turn, reading_took};
use kernel::probe::loops;
use serde::{Deserialize, Serialize};

use super::diagnostics::{counted, refused, tell};
use super::hooks::Machine;
use crate::format::printable;
use crate::source::Source;

/// What a file is called that is none.
const KIND: &str = "plugin";

/// A hundred thousand lines fit in. Each byte may be a statement, which takes some 300 in memory, also the daemon's.
const LONGEST: usize = 4 << 20;

pub struct Built {
    pub program: Program,
    pub object: Object,
    pub parse_us: f64,
    pub codegen_us: f64,
}

/// How long its ways took.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Times {
    pub parse_us: f64,
    pub codegen_us: f64,
    pub verify_us: f64,
    pub instructions: usize,
}

pub fn read(path: &Path) -> Result<Source> {
    let source = Source::read(path, KIND)?;
    let name = printable(&source.name);
    ensure!(source.text.len() <= LONGEST, "{name} has more than {} MiB, and is no {KIND}", LONGEST >> 20);
    Ok(source)
}

/// What a plugin is called: as its file, without what is behind the dot.
pub fn name_of(source: &Source) -> String {
    Path::new(&source.name).file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

pub fn compiled(program: &Program, source: &Source) -> std::result::Result<Object, Box<Diagnostic>> {
    ecode::compile(program, &source.text, &source.name, loops())
}

/// With what is to be said of it in either case.
pub fn build(source: &Source, machine: Machine) -> (Option<Built>, Vec<Diagnostic>) {
    let (began, read_before) = (Instant::now(), reading_took());
    let (program, mut problems) = ecode::check(&source.text, &machine);
    // A process reads the kernel's types with its first plugin, which is no part of the text's.
    let parse_us = us(began) - micros(reading_took() - read_before);
    let Some(program) = program else { return (None, problems) };
    let began = Instant::now();
    match compiled(&program, source) {
        Ok(object) => {
            let codegen_us = us(began);
            (Some(Built { program, object, parse_us, codegen_us }), problems)
        }
        Err(problem) => {
            problems.push(*problem);
            (None, problems)
        }
    }
}

/// For those who have another process compile it. Warnings are told.
pub fn checked(source: &Source, top: usize) -> Result<Program> {
    let (program, problems) = ecode::check(&source.text, &Machine::ToCheck);
    tell(&problems, source, top)?;
    program.with_context(|| has_problems(source, &problems))
}

/// For those who need a plugin that is right, and load nothing of it but its `on call`. Warnings are told.
pub fn built(source: &Source, top: usize) -> Result<Built> {
    let (built, problems) = build(source, Machine::ToCheck);
    tell(&problems, source, top)?;
    built.with_context(|| has_problems(source, &problems))
}

pub fn has_problems(source: &Source, problems: &[Diagnostic]) -> String {
    format!("{} has {}", printable(&source.name), counted(problems))
}

impl Built {
    /// Its `on call` into the kernel.
    pub fn load(&self, source: &Source) -> Result<(Plugin, Times)> {
        self.timed(source, || Plugin::load(&self.object))
    }

    /// At its hooks; over what another one has in memory.
    pub fn load_at(
        &self,
        source: &Source,
        hooks: &mut Hooks,
        gate: &Gate,
        turn: Turn,
        over: Option<(&Plugin, &Shared)>,
    ) -> Result<(Plugin, Times)> {
        self.timed(source, || Plugin::load_at(&self.object, hooks, gate, turn, over))
    }

    fn timed(
        &self,
        source: &Source,
        load: impl FnOnce() -> kernel::Result<Plugin>,
    ) -> Result<(Plugin, Times)> {
        let began = Instant::now();
        let plugin = load().or_else(|error| refused(error, source))?;
        let times = Times {
            parse_us: self.parse_us,
            codegen_us: self.codegen_us,
            verify_us: us(began),
            instructions: self.instructions(),
        };
        Ok((plugin, times))
    }

    pub fn instructions(&self) -> usize {
        self.object.programs.iter().map(|program| program.instructions.len()).sum()
    }

    /// The number of the handler for a hook, where it has one.
    pub fn handler(&self, hook: &str) -> Option<usize> {
        self.object.programs.iter().position(|program| program.hook == hook)
    }
}

fn us(began: Instant) -> f64 {
    micros(began.elapsed())
}

pub fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}
