//! Loading one generation of the gate, and attaching it.

use std::fs::File;
use std::io::Read as _;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _};

use libbpf_rs::skel::{OpenSkel as _, Skel as _, SkelBuilder as _};
use libbpf_rs::{Iter, Link, MapCore as _, MapHandle, OpenObject};

use super::maps::{LinkIds, MapIds, Maps, SHARED, is_of_services};
use crate::before::{self, Before, PREFIX};
use crate::cpus;
use crate::error::{Doing, Result};
use crate::floor::{Hook, Messages};
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

/// Of the links.
const FIRST_OF_DATAGRAMS: usize = (wire::GATE_HOOKS + wire::GUARD_HOOKS) as usize;

/// One generation's programs.
pub struct Loaded {
    skeleton: GateSkel<'static>,
    enabled: u32,
    messages: Messages,
    links: Vec<Link>,
    before: Before,
    /// Of the programs that hold calls before they take effect.
    before_links: Vec<Link>,
    /// Where the whole of control groups' second version is, if services are to follow datagrams.
    hierarchy: Option<String>,
}

fn cells() -> u32 {
    let fit = CELL_BYTES / (size_of::<wire::cell>() * cpus::possible());
    fit.clamp(CELLS_MIN, wire::CELLS_MAX as usize) as u32
}

/// Cells from this one on are only for the sessions' common rows.
pub fn cells_for_all() -> u32 {
    cells() - cells().div_ceil(2).min(CELLS_KEPT)
}

fn open(enabled: u32) -> Result<OpenGateSkel<'static>> {
    // A skeleton borrows its object; the few that a process ever loads live as long as it does.
    let object = Box::leak(Box::new(MaybeUninit::uninit()));
    let mut skeleton = GateSkelBuilder::default().open(object).doing("reading its programs")?;
    let maps = &mut skeleton.maps;
    maps.cells.set_max_entries(cells()).doing("sizing its counters")?;
    if enabled & wire::SERVICE == 0 {
        const SIZING: &str = "leaving out what services need";
        maps.bss_members.set_value_size(size_of::<wire::service_member>() as u32).doing(SIZING)?;
        maps.bss_services.set_value_size(size_of::<wire::service>() as u32).doing(SIZING)?;
        maps.service_rules.set_max_entries(1).doing(SIZING)?;
        maps.directions.set_max_entries(1).doing(SIZING)?;
        maps.flows.set_max_entries(1).doing(SIZING)?;
        maps.accounts.set_max_entries(1).doing(SIZING)?;
        maps.started_services.set_max_entries(1).doing(SIZING)?;
        maps.free_services.set_max_entries(1).doing(SIZING)?;
        // A ring has a page at least.
        maps.placements.set_max_entries(4096).doing(SIZING)?;
    }
    Ok(skeleton)
}

fn configure(skeleton: &mut OpenGateSkel<'static>, enabled: u32, generation: u32) {
    let rodata = skeleton.maps.rodata_data.as_deref_mut().expect("the gate has constants");
    let config = &mut rodata.config;
    config.enabled = enabled;
    config.generation = generation;
    config.cells = cells();
    config.cells_for_all = cells_for_all();
    config.small_buckets = stats::histogram::SMALL;
    for (place, known) in config.interpreters.iter_mut().zip(scope::interpreters()) {
        (place.name, place.code, place.value) = (known.name, known.code, known.value);
    }
}

/// The lowest set bits.
fn first_two(mask: u8) -> [u8; wire::ARG_NAMES as usize] {
    [mask, mask & mask.wrapping_sub(1)].map(|mask| (mask.trailing_zeros() as u8).min(wire::CALL_ARGS as u8))
}

/// Of a gate that had `enabled` before.
pub fn reuse(object: &mut OpenObject, maps: &Maps, enabled: u32) -> Result<()> {
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        let is_new = enabled & wire::SERVICE == 0 && is_of_services(&name);
        if SHARED.contains(&name.as_str()) && !is_new {
            map.reuse_fd(maps.get(&name).as_fd()).doing("handing over its maps")?;
        }
    }
    Ok(())
}

impl Loaded {
    /// Over the maps of a gate that had other extensions before, or of its own.
    pub fn new(before: Option<(&Maps, u32)>, enabled: u32, generation: u32) -> Result<Self> {
        let mut skeleton = open(enabled)?;
        configure(&mut skeleton, enabled, generation);
        if let Some((maps, enabled)) = before {
            reuse(skeleton.open_object_mut(), maps, enabled)?;
        }
        let (maps, messages) = (before.map(|(maps, _)| maps), Messages::here());
        let programs = &mut skeleton.progs;
        programs.gate_adopt.set_autoload(false);
        programs.gate_members.set_autoload(false);
        programs.gate_ask.set_autoload(false);
        programs.gate_sockets.set_autoload(false);
        // Where plugins are, other programs have these hooks.
        let (at_enter, at_exit) = (enabled & wire::PLUGIN != 0, enabled & wire::PLUGIN_EXIT != 0);
        programs.gate_enter.set_autoload(!at_enter);
        programs.gate_enter_plugins.set_autoload(at_enter);
        programs.gate_exit.set_autoload(Hook::SysExit.is_used(enabled) && !at_exit);
        programs.gate_exit_plugins.set_autoload(at_exit);
        programs.gate_signal.set_autoload(Hook::SignalDeliver.is_used(enabled));
        programs.gate_signalled.set_autoload(Hook::SignalGenerate.is_used(enabled));
        programs.gate_task_free.set_autoload(Hook::SchedProcessFree.is_used(enabled));
        programs.gate_tcp.set_autoload(Hook::InetSockSetState.is_used(enabled));
        programs.gate_packet.set_autoload(Hook::NetifRx.is_used(enabled));
        let hierarchy = before::hierarchy().filter(|_| enabled & wire::SERVICE != 0);
        programs.gate_datagram_4.set_autoload(hierarchy.is_some());
        programs.gate_datagram_6.set_autoload(hierarchy.is_some());
        let is_used = Hook::SockRecvLength.is_used(enabled);
        let (received, sent) = match messages {
            Messages::Tracepoints => (&mut programs.gate_received, &mut programs.gate_sent),
            Messages::Functions => (&mut programs.gate_received_exit, &mut programs.gate_sent_entry),
        };
        received.set_autoload(is_used);
        sent.set_autoload(is_used);
        let holds = Before::new(enabled);
        let config = &mut skeleton.maps.rodata_data.as_deref_mut().expect("the gate has constants").config;
        config.before = holds.table();
        if enabled & (wire::LENS_SITES | wire::LENS_SLOW) != 0 {
            let symbols = KernelSymbols::get();
            config.sched_text_start = symbols.address("__sched_text_start").unwrap_or(0);
            config.sched_text_end = symbols.address("__sched_text_end").unwrap_or(0);
        }
        let hooks = holds.hooks();
        for mut program in skeleton.open_object_mut().progs_mut() {
            let name = program.name().to_string_lossy();
            if name.strip_prefix(PREFIX).is_some_and(|hook| hooks.contains(hook)) {
                program.set_autoload(true);
            }
        }
        let skeleton = skeleton.load().doing("loading its programs")?;
        let loaded = Self {
            skeleton,
            enabled,
            messages,
            links: Vec::new(),
            before: holds,
            before_links: Vec::new(),
            hierarchy,
        };
        if maps.is_none() {
            loaded.name_arguments()?;
        }
        Ok(loaded)
    }

    pub fn map_ids(&self) -> Result<MapIds> {
        let mut ids = [0; wire::GATE_MAPS as usize];
        for map in self.skeleton.object().maps() {
            if let Some(index) = SHARED.iter().position(|name| map.name() == *name) {
                ids[index] = map.info().doing("numbering its maps")?.info.id;
            }
        }
        Ok(ids)
    }

    /// Tells the gate which arguments are descriptors and paths, of all calls at once.
    fn name_arguments(&self) -> Result<()> {
        let (mut keys, mut values, mut count) = (Vec::new(), Vec::new(), 0);
        for abi in calls::Abi::ALL {
            for (number, _) in calls::all(abi) {
                let [fds, paths] =
                    [calls::fd_mask(abi, number), calls::path_mask(abi, number)].map(first_two);
                keys.extend((abi as u32 * wire::CALLS_PER_ABI + number).to_ne_bytes());
                values.extend([fds, paths].concat());
                count += 1;
            }
        }
        let (any, map) = (libbpf_rs::MapFlags::ANY, &self.skeleton.maps.arg_kinds);
        map.update_batch(&keys, &values, count, any, any).doing("naming the calls' arguments")
    }

    /// Attaches its programs, context switches first: who runs where must be known before a call is seen.
    pub fn attach(&mut self) -> Result<LinkIds> {
        let programs = &self.skeleton.progs;
        let mut ids = [0; wire::GATE_LINKS as usize];
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
                Hook::SchedProcessFree => &programs.gate_task_free,
                Hook::InetSockSetState => &programs.gate_tcp,
                Hook::NetifRx => &programs.gate_packet,
                Hook::SockRecvLength => match self.messages {
                    Messages::Tracepoints => &programs.gate_received,
                    Messages::Functions => &programs.gate_received_exit,
                },
                Hook::SockSendLength => match self.messages {
                    Messages::Tracepoints => &programs.gate_sent,
                    Messages::Functions => &programs.gate_sent_entry,
                },
                Hook::SignalDeliver => &programs.gate_signal,
                Hook::SignalGenerate => &programs.gate_signalled,
                Hook::SysExit if self.enabled & wire::PLUGIN_EXIT != 0 => &programs.gate_exit_plugins,
                Hook::SysExit => &programs.gate_exit,
                Hook::SysEnter if self.enabled & wire::PLUGIN != 0 => &programs.gate_enter_plugins,
                Hook::SysEnter => &programs.gate_enter,
            };
            let link = program.attach_trace().doing(format!("attaching to {}", hook.name()))?;
            *id = link.info().doing(format!("numbering its link on {}", hook.name()))?.id;
            self.links.push(link);
        }
        for (link, id) in self.attach_to_datagrams()?.into_iter().zip(&mut ids[FIRST_OF_DATAGRAMS..]) {
            *id = link.info().doing("numbering a link")?.id;
            self.links.push(link);
        }
        Ok(ids)
    }

    fn attach_to_datagrams(&self) -> Result<Vec<Link>> {
        let Some(place) = &self.hierarchy else { return Ok(Vec::new()) };
        let root = File::open(place).doing(format!("open {place}"))?;
        let programs = [&self.skeleton.progs.gate_datagram_4, &self.skeleton.progs.gate_datagram_6];
        let links = programs.into_iter().map(|program| program.attach_cgroup(root.as_raw_fd()));
        links.map(|link| link.doing("attaching to the root of the control groups")).collect()
    }

    /// Detaches what each call pays for.
    pub fn detach(&mut self) {
        self.links.clear();
    }
}

/// Programs that go over all tasks or sockets, over a gate's maps.
pub struct Iterators {
    skeleton: GateSkel<'static>,
}

/// What one of these programs does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// Takes those in that `adoptions` names.
    Adopt,
    /// Tells what each has used since it was last charged.
    Members,
    /// Asks each the rules of services.
    Ask,
    /// Tells of sockets, and not of tasks.
    Sockets,
}

impl Over {
    const fn program(self) -> &'static str {
        match self {
            Self::Adopt => "gate_adopt",
            Self::Members => "gate_members",
            Self::Ask => "gate_ask",
            Self::Sockets => "gate_sockets",
        }
    }
}

impl Iterators {
    /// Loads only `these`. Each is verified by itself, but the kernel's types are found once for all.
    pub fn new(maps: &Maps, enabled: u32, generation: u32, these: &[Over]) -> Result<Self> {
        let mut skeleton = open(enabled)?;
        configure(&mut skeleton, enabled, generation);
        reuse(skeleton.open_object_mut(), maps, enabled)?;
        for mut program in skeleton.open_object_mut().progs_mut() {
            let is_one = these.iter().any(|over| program.name() == over.program());
            program.set_autoload(is_one);
        }
        Ok(Self { skeleton: skeleton.load().doing("loading its task iterators")? })
    }

    /// Runs one of the loaded programs over all tasks or sockets once. Returns what it wrote.
    pub fn run(&self, over: Over) -> Result<Vec<u8>> {
        let programs = &self.skeleton.progs;
        let program = match over {
            Over::Adopt => &programs.gate_adopt,
            Over::Members => &programs.gate_members,
            Over::Ask => &programs.gate_ask,
            Over::Sockets => &programs.gate_sockets,
        };
        let link = match over {
            Over::Sockets => program.attach_iter(self.skeleton.maps.service_sockets.as_fd()),
            // A task iterator takes no map; this form of attaching passes no parameters.
            _ => program.attach(),
        };
        let link = link.doing("attaching its task iterator")?;
        let mut iterator = Iter::new(&link).doing("starting its task iterator")?;
        let mut told = Vec::new();
        iterator.read_to_end(&mut told).doing("go over all tasks")?;
        Ok(told)
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
