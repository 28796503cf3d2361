//! Compiles and loads a plugin, and measures the time that takes.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use ecode::{CALL, Diagnostic, Object, Program};
use kernel::gate::Gate;
use kernel::plugin::{ChainOrder, LoadedPlugin, PluginHooks, SharedMemory, btf_read_time};
use kernel::probe::loops;
use serde::{Deserialize, Serialize};

use super::hooks::OffsetSource;
use super::problems::{kernel_refusal, print_problems, problem_summary};
use crate::format::printable;
use crate::output::is_stdio;
use crate::source_file::SourceFile;

/// The kind of file, in messages.
const KIND: &str = "plugin";

/// Enough for a hundred thousand lines. Each byte may be a statement, for which the compiler needs
/// some 300 bytes of memory, in the daemon as well.
const MAX_SOURCE_BYTES: usize = 4 << 20;

pub struct CompiledPlugin {
    pub program: Program,
    pub object: Object,
    pub parse_us: f64,
    pub codegen_us: f64,
}

/// The time of each step, and the size of the result.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct CompileTimes {
    pub parse_us: f64,
    pub codegen_us: f64,
    pub verify_us: f64,
    pub instructions: usize,
}

pub fn read(path: &Path) -> Result<SourceFile> {
    let source = SourceFile::read(path, KIND)?;
    let name = printable(&source.name);
    ensure!(
        source.text.len() <= MAX_SOURCE_BYTES,
        "{name} is larger than {} MiB, the size limit of a {KIND}",
        MAX_SOURCE_BYTES >> 20
    );
    Ok(source)
}

/// Reads the plugins of a session.
pub fn read_all(paths: &[PathBuf]) -> Result<Vec<SourceFile>> {
    let from_stdin = paths.iter().filter(|path| is_stdio(path)).count();
    ensure!(from_stdin <= 1, "only one {KIND} can be stdin, but {from_stdin} are (--plugin -)");
    paths.iter().map(|path| read(path)).collect()
}

/// The name of a plugin: that of its file, without the extension.
pub fn name_of(source: &SourceFile) -> String {
    Path::new(&source.name).file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

pub fn compiled(
    program: &Program,
    source: &SourceFile,
) -> std::result::Result<Object, Box<Diagnostic>> {
    ecode::compile(program, &source.text, &source.name, loops())
}

/// Checks and compiles a plugin. Returns the diagnostics even if the plugin compiles.
pub fn build(
    source: &SourceFile,
    machine: OffsetSource,
) -> (Option<CompiledPlugin>, Vec<Diagnostic>) {
    let (began, read_before) = (Instant::now(), btf_read_time());
    let (program, mut problems) = ecode::check(&source.text, &machine);
    // A process reads the kernel's types for its first plugin. This time does not depend on the
    // source, so it is left out.
    let parse_us = micros(began.elapsed().saturating_sub(btf_read_time() - read_before));
    let Some(program) = program else { return (None, problems) };
    let began = Instant::now();
    match compiled(&program, source) {
        Ok(object) => {
            let codegen_us = us(began);
            (Some(CompiledPlugin { program, object, parse_us, codegen_us }), problems)
        }
        Err(problem) => {
            problems.push(*problem);
            (None, problems)
        }
    }
}

/// Compiles a plugin that another process or function will load, and prints its diagnostics. Fails
/// if it has errors.
pub fn built(source: &SourceFile, top: usize) -> Result<CompiledPlugin> {
    let (built, problems) = build(source, OffsetSource::ToCheck);
    // A warning that nobody can read does not change what the plugin does.
    let _ = print_problems(&problems, source, top);
    built.with_context(|| has_problems(source, &problems))
}

pub fn has_problems(source: &SourceFile, problems: &[Diagnostic]) -> String {
    format!("{} has {}", printable(&source.name), problem_summary(problems))
}

impl CompiledPlugin {
    /// Loads only the handler of `on call`.
    pub fn load(&self, source: &SourceFile) -> Result<(LoadedPlugin, CompileTimes)> {
        self.timed(source, || LoadedPlugin::load(&self.object))
    }

    /// Loads the plugin for its hooks. If it replaces another plugin, `replaced` has that plugin
    /// and the memory that both share.
    pub fn load_at(
        &self,
        source: &SourceFile,
        hooks: &mut PluginHooks,
        gate: &Gate,
        order: ChainOrder,
        replaced: Option<(&LoadedPlugin, &SharedMemory)>,
    ) -> Result<(LoadedPlugin, CompileTimes)> {
        self.timed(source, || LoadedPlugin::load_at(&self.object, hooks, gate, order, replaced))
    }

    fn timed(
        &self,
        source: &SourceFile,
        load: impl FnOnce() -> kernel::Result<LoadedPlugin>,
    ) -> Result<(LoadedPlugin, CompileTimes)> {
        let began = Instant::now();
        let plugin = load().or_else(|error| kernel_refusal(error, source))?;
        let times = CompileTimes {
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

    /// The index of the program for a hook, if the plugin handles the hook.
    pub fn handler(&self, hook: &str) -> Option<usize> {
        self.object.programs.iter().position(|program| program.hook == hook)
    }

    /// The program of `on call`, and its number of parameters.
    pub fn call_handler(&self) -> Result<(usize, usize)> {
        let Some(program) = self.handler(CALL) else {
            bail!("the plugin has no `on call`");
        };
        let handler = &self.program.handlers[self.object.programs[program].handler];
        Ok((program, self.program.functions[handler.function].parameters))
    }
}

fn us(began: Instant) -> f64 {
    micros(began.elapsed())
}

pub fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}
