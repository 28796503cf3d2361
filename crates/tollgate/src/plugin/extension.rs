//! The plugins of a running session: loads, links, swaps and unloads them, and reads their output.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use ecode::{HookProvider as _, MAX_CUT_SHORT, RETIRED};
use kernel::clock::now_ns;
use kernel::gate::Gate;
use kernel::plugin::{
    ALL_SESSIONS, ChainOrder, LoadedPlugin, PluginHooks, PluginIds, RECORDS_BYTES,
};
use serde_json::Number;

use super::check::heading;
use super::compile::{CompiledPlugin, build, has_problems, micros, name_of};
use super::hooks::OffsetSource;
use super::records::{Line, PluginOutput, decode_records};
use super::report::{HandlerState, PluginState, memory};
use super::requests::{LoadReport, OpenReport};
use super::state_transfer::StateTransfer;
use super::suitability::{
    PluginHost, check_reach, denies_to_gated_threads, is_name, name_error, never_run, required_mask,
};
use super::variables::Variables;
use crate::extension::PLUGIN_RECORDS_LOST;
use crate::format::printable;
use crate::source_file::SourceFile;

/// The maximum number of stored lines of output, for all plugins together.
const MAX_LINES: usize = 10_000;
/// Why a plugin is unlinked after its network device was removed. A new device of the same name is
/// a different device.
const DEVICE_GONE: &str = "its network device was removed: unload the plugin and load it again";

/// What makes room for a handler at a hook of a running daemon.
const UNLOAD_ONE: &str = "unload one";

/// If a buffer fills by more than 1/16 in one polling interval, it is read 16 times as often.
const EARLY_TEND_FRACTION: usize = 16;

/// The maximum number of each map's entries in a report.
const MAX_REPORTED_ENTRIES: usize = 1000;

pub struct Plugins {
    hooks: PluginHooks,
    all: Vec<RunningPlugin>,
    /// The latest lines of all plugins, in their order.
    lines: VecDeque<Line>,
    /// The number of earlier lines, which are not stored any more.
    dropped_lines: u64,
    /// Lines that `tend` has not returned yet.
    new: Vec<Line>,
    /// Lost records of all plugins.
    lost: u64,
    /// The session whose tasks run the plugins, or all sessions.
    session: u32,
    /// They run for all processes, although the daemon guards selected programs.
    pub are_unselected: bool,
    host: PluginHost,
}

struct RunningPlugin {
    name: String,
    placement: Placement,
    built: CompiledPlugin,
    plugin: LoadedPlugin,
    output_lines: u64,
    /// The bytes of records that the last reading found.
    read_bytes: usize,
    /// The part of `lost` that was reported.
    lost_reported: u64,
    /// How often loops of the plugin had been cut short when it was linked.
    cut_short_before: u64,
    /// Why the plugin was unlinked.
    unlink_reason: Option<String>,
    /// Whether it was linked when the session stopped its plugins.
    was_linked: Option<bool>,
}

/// Where a plugin runs among others, and for whom.
#[derive(Clone, Copy, Default)]
pub struct Placement {
    /// Plugins with lower priorities run first.
    pub priority: i32,
    /// Outside of the gate, its handlers that can deny something apply to the whole machine, even
    /// if the session is for a part of it.
    pub is_machine_wide: bool,
}

impl Placement {
    fn order(self, session: u32) -> ChainOrder {
        let Self { priority, is_machine_wide } = self;
        ChainOrder { session, priority, is_machine_wide }
    }
}

/// Compiles a plugin. Its warnings were printed by the client that requested the load.
fn compiled(source: &SourceFile) -> Result<CompiledPlugin> {
    let (built, problems) = build(source, OffsetSource::ToLoad);
    built.with_context(|| has_problems(source, &problems))
}

impl Plugins {
    pub fn of_session(session: u32, host: PluginHost) -> Self {
        Self {
            hooks: PluginHooks::default(),
            all: Vec::new(),
            lines: VecDeque::new(),
            dropped_lines: 0,
            new: Vec::new(),
            lost: 0,
            session,
            are_unselected: false,
            host,
        }
    }

    pub fn contains(&self, name: &str) -> bool {
        self.all.iter().any(|live| live.name == name)
    }

    fn index_of(&self, name: &str) -> Result<usize> {
        match self.all.iter().position(|live| live.name == name) {
            Some(index) => Ok(index),
            None => match ecode::closest_name(name, self.all.iter().map(|live| live.name.as_str()))
            {
                Some(near) => bail!("there is no plugin {name}; did you mean {near}?"),
                None => {
                    bail!("there is no plugin {name}: `tollgate plugin list` lists the plugins")
                }
            },
        }
    }

    /// Loads plugins, each under the name of its file. Further plugins of the same name x become
    /// x-2, x-3 and so on.
    pub fn load_files(
        &mut self,
        gate: &mut Gate,
        sources: &[SourceFile],
        placement: Placement,
    ) -> Result<()> {
        for source in sources {
            let name = name_of(source);
            let others = (2..).map(|number| format!("{name}-{number}"));
            let free = [name.clone()].into_iter().chain(others).find(|name| !self.contains(name));
            let name = free.expect("there is no end of numbers");
            self.add(gate, source, &name, placement, "load fewer of them (--plugin)")?;
        }
        Ok(())
    }

    pub fn load(
        &mut self,
        gate: &mut Gate,
        source: &SourceFile,
        name: &str,
        placement: Placement,
    ) -> Result<LoadReport> {
        ensure!(is_name(name), "{}: give it another --name", name_error(name));
        ensure!(
            !self.contains(name),
            "a plugin {name} is already loaded: swap or unload it, or give this one another --name"
        );
        self.add(gate, source, name, placement, UNLOAD_ONE)
    }

    fn add(
        &mut self,
        gate: &mut Gate,
        source: &SourceFile,
        name: &str,
        placement: Placement,
        remedy: &str,
    ) -> Result<LoadReport> {
        let built = compiled(source)?;
        self.check_reach(&built, placement)?;
        extend(gate, required_mask(&built))?;
        let order = placement.order(self.session);
        let loaded = built.load_at(source, &mut self.hooks, gate, order, None);
        let (plugin, times) =
            loaded.map_err(|error| self.with_hook_users(&built, error, remedy))?;
        let idle = never_run(&built, self.host);
        let live = RunningPlugin::new(name, placement, built, plugin)?;
        let linked = live.plugin.link(None);
        let link_us = micros(
            linked.map_err(|error| self.with_hook_users(&live.built, error.into(), remedy))?,
        );
        self.all.push(live);
        self.update_ownership(gate);
        let name = name.to_owned();
        let (not_kept, copied) = (Vec::new(), Vec::new());
        let schema = "tollgate.plugin.load/1".into();
        Ok(LoadReport { schema, name, times, link_us, not_kept, copied, idle })
    }

    pub fn swap(&mut self, gate: &mut Gate, source: &SourceFile, name: &str) -> Result<LoadReport> {
        let index = self.index_of(name)?;
        let built = compiled(source)?;
        let old = &self.all[index];
        self.check_reach(&built, old.placement)?;
        extend(gate, required_mask(&built))?;
        ensure!(!old.plugin.is_device_gone(), "{name}: {DEVICE_GONE}");
        let transfer = StateTransfer::between(&old.built, &built);
        let order = old.placement.order(self.session);
        let replaced = Some((&old.plugin, &transfer.shared));
        let loaded = built.load_at(source, &mut self.hooks, gate, order, replaced);
        let (plugin, times) =
            loaded.map_err(|error| self.with_hook_users(&built, error, UNLOAD_ONE))?;
        transfer.copy(old.plugin.data(), plugin.data());
        let idle = never_run(&built, self.host);
        let new = RunningPlugin::new(name, old.placement, built, plugin)?;
        let linked = new.plugin.link(Some(&old.plugin));
        let link_us = micros(
            linked.map_err(|error| self.with_hook_users(&new.built, error.into(), UNLOAD_ONE))?,
        );
        let mut old = std::mem::replace(&mut self.all[index], new);
        // Read the last output of the old version before its buffer is gone.
        let output = old.drain_output();
        old.plugin.retire(&mut self.hooks);
        self.all[index].output_lines = old.output_lines;
        self.append(name, output?);
        let (name, not_kept, copied) = (name.to_owned(), transfer.not_kept, transfer.copied_names);
        let schema = "tollgate.plugin.swap/1".into();
        Ok(LoadReport { schema, name, times, link_us, not_kept, copied, idle })
    }

    fn check_reach(&self, built: &CompiledPlugin, placement: Placement) -> Result<()> {
        if placement.is_machine_wide {
            return Ok(());
        }
        ensure!(
            !self.are_unselected,
            "the daemon guards selected programs (--exe), and a plugin runs for all processes of \
            the machine: `tollgate plugin load --machine-wide` loads it all the same"
        );
        if self.session == ALL_SESSIONS {
            return Ok(());
        }
        check_reach(built, "`tollgate plugin load --machine-wide` loads the plugin all the same")
    }

    /// If a hook has no room for a plugin, names the hook and the plugins there. `remedy` says what
    /// helps if some of them are this session's.
    fn with_hook_users(
        &self,
        built: &CompiledPlugin,
        error: anyhow::Error,
        remedy: &str,
    ) -> anyhow::Error {
        let (at, what) = match error.downcast_ref() {
            Some(kernel::Error::HookFull(at)) => (at, "linked"),
            Some(kernel::Error::NoSlotAtHook(at)) => (at, "loaded"),
            _ => return error,
        };
        let full = &built.object.programs[at.program];
        let is_at_hook = |program: &&ecode::Compiled| {
            let separate = OffsetSource::ToCheck.has_separate_attach_points(&full.hook);
            program.section == full.section && (!separate || program.selected == full.selected)
        };
        let own: Vec<_> = (self.all.iter())
            .map(|live| (live, live.built.object.programs.iter().filter(is_at_hook).count()))
            .filter(|(_, handlers)| *handlers > 0)
            .map(|(live, handlers)| format!("{handlers} of {}", live.name))
            .collect();
        let remedy = if own.is_empty() { UNLOAD_ONE } else { remedy };
        let mut others = BTreeMap::<_, usize>::new();
        for pid in at.owners.iter().filter(|pid| **pid != std::process::id()) {
            *others.entry(pid).or_default() += 1;
        }
        let others =
            others.into_iter().map(|(pid, handlers)| format!("{handlers} of process {pid}"));
        let users: Vec<_> = own.into_iter().chain(others).collect();
        anyhow::anyhow!(
            "`{}` already has {} {what} plugin handlers ({}): {remedy}",
            heading(&full.hook, &full.selected),
            at.owners.len(),
            printable(&users.join(", "))
        )
    }

    /// Stops all plugins, so that their variables and maps do not change any more. Their states
    /// still say whether they were linked.
    pub fn halt(&mut self) -> Result<()> {
        for live in &mut self.all {
            live.was_linked = Some(live.plugin.is_linked());
            live.plugin.unlink()?;
        }
        kernel::cpus::wait_for_all();
        Ok(())
    }

    /// Unloads a plugin. Returns the time to unlink it in microseconds.
    pub fn unload(&mut self, gate: &mut Gate, name: &str) -> Result<f64> {
        let index = self.index_of(name)?;
        let unlink_us = micros(self.all[index].plugin.unlink()?);
        let mut live = self.all.remove(index);
        self.update_ownership(gate);
        let output = live.drain_output();
        live.plugin.retire(&mut self.hooks);
        let noted = output.map(|output| self.append(name, output));
        self.append(name, vec![(now_ns(), PluginOutput::Unloaded { unlink_us })]);
        noted.map(|()| unlink_us)
    }

    /// While the session has plugins, its tasks run them instead of the parent session's plugins.
    fn update_ownership(&self, gate: &mut Gate) {
        if self.session != ALL_SESSIONS {
            gate.set_own_plugins(self.session, !self.all.is_empty());
        }
    }

    /// Unloads all plugins. No thread runs one of them when this returns.
    pub fn unload_all(&mut self) {
        self.all.drain(..).for_each(|live| live.plugin.retire(&mut self.hooks));
        self.hooks.wait_for_retired();
    }

    /// Losses by reason, like those of the gate.
    pub fn losses(&self) -> BTreeMap<String, u64> {
        let lost = (self.lost > 0).then(|| (PLUGIN_RECORDS_LOST.to_owned(), self.lost));
        lost.into_iter().collect()
    }

    /// Whether a plugin can deny something, but only to threads that are gated.
    pub fn denies_to_gated_threads(&self) -> bool {
        self.all.iter().any(|live| {
            let covers_machine = self.session == ALL_SESSIONS || live.placement.is_machine_wide;
            denies_to_gated_threads(&live.built, covers_machine)
        })
    }

    pub fn list(&self) -> Result<Vec<PluginState>> {
        self.all.iter().map(|live| live.state(None)).collect()
    }

    /// The states of all plugins, with variables and some of each map's entries.
    pub fn states(&self) -> Result<Vec<PluginState>> {
        self.all.iter().map(|live| live.state(Some(MAX_REPORTED_ENTRIES))).collect()
    }

    /// The state of a plugin, with its variables and up to `top` of each map's entries.
    pub fn show(&self, name: &str, top: usize) -> Result<PluginState> {
        self.all[self.index_of(name)?].state(Some(top))
    }

    /// Sets either all of these variables or none.
    pub fn set(&self, name: &str, values: &[(String, Number)]) -> Result<()> {
        let live = &self.all[self.index_of(name)?];
        let variables = Variables::of(&live.built);
        for (variable, value) in values {
            ensure!(
                !live.built.program.is_constant(variable),
                "`{variable}` is a constant, whose value was compiled in: declare it without \
                `const` to set it"
            );
            variables.parse_value(variable, value)?;
        }
        values
            .iter()
            .try_for_each(|(variable, value)| variables.set(variable, value, live.plugin.data()))
    }

    pub fn lines(&self, name: Option<&str>) -> Result<Vec<&Line>> {
        let is_selected = |line: &&Line| name.is_none_or(|name| line.plugin == name);
        let lines: Vec<_> = self.lines.iter().filter(is_selected).collect();
        // The lines of an unloaded plugin are still available.
        if let Some(name) = name.filter(|_| lines.is_empty()) {
            self.index_of(name)?;
        }
        Ok(lines)
    }

    /// The output of a plugin, loaded or not, after the first `after` lines of all plugins.
    pub fn output_since(&self, name: &str, after: u64) -> Vec<&Line> {
        let new = self.lines.iter().skip(after.saturating_sub(self.dropped_lines) as usize);
        new.filter(|line| line.plugin == name && line.output.is_plugin_output()).collect()
    }

    pub fn open(&self, name: &str) -> Result<OpenReport> {
        let live = &self.all[self.index_of(name)?];
        let (handler, parameters) = live.built.call_handler()?;
        let PluginIds { program, data, control } = live.plugin.bpf_ids(handler)?;
        let variables = Variables::of(&live.built);
        let lines = self.dropped_lines + self.lines.len() as u64;
        let retired = RETIRED;
        Ok(OpenReport { program, data, control, retired, variables, parameters, lines })
    }

    /// Reads the output of plugins, and unlinks plugins whose loops were cut short too often.
    /// Returns the new lines in the order in which they were written.
    pub fn tend(&mut self) -> Result<Vec<Line>> {
        let mut all = Vec::new();
        for live in &mut self.all {
            let output = live.drain_output()?.into_iter().chain(live.unlink_if_faulting()?);
            all.extend(output.map(|(at_ns, output)| (at_ns, live.name.clone(), output)));
        }
        all.sort_by_key(|(at_ns, ..)| *at_ns);
        for (at_ns, name, output) in all {
            self.append(&name, vec![(at_ns, output)]);
        }
        Ok(std::mem::take(&mut self.new))
    }

    /// The time until the next call of `tend`: `usual`, or less if a buffer fills fast.
    pub fn deadline(&self, usual: Duration) -> Duration {
        let is_filling =
            |live: &RunningPlugin| live.read_bytes > RECORDS_BYTES as usize / EARLY_TEND_FRACTION;
        if self.all.iter().any(is_filling) { usual / EARLY_TEND_FRACTION as u32 } else { usual }
    }

    fn append(&mut self, name: &str, output: Vec<(u64, PluginOutput)>) {
        for (at_ns, output) in output {
            if let PluginOutput::Lost(records) = output {
                self.lost += records;
            }
            let line = Line::new(name, at_ns, output);
            self.lines.push_back(line.clone());
            self.new.push(line);
        }
        let too_many = self.lines.len().saturating_sub(MAX_LINES);
        self.dropped_lines += too_many as u64;
        self.lines.drain(..too_many);
    }
}

fn extend(gate: &mut Gate, mask: u32) -> Result<()> {
    if mask != 0 && gate.enabled() & mask != mask {
        gate.extend(mask)?;
    }
    Ok(())
}

impl RunningPlugin {
    fn new(
        name: &str,
        placement: Placement,
        built: CompiledPlugin,
        plugin: LoadedPlugin,
    ) -> Result<Self> {
        let cut_short_before = plugin.faults()?.cut_short;
        let (name, output_lines, read_bytes, lost_reported, unlink_reason) =
            (name.into(), 0, 0, 0, None);
        Ok(Self {
            name,
            placement,
            built,
            plugin,
            output_lines,
            read_bytes,
            lost_reported,
            cut_short_before,
            unlink_reason,
            was_linked: None,
        })
    }

    fn drain_output(&mut self) -> Result<Vec<(u64, PluginOutput)>> {
        let records = self.plugin.records()?;
        self.read_bytes = records.iter().map(Vec::len).sum();
        let mut output = decode_records(&self.built.program, &records)?;
        self.output_lines += output.len() as u64;
        let lost = self.plugin.faults()?.lost;
        if lost > self.lost_reported {
            output.push((now_ns(), PluginOutput::Lost(lost - self.lost_reported)));
            self.lost_reported = lost;
        }
        Ok(output)
    }

    fn unlink_if_faulting(&mut self) -> Result<Option<(u64, PluginOutput)>> {
        let cut_short = self.plugin.faults()?.cut_short - self.cut_short_before;
        if cut_short < MAX_CUT_SHORT || self.unlink_reason.is_some() || !self.plugin.is_linked() {
            return Ok(None);
        }
        self.plugin.unlink()?;
        let why = format!("its loops were cut short {cut_short} times");
        self.unlink_reason = Some(why.clone());
        Ok(Some((now_ns(), PluginOutput::Unlinked(why))))
    }

    /// The state. With `top`, it includes the variables and up to `top` of each map's entries.
    fn state(&self, top: Option<usize>) -> Result<PluginState> {
        let handlers = self.built.object.programs.iter().map(|program| HandlerState {
            hook: program.hook.clone(),
            selected: program.selected.clone(),
            instructions: program.instructions.len(),
        });
        let memory = top.map(|top| memory(&self.built, &self.plugin, top)).transpose()?;
        let (variables, maps) = memory.unzip();
        let is_lost = self.plugin.is_device_gone();
        Ok(PluginState {
            name: self.name.clone(),
            priority: self.placement.priority,
            handlers: handlers.collect(),
            is_linked: self.was_linked.unwrap_or_else(|| self.plugin.is_linked()) && !is_lost,
            unlink_reason: self
                .unlink_reason
                .clone()
                .or_else(|| is_lost.then(|| DEVICE_GONE.into())),
            output_lines: self.output_lines,
            variables,
            maps,
            faults: self.plugin.faults()?.into(),
        })
    }
}
