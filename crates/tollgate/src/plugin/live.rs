//! Plugins at work in this process: loaded, linked, told of, swapped and taken away.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use ecode::MOST_CUT_SHORT;
use kernel::clock::now_ns;
use kernel::gate::Gate;
use kernel::plugins::{EVERYBODY, Hooks, Numbers, Plugin, RECORDS_BYTES, Turn};
use kernel::wire;
use serde::{Deserialize, Serialize};
use serde_json::Number;

use super::build::{Built, Times, build, built, has_problems, micros, name_of};
use super::call::on_call;
use super::hooks::Machine;
use super::state::{Handler, State, memory};
use super::swap::Kept;
use super::told::{Line, Told, told};
use super::variables::Variables;
use crate::format::printable;
use crate::output::say;
use crate::source::Source;

/// What plugins have told, of all together.
const KEPT: usize = 10_000;
/// Of a name, which is a word of commands.
const LONGEST_NAME: usize = 64;
/// Of one whose device was removed; a new one of the same name is another one.
const LOST: &str = "its network device is gone: unload it, and load it again";

/// Of the usual time between two looks: what a buffer's part of this size was filled in.
const HASTE: usize = 16;

/// Entries of each map in a report.
const REPORTED: usize = 1000;

pub struct Plugins {
    hooks: Hooks,
    all: Vec<Live>,
    /// The latest lines of all, in their order.
    lines: VecDeque<Line>,
    /// How many there were before these.
    forgotten: u64,
    /// Those that were not asked for yet.
    new: Vec<Line>,
    /// Records of all.
    lost: u64,
    /// Of whose tasks they are, at hooks of the gate; or everybody's.
    session: u32,
    /// Of its own: others' may be in the same gate.
    has_guard: bool,
}

struct Live {
    name: String,
    priority: i32,
    built: Built,
    plugin: Plugin,
    told: u64,
    /// Of records, the last time.
    read_bytes: usize,
    /// Of `lost`, that were told of.
    lost_told: u64,
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
    /// Of a swap: variables that are elsewhere in memory now.
    pub copied: Vec<String>,
    /// What of it does nothing where it is.
    pub idle: Vec<String>,
}

/// What a process needs to call a plugin by itself.
#[derive(Debug, Serialize, Deserialize)]
pub struct OpenReport {
    pub program: u32,
    pub data: u32,
    pub control: u32,
    pub variables: Variables,
    pub parameters: usize,
    /// How many lines all have told so far.
    pub lines: u64,
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

fn is_name(name: &str) -> bool {
    let is_of_name = |letter: char| letter.is_alphanumeric() || "._-".contains(letter);
    (1..=LONGEST_NAME).contains(&name.len()) && name.chars().all(is_of_name) && !name.starts_with('-')
}

fn no_name(name: &str) -> String {
    format!(
        "{} is no name for a plugin, which has letters, digits, `.`, `_` and `-`, {LONGEST_NAME} at most",
        printable(name)
    )
}

/// For a session that runs these, before it begins. What is wrong with them is told.
pub fn mask(sources: &[Source], top: usize, is_machine: bool, has_guard: bool) -> Result<u32> {
    let mut mask = 0;
    for source in sources {
        let name = name_of(source);
        ensure!(is_name(&name), "{}: rename the file", no_name(&name));
        let built = built(source, top)?;
        let mut denies =
            built.program.handlers.iter().filter(|handler| handler.offer.denies() && handler.hook != "guard");
        if let Some(handler) = denies.next().filter(|_| !is_machine) {
            bail!(
                "`on {}` is the whole machine's, and not the command's alone: `tollgate plugin load` has a daemon run it",
                handler.hook
            );
        }
        for idle in idle(&built, has_guard) {
            say(&format!("tollgate: {} has {idle}", printable(&source.name)))?;
        }
        mask |= wire::PLUGIN | needs(&built);
    }
    Ok(mask)
}

/// What of a plugin never runs.
fn idle(built: &Built, has_guard: bool) -> Vec<String> {
    let is_of_guard = |section: &str| ["guard", "verdict"].contains(&section);
    let has_handlers = built.object.programs.iter().any(|program| is_of_guard(program.section));
    (has_handlers && !has_guard)
        .then(|| "handlers for the guard, which never run, as there is none (--guard)".into())
        .into_iter()
        .collect()
}

/// Whoever wants it loaded has been told of its warnings.
fn compiled(source: &Source) -> Result<Built> {
    let (built, problems) = build(source, Machine::ToLoad);
    built.with_context(|| has_problems(source, &problems))
}

impl Plugins {
    pub fn of_session(session: u32, has_guard: bool) -> Self {
        Self {
            hooks: Hooks::default(),
            all: Vec::new(),
            lines: VecDeque::new(),
            forgotten: 0,
            new: Vec::new(),
            lost: 0,
            session,
            has_guard,
        }
    }

    pub fn has(&self, name: &str) -> bool {
        self.all.iter().any(|live| live.name == name)
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

    /// Each is called as its file; of several with the same name, those that come later x-2, x-3 and so on.
    pub fn load_files(&mut self, gate: &mut Gate, sources: &[Source]) -> Result<()> {
        for source in sources {
            let name = name_of(source);
            let others = (2..).map(|number| format!("{name}-{number}"));
            let free = [name.clone()].into_iter().chain(others).find(|name| !self.has(name));
            self.add(gate, source, &free.expect("there is no end of numbers"), 0)?;
        }
        Ok(())
    }

    pub fn load(
        &mut self,
        gate: &mut Gate,
        source: &Source,
        name: &str,
        priority: i32,
    ) -> Result<LoadReport> {
        ensure!(is_name(name), "{}: give it a --name", no_name(name));
        ensure!(
            !self.has(name),
            "there is a plugin {name} already: swap it, unload it, or give this one another --name"
        );
        self.add(gate, source, name, priority)
    }

    fn add(&mut self, gate: &mut Gate, source: &Source, name: &str, priority: i32) -> Result<LoadReport> {
        let built = compiled(source)?;
        extend(gate, needs(&built))?;
        let turn = Turn { session: self.session, priority };
        let (plugin, times) = built.load_at(source, &mut self.hooks, gate, turn, None)?;
        let idle = idle(&built, self.has_guard);
        let live = Live::new(name, priority, built, plugin)?;
        let link_us = micros(live.plugin.link(None)?);
        self.all.push(live);
        self.claim(gate);
        let name = name.to_owned();
        let (not_kept, copied) = (Vec::new(), Vec::new());
        let schema = "tollgate.plugin.load/1".into();
        Ok(LoadReport { schema, name, times, link_us, not_kept, copied, idle })
    }

    pub fn swap(&mut self, gate: &mut Gate, source: &Source, name: &str) -> Result<LoadReport> {
        let place = self.place(name)?;
        let built = compiled(source)?;
        extend(gate, needs(&built))?;
        let old = &self.all[place];
        ensure!(!old.plugin.is_lost(), "{name}: {LOST}");
        let kept = Kept::of(&old.built, &built);
        let turn = Turn { session: self.session, priority: old.priority };
        let (plugin, times) =
            built.load_at(source, &mut self.hooks, gate, turn, Some((&old.plugin, &kept.shared)))?;
        kept.copy(old.plugin.data(), plugin.data());
        let idle = idle(&built, self.has_guard);
        let new = Live::new(name, old.priority, built, plugin)?;
        let link_us = micros(new.plugin.link(Some(&old.plugin))?);
        let mut old = std::mem::replace(&mut self.all[place], new);
        // What it told last is not lost either.
        let told = old.take_told();
        self.hooks.leave(old.plugin);
        self.all[place].told = old.told;
        self.note(name, told?);
        let (name, not_kept, copied) = (name.to_owned(), kept.not_kept, kept.copied_names);
        let schema = "tollgate.plugin.swap/1".into();
        Ok(LoadReport { schema, name, times, link_us, not_kept, copied, idle })
    }

    /// How long the steps took by which nobody comes by it any more, in microseconds.
    pub fn unload(&mut self, gate: &mut Gate, name: &str) -> Result<f64> {
        let place = self.place(name)?;
        let unlink_us = micros(self.all[place].plugin.unlink()?);
        let mut live = self.all.remove(place);
        self.claim(gate);
        let told = live.take_told();
        self.hooks.leave(live.plugin);
        let noted = told.map(|told| self.note(name, told));
        self.note(name, vec![(now_ns(), Told::Unloaded { unlink_us })]);
        noted.map(|()| unlink_us)
    }

    /// The session's tasks have its plugins, and not those of an earlier session around it, as long as there are some.
    fn claim(&self, gate: &mut Gate) {
        if self.session != EVERYBODY {
            gate.has_own_plugins(self.session, !self.all.is_empty());
        }
    }

    /// Nobody is in one any more then.
    pub fn unload_all(&mut self) {
        self.all.drain(..).for_each(|live| self.hooks.leave(live.plugin));
        self.hooks.wait_for_leaving();
    }

    /// By reason, as those of the gate are told.
    pub fn losses(&self) -> BTreeMap<String, u64> {
        let lost =
            (self.lost > 0).then(|| ("records of plugins not told (buffer full)".to_owned(), self.lost));
        lost.into_iter().collect()
    }

    pub fn list(&self) -> Result<Vec<State>> {
        self.all.iter().map(|live| live.state(None)).collect()
    }

    /// All, with variables and some of each map's entries.
    pub fn states(&self) -> Result<Vec<State>> {
        self.all.iter().map(|live| live.state(Some(REPORTED))).collect()
    }

    /// With its variables, and so many of each map's entries.
    pub fn show(&self, name: &str, top: usize) -> Result<State> {
        self.all[self.place(name)?].state(Some(top))
    }

    /// All, or none.
    pub fn set(&self, name: &str, values: &[(String, Number)]) -> Result<()> {
        let live = &self.all[self.place(name)?];
        let variables = Variables::of(&live.built);
        for (variable, value) in values {
            ensure!(
                !live.built.program.is_constant(variable),
                "`{variable}` is a constant, and the plugin was compiled with its value: without `const` it could be set"
            );
            variables.fits(variable, value)?;
        }
        values.iter().try_for_each(|(variable, value)| variables.set(variable, value, live.plugin.data()))
    }

    pub fn lines(&self, name: Option<&str>) -> Result<Vec<&Line>> {
        let is_asked_for = |line: &&Line| name.is_none_or(|name| line.plugin == name);
        let lines: Vec<_> = self.lines.iter().filter(is_asked_for).collect();
        // Those of one that was unloaded are there still.
        if let Some(name) = name.filter(|_| lines.is_empty()) {
            self.place(name)?;
        }
        Ok(lines)
    }

    /// What it has told since all had told so many lines, whether or not it is there still.
    pub fn told_since(&self, name: &str, after: u64) -> Vec<&Line> {
        let new = self.lines.iter().skip(after.saturating_sub(self.forgotten) as usize);
        new.filter(|line| line.plugin == name && line.told.is_of_plugin()).collect()
    }

    pub fn open(&self, name: &str) -> Result<OpenReport> {
        let live = &self.all[self.place(name)?];
        let (handler, parameters) = on_call(&live.built)?;
        let Numbers { program, data, control } = live.plugin.numbers(handler)?;
        let variables = Variables::of(&live.built);
        let lines = self.forgotten + self.lines.len() as u64;
        Ok(OpenReport { program, data, control, variables, parameters, lines })
    }

    /// Takes in what plugins tell, and takes those out that keep hitting their limits. What is new, in the order in which it was told.
    pub fn tend(&mut self) -> Result<Vec<Line>> {
        let mut all = Vec::new();
        for live in &mut self.all {
            let told = live.take_told()?.into_iter().chain(live.restrain()?);
            all.extend(told.map(|(at_ns, told)| (at_ns, live.name.clone(), told)));
        }
        all.sort_by_key(|(at_ns, ..)| *at_ns);
        for (at_ns, name, told) in all {
            self.note(&name, vec![(at_ns, told)]);
        }
        Ok(std::mem::take(&mut self.new))
    }

    /// When it wants to be tended again, which usually is so soon: sooner, where a buffer was well filled by then.
    pub fn patience(&self, usual: Duration) -> Duration {
        let is_filling = |live: &Live| live.read_bytes > RECORDS_BYTES as usize / HASTE;
        if self.all.iter().any(is_filling) { usual / HASTE as u32 } else { usual }
    }

    fn note(&mut self, name: &str, told: Vec<(u64, Told)>) {
        for (at_ns, told) in told {
            if let Told::Lost(records) = told {
                self.lost += records;
            }
            let line = Line::new(name, at_ns, told);
            self.lines.push_back(line.clone());
            self.new.push(line);
        }
        let too_many = self.lines.len().saturating_sub(KEPT);
        self.forgotten += too_many as u64;
        self.lines.drain(..too_many);
    }
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
        let (name, told, read_bytes, lost_told, taken_out) = (name.into(), 0, 0, 0, None);
        Ok(Self { name, priority, built, plugin, told, read_bytes, lost_told, cut_short_before, taken_out })
    }

    fn take_told(&mut self) -> Result<Vec<(u64, Told)>> {
        let records = self.plugin.records()?;
        self.read_bytes = records.iter().map(Vec::len).sum();
        let mut told = told(&self.built.program, &records)?;
        self.told += told.len() as u64;
        let lost = self.plugin.faults()?.lost;
        if lost > self.lost_told {
            told.push((now_ns(), Told::Lost(lost - self.lost_told)));
            self.lost_told = lost;
        }
        Ok(told)
    }

    fn restrain(&mut self) -> Result<Option<(u64, Told)>> {
        let cut_short = self.plugin.faults()?.cut_short - self.cut_short_before;
        if cut_short < MOST_CUT_SHORT || self.taken_out.is_some() || !self.plugin.is_linked() {
            return Ok(None);
        }
        self.plugin.unlink()?;
        let why = format!("its loops were cut short {cut_short} times");
        self.taken_out = Some(why.clone());
        Ok(Some((now_ns(), Told::TakenOut(why))))
    }

    /// With its memory, and so many of each map's entries; or without.
    fn state(&self, top: Option<usize>) -> Result<State> {
        let handlers = self.built.object.programs.iter().map(|program| Handler {
            hook: program.hook.clone(),
            selected: program.selected.clone(),
            instructions: program.instructions.len(),
        });
        let memory = top.map(|top| memory(&self.built, &self.plugin, top)).transpose()?;
        let (variables, maps) = memory.unzip();
        let is_lost = self.plugin.is_lost();
        Ok(State {
            name: self.name.clone(),
            priority: self.priority,
            handlers: handlers.collect(),
            is_linked: self.plugin.is_linked() && !is_lost,
            taken_out: self.taken_out.clone().or_else(|| is_lost.then(|| LOST.into())),
            told: self.told,
            variables,
            maps,
            counted: self.plugin.faults()?.into(),
        })
    }
}
