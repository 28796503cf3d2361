//! Loading one generation of the gate, and attaching it.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use libbpf_rs::skel::{OpenSkel as _, Skel as _, SkelBuilder as _};
use libbpf_rs::{Iter, Link, MapCore as _, MapHandle};

use super::maps::{LinkIds, MapIds, Maps, SHARED};
use crate::before::{Before, PREFIX};
use crate::cpus;
use crate::error::{Doing, Result};
use crate::floor::Hook;
use crate::scope;
use crate::skeletons::gate::{GateSkel, GateSkelBuilder, OpenGateSkel};
use crate::symbols::KernelSymbols;
use crate::wire;

/// Kernel memory for counters, over all processors, unless CELLS_MIN needs more.
const CELL_BYTES: usize = 32 << 20;
/// A program makes some dozens of different calls; this many groups of them fit in any case.
const CELLS_MIN: usize = 256;
/// Kept for the sessions' common rows, so that with many rows no call goes uncounted.
const CELLS_KEPT: u32 = 512;

/// One generation's programs.
pub struct Loaded {
    skeleton: GateSkel<'static>,
    enabled: u32,
    links: Vec<Link>,
    before: Before,
    /// Of the programs that hold calls before they take effect.
    before_links: Vec<Link>,
}

fn cells() -> u32 {
    let fit = CELL_BYTES / (size_of::<wire::cell>() * cpus::possible());
    fit.clamp(CELLS_MIN, wire::CELLS_MAX as usize) as u32
}

/// Cells from this one on are only for the sessions' common rows.
pub fn cells_for_all() -> u32 {
    cells() - cells().div_ceil(2).min(CELLS_KEPT)
}

fn open() -> Result<OpenGateSkel<'static>> {
    // A skeleton borrows its object; the few that a process ever loads live as long as it does.
    let object = Box::leak(Box::new(MaybeUninit::uninit()));
    let mut skeleton = GateSkelBuilder::default().open(object).doing("reading its programs")?;
    let maps = &mut skeleton.maps;
    maps.cells.set_max_entries(cells()).doing("sizing its counters")?;
    Ok(skeleton)
}

fn configure(skeleton: &mut OpenGateSkel<'static>, enabled: u32, generation: u32) {
    let rodata = skeleton.maps.rodata_data.as_deref_mut().expect("the gate has constants");
    let config = &mut rodata.config;
    config.enabled = enabled;
    config.generation = generation;
    config.cells = cells();
    config.cells_for_all = cells_for_all();
    if enabled & (wire::LENS_SITES | wire::LENS_SLOW) != 0 {
        let symbols = KernelSymbols::get();
        config.sched_text_start = symbols.address("__sched_text_start").unwrap_or(0);
        config.sched_text_end = symbols.address("__sched_text_end").unwrap_or(0);
    }
    config.small_buckets = stats::histogram::SMALL;
    for (place, known) in config.interpreters.iter_mut().zip(scope::interpreters()) {
        (place.name, place.code, place.value) = (known.name, known.code, known.value);
    }
}

/// The lowest set bits.
fn first_two(mask: u8) -> [u8; wire::ARG_NAMES as usize] {
    [mask, mask & mask.wrapping_sub(1)].map(|mask| (mask.trailing_zeros() as u8).min(wire::CALL_ARGS as u8))
}

fn reuse(skeleton: &mut OpenGateSkel<'static>, maps: &Maps) -> Result<()> {
    for mut map in skeleton.open_object_mut().maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if SHARED.contains(&name.as_str()) {
            map.reuse_fd(maps.get(&name).as_fd()).doing("handing over its maps")?;
        }
    }
    Ok(())
}

impl Loaded {
    pub fn new(maps: Option<&Maps>, enabled: u32, generation: u32) -> Result<Self> {
        let mut skeleton = open()?;
        configure(&mut skeleton, enabled, generation);
        if let Some(maps) = maps {
            reuse(&mut skeleton, maps)?;
        }
        skeleton.progs.gate_adopt.set_autoload(false);
        skeleton.progs.gate_exit.set_autoload(Hook::SysExit.is_used(enabled));
        skeleton.progs.gate_signal.set_autoload(Hook::SignalDeliver.is_used(enabled));
        skeleton.progs.gate_continue.set_autoload(Hook::SignalGenerate.is_used(enabled));
        let before = Before::new(enabled);
        skeleton.maps.rodata_data.as_deref_mut().expect("the gate has constants").config.before =
            before.table();
        let hooks = before.hooks();
        for mut program in skeleton.open_object_mut().progs_mut() {
            let name = program.name().to_string_lossy();
            if name.strip_prefix(PREFIX).is_some_and(|hook| hooks.contains(hook)) {
                program.set_autoload(true);
            }
        }
        let skeleton = skeleton.load().doing("loading its programs")?;
        let loaded = Self { skeleton, enabled, links: Vec::new(), before, before_links: Vec::new() };
        if maps.is_none() {
            loaded.name_arguments()?;
        }
        Ok(loaded)
    }

    pub fn map_ids(&self) -> Result<MapIds> {
        let mut ids = MapIds::default();
        for map in self.skeleton.object().maps() {
            if let Some(index) = SHARED.iter().position(|name| map.name() == *name) {
                ids[index] = map.info().doing("numbering its maps")?.info.id;
            }
        }
        Ok(ids)
    }

    /// Tells the gate which arguments are descriptors and paths.
    fn name_arguments(&self) -> Result<()> {
        for abi in calls::Abi::ALL {
            for (number, _) in calls::all(abi) {
                let [fds, paths] =
                    [calls::fd_mask(abi, number), calls::path_mask(abi, number)].map(first_two);
                let slot = abi as u32 * wire::CALLS_PER_ABI + number;
                self.skeleton
                    .maps
                    .arg_kinds
                    .update(&slot.to_ne_bytes(), &[fds, paths].concat(), libbpf_rs::MapFlags::ANY)
                    .doing("naming the calls' arguments")?;
            }
        }
        Ok(())
    }

    /// Attaches its programs, context switches first: who runs where must be known before a call is seen.
    pub fn attach(&mut self) -> Result<LinkIds> {
        let programs = &self.skeleton.progs;
        let mut ids = LinkIds::default();
        if self.before_links.is_empty() {
            self.before_links = self.before.attach(self.skeleton.object())?;
        }
        for (link, id) in self.before_links.iter().zip(&mut ids[wire::GATE_HOOKS as usize..]) {
            *id = link.info().doing("numbering a link")?.id;
        }
        for (hook, id) in Hook::ALL.into_iter().zip(&mut ids).filter(|(hook, _)| hook.is_used(self.enabled)) {
            let program = match hook {
                Hook::SchedSwitch => &programs.gate_switch,
                Hook::SchedProcessFork => &programs.gate_fork,
                Hook::SchedProcessExec => &programs.gate_exec,
                Hook::SchedProcessExit => &programs.gate_task_exit,
                Hook::SignalDeliver => &programs.gate_signal,
                Hook::SignalGenerate => &programs.gate_continue,
                Hook::SysExit => &programs.gate_exit,
                Hook::SysEnter => &programs.gate_enter,
            };
            let link = program.attach_trace().doing(format!("attaching to {}", hook.name()))?;
            *id = link.info().doing(format!("numbering its link on {}", hook.name()))?.id;
            self.links.push(link);
        }
        Ok(ids)
    }

    /// Detaches what each call pays for.
    pub fn detach(&mut self) {
        self.links.clear();
    }

    /// What the test build's second extension counted.
    #[cfg(feature = "test-extension")]
    pub fn tallies(&self) -> Result<u64> {
        (0..wire::CALL_SLOTS).map(|call| super::sum_over_cpus(&self.skeleton.maps.tallies, call)).sum()
    }
}

/// The iterator that takes in running tasks, over a gate's maps.
pub struct Adopter {
    skeleton: GateSkel<'static>,
}

impl Adopter {
    pub fn new(maps: &Maps, enabled: u32, generation: u32) -> Result<Self> {
        let mut skeleton = open()?;
        configure(&mut skeleton, enabled, generation);
        reuse(&mut skeleton, maps)?;
        for mut program in skeleton.open_object_mut().progs_mut() {
            let iterator = program.name() == "gate_adopt";
            program.set_autoload(iterator);
        }
        Ok(Self { skeleton: skeleton.load().doing("loading its task iterator")? })
    }

    /// Goes over all tasks once.
    pub fn run(&self) -> Result<()> {
        // A task iterator takes no map; this form of attaching passes no parameters.
        let link = self.skeleton.progs.gate_adopt.attach().doing("attaching its task iterator")?;
        let mut iterator = Iter::new(&link).doing("starting its task iterator")?;
        std::io::copy(&mut iterator, &mut std::io::sink()).doing("go over all tasks")?;
        Ok(())
    }
}

/// Makes a ring buffer for a session's records.
pub fn new_ring() -> Result<MapHandle> {
    let options = libbpf_rs::libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
        ..Default::default()
    };
    MapHandle::create(libbpf_rs::MapType::RingBuf, Some("tollgate_ring"), 0, 0, wire::RING_BYTES, &options)
        .doing("making a ring buffer")
}
