//! Plugins at work in this process: loaded, linked, told of, swapped and taken away.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use ecode::interpret::Faults;
use kernel::gate::Gate;
use kernel::plugins::{Hooks, Numbers, Plugin, Turn};
use kernel::wire;
use serde::{Deserialize, Serialize};

use super::build::{Built, Times, build, built, has};
use super::call::on_call;
use super::hooks::Machine;
use super::state::{Handler, State, state};
use super::swap::Kept;
use super::told::{Told, told};
use super::variables::Variables;
use crate::format::printable;
use crate::output::say;
use crate::source::Source;

/// What plugins have told, of all together.
const KEPT: usize = 10_000;
/// Of a name, which is a word of commands.
const LONGEST_NAME: usize = 64;
/// Loops that were cut short since it was linked, after which a plugin is taken out: each may have held up somebody for a quarter of a
/// second (BPF_MAX_TIMED_LOOPS, include/linux/bpf.h).
const MOST_CUT_SHORT: u64 = 8;

/// Entries of each map in a report.
const REPORTED: usize = 1000;

pub struct Plugins {
    hooks: Hooks,
    all: Vec<Live>,
    /// The latest lines of each, in their order, with its name.
    lines: VecDeque<(String, String)>,
    /// Of whose tasks they are, at hooks of the gate; or everybody's.
    session: u32,
}

struct Live {
    name: String,
    priority: i32,
    built: Built,
    plugin: Plugin,
    told: u64,
    /// Of `cut_short`, when it was linked.
    cut_short_before: u64,
    /// Why it does not run any more.
    taken_out: Option<String>,
}

/// `tollgate plugin load --json`, and `swap`
#[derive(Debug, Serialize, Deserialize)]
pub struct LoadReport {
    pub schema: String,
    pub name: String,
    #[serde(flatten)]
    pub times: Times,
    /// The steps by which all its hooks came to run it.
    pub link_us: f64,
    /// Of a swap: what the new plugin has not from the one before, and why.
    pub not_kept: Vec<String>,
}

/// What a process needs to call a plugin by itself.
#[derive(Debug, Serialize, Deserialize)]
pub struct OpenReport {
    pub program: u32,
    pub data: u32,
    pub control: u32,
    pub variables: Variables,
    pub parameters: usize,
}

/// A line of a plugin's, or of Tollgate about it.
pub struct Line {
    pub plugin: String,
    pub text: String,
    pub is_of_tollgate: bool,
}

/// What the gate is to do for it.
fn needs(built: &Built) -> u32 {
    let sections = built.object.programs.iter().map(|program| program.section);
    sections.fold(0, |needs, section| match section {
        "tp_btf/sys_exit" => needs | wire::PLUGIN | wire::PLUGIN_EXIT,
        section if section.starts_with("tp_btf/") || ["guard", "verdict"].contains(&section) => {
            needs | wire::PLUGIN
        }
        _ => needs,
    })
}

/// For a session that runs these, before it begins. What is wrong with them is told.
pub fn mask(sources: &[Source], top: usize, is_machine: bool, has_guard: bool) -> Result<u32> {
    let mut mask = 0;
    for source in sources {
        let built = built(source, top)?;
        let mut denies =
            built.program.handlers.iter().filter(|handler| handler.offer.denies() && handler.hook != "guard");
        if let Some(handler) = denies.next().filter(|_| !is_machine) {
            bail!(
                "`on {}` is the whole machine's, and not the command's alone: `tollgate plugin load` has a daemon run it",
                handler.hook
            );
        }
        let is_of_guard = |section: &str| ["guard", "verdict"].contains(&section);
        if !has_guard && built.object.programs.iter().any(|program| is_of_guard(program.section)) {
            say(&format!(
                "tollgate: {} has handlers for the guard, which never run, as there is none (--guard)",
                printable(&source.name)
            ))?;
        }
        mask |= wire::PLUGIN | needs(&built);
    }
    Ok(mask)
}

/// Whoever wants it loaded has been told of its warnings.
fn compiled(source: &Source) -> Result<Built> {
    let (built, problems) = build(source, Machine::ToLoad);
    built.with_context(|| has(source, &problems))
}

fn us(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

impl Plugins {
    pub fn of_session(session: u32) -> Self {
        Self { hooks: Hooks::default(), all: Vec::new(), lines: VecDeque::new(), session }
    }

    fn place(&self, name: &str) -> Result<usize> {
        match self.all.iter().position(|live| live.name == name) {
            Some(place) => Ok(place),
            None => match ecode::nearest(name, self.all.iter().map(|live| live.name.as_str())) {
                Some(near) => bail!("no plugin is called {name}; there is {near}"),
                None => bail!("no plugin is called {name} (`tollgate plugin list`)"),
            },
        }
    }

    pub fn load(
        &mut self,
        gate: &mut Gate,
        source: &Source,
        name: &str,
        priority: i32,
    ) -> Result<LoadReport> {
        let is_of_name = |letter: char| letter.is_alphanumeric() || "._-".contains(letter);
        ensure!(
            !name.is_empty()
                && name.len() <= LONGEST_NAME
                && name.chars().all(is_of_name)
                && !name.starts_with('-'),
            "{} is no name for a plugin, which has letters, digits, `.`, `_` and `-`, {LONGEST_NAME} at most: give it a --name",
            printable(name)
        );
        ensure!(
            !self.all.iter().any(|live| live.name == name),
            "there is a plugin {name} already: swap it, unload it, or give this one another --name"
        );
        let built = compiled(source)?;
        extend(gate, needs(&built))?;
        let turn = Turn { session: self.session, priority };
        let (plugin, times) = built.load_at(source, &mut self.hooks, gate, turn, None)?;
        let link_us = us(plugin.link(None)?);
        self.all.push(Live::new(name, priority, built, plugin)?);
        let name = name.to_owned();
        Ok(LoadReport { schema: "tollgate.plugin.load/1".into(), name, times, link_us, not_kept: Vec::new() })
    }

    pub fn swap(&mut self, gate: &mut Gate, source: &Source, name: &str) -> Result<LoadReport> {
        let place = self.place(name)?;
        let built = compiled(source)?;
        extend(gate, needs(&built))?;
        let old = &self.all[place];
        let kept = Kept::of(&old.built, &built);
        let turn = Turn { session: self.session, priority: old.priority };
        let (plugin, times) =
            built.load_at(source, &mut self.hooks, gate, turn, Some((&old.plugin, &kept.shared)))?;
        kept.copy(old.plugin.data(), plugin.data());
        let link_us = us(plugin.link(Some(&old.plugin))?);
        let new = Live::new(name, old.priority, built, plugin)?;
        let mut old = std::mem::replace(&mut self.all[place], new);
        // What it told last is not lost either.
        keep(&mut self.lines, name, old.take_told()?);
        self.all[place].told = old.told;
        drop(old);
        self.hooks.leave_unused();
        let (name, not_kept) = (name.to_owned(), kept.not_kept);
        Ok(LoadReport { schema: "tollgate.plugin.swap/1".into(), name, times, link_us, not_kept })
    }

    /// How long the steps took by which nobody comes by it any more, in microseconds.
    pub fn unload(&mut self, name: &str) -> Result<f64> {
        let place = self.place(name)?;
        let took = self.all[place].plugin.unlink()?;
        self.all.remove(place);
        self.hooks.leave_unused();
        Ok(us(took))
    }

    pub fn unload_all(&mut self) {
        self.all.clear();
    }

    pub fn list(&self) -> Result<Vec<State>> {
        self.all.iter().map(|live| live.state(0)).collect()
    }

    /// All, with variables and some of each map's entries.
    pub fn states(&self) -> Result<Vec<State>> {
        self.all.iter().map(|live| live.state(REPORTED)).collect()
    }

    /// With its variables, and so many of each map's entries.
    pub fn show(&self, name: &str, top: usize) -> Result<State> {
        self.all[self.place(name)?].state(top)
    }

    pub fn set(&self, name: &str, variable: &str, value: u64) -> Result<()> {
        let live = &self.all[self.place(name)?];
        Variables::of(&live.built).set(variable, value, live.plugin.data())
    }

    pub fn lines(&self, name: Option<&str>) -> Result<Vec<String>> {
        let Some(name) = name else {
            return Ok(self.lines.iter().map(|(name, line)| format!("{name}: {line}")).collect());
        };
        let its: Vec<_> =
            self.lines.iter().filter(|(of, _)| of == name).map(|(_, line)| line.clone()).collect();
        // Those of one that was unloaded are there still.
        if its.is_empty() {
            self.place(name)?;
        }
        Ok(its)
    }

    pub fn open(&self, name: &str) -> Result<OpenReport> {
        let live = &self.all[self.place(name)?];
        let (handler, parameters) = on_call(&live.built)?;
        let Numbers { program, data, control } = live.plugin.numbers(handler)?;
        Ok(OpenReport { program, data, control, variables: Variables::of(&live.built), parameters })
    }

    /// Takes in what plugins tell, and takes those out that keep hitting their limits.
    pub fn tend(&mut self) -> Result<Vec<Line>> {
        let mut lines = Vec::new();
        for live in &mut self.all {
            let plugin = live.name.clone();
            let line = |text, is_of_tollgate| Line { plugin: plugin.clone(), text, is_of_tollgate };
            let told = live.take_told()?;
            keep(&mut self.lines, &plugin, told.clone());
            lines.extend(told.into_iter().map(|text| line(text, false)));
            lines.extend(live.restrain()?.map(|text| line(text, true)));
        }
        Ok(lines)
    }
}

fn keep(lines: &mut VecDeque<(String, String)>, name: &str, told: Vec<String>) {
    lines.extend(told.into_iter().map(|line| (name.to_owned(), line)));
    lines.drain(..lines.len().saturating_sub(KEPT));
}

fn extend(gate: &mut Gate, mask: u32) -> Result<()> {
    if mask != 0 && gate.enabled() & mask != mask {
        gate.extend(mask)?;
    }
    Ok(())
}

impl Live {
    fn new(name: &str, priority: i32, built: Built, plugin: Plugin) -> Result<Self> {
        let cut_short_before = plugin.faults()?.cut_short;
        Ok(Self { name: name.into(), priority, built, plugin, told: 0, cut_short_before, taken_out: None })
    }

    fn take_told(&mut self) -> Result<Vec<String>> {
        let told = told(&self.built.program, &self.plugin)?;
        self.told += told.len() as u64;
        Ok(told.iter().map(Told::line).collect())
    }

    fn restrain(&mut self) -> Result<Option<String>> {
        let cut_short = self.plugin.faults()?.cut_short - self.cut_short_before;
        if cut_short < MOST_CUT_SHORT || self.taken_out.is_some() || !self.plugin.is_linked() {
            return Ok(None);
        }
        self.plugin.unlink()?;
        let why = format!("its loops were cut short {cut_short} times");
        let line = format!("taken out: {why}; `tollgate plugin swap` puts a better one in its place\n");
        self.taken_out = Some(why);
        Ok(Some(line))
    }

    fn state(&self, top: usize) -> Result<State> {
        let handlers = self.built.object.programs.iter().map(|program| Handler {
            hook: program.hook.clone(),
            selected: program.selected.clone(),
            instructions: program.instructions.len(),
        });
        let Faults { outside, cut_short, full, lost } = self.plugin.faults()?;
        let (variables, maps) = state(&self.built, &self.plugin, top)?;
        Ok(State {
            name: self.name.clone(),
            priority: self.priority,
            handlers: handlers.collect(),
            is_linked: self.plugin.is_linked(),
            taken_out: self.taken_out.clone(),
            told: self.told,
            variables,
            maps,
            outside,
            cut_short,
            full,
            lost,
        })
    }
}
