//! Loading one generation of the gate, and attaching it.

use std::fs::File;
use std::io::Read as _;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _};

use libbpf_rs::skel::{OpenSkel as _, Skel as _, SkelBuilder as _};
use libbpf_rs::{Iter, Link, MapCore as _, MapHandle, Object, OpenObject, ProgramMut};
use zerocopy::IntoBytes as _;

use super::call_flags::call_flags;
use super::maps::{LazyMaps, LinkIds, MapIds, Maps, SHARED};
use crate::cpus;
use crate::enforcement::{self, Enforcement, PREFIX};
use crate::error::{ErrorContext, Result};
use crate::gate_programs::{GateProgram, Requirement};
use crate::scope_name;
use crate::skeletons::gate::{GateSkel, GateSkelBuilder, OpenGateSkel};
use crate::symbols::KernelSymbols;
use crate::wire;

/// Kernel memory for counters, over all processors, unless CELLS_MIN needs more.
const CELL_BYTES: usize = 32 << 20;
/// A program makes some dozens of different calls; this many cells exist in any case.
const CELLS_MIN: usize = 256;
/// Reserved for the sessions' base rows, so that with many rows no call goes uncounted.
const CELLS_RESERVED: u32 = 512;

/// One generation's programs.
pub struct LoadedGate {
    skeleton: GateSkel<'static>,
    programs: Vec<&'static GateProgram>,
    links: Vec<Link>,
    before: Enforcement,
    /// Links of the programs that hold calls before they take effect.
    before_links: Vec<Link>,
    /// The mount point of the whole of cgroup v2, if there are programs for it.
    hierarchy: Option<String>,
}

fn cells() -> u32 {
    let fit = CELL_BYTES / (size_of::<wire::cell>() * cpus::possible());
    fit.clamp(CELLS_MIN, wire::CELLS_MAX as usize) as u32
}

/// Cells from this one on are only for the sessions' base rows.
pub fn unreserved_cells() -> u32 {
    cells() - cells().div_ceil(2).min(CELLS_RESERVED)
}

fn open(enabled: u32, lazy: &[&LazyMaps]) -> Result<OpenGateSkel<'static>> {
    // A skeleton borrows its object; the few that a process ever loads live as long as it does.
    let object = Box::leak(Box::new(MaybeUninit::uninit()));
    let mut skeleton =
        GateSkelBuilder::default().open(object).doing("opening the gate's object")?;
    let maps = &mut skeleton.maps;
    maps.lens_cells.set_max_entries(cells()).doing("sizing the gate's counters")?;
    for unused in lazy.iter().filter(|lazy| lazy.are_missing(enabled)) {
        (unused.shrink)(maps)?;
    }
    Ok(skeleton)
}

fn configure(skeleton: &mut OpenGateSkel<'static>, enabled: u32, generation: u32) {
    let rodata = skeleton.maps.rodata_data.as_deref_mut().expect("the gate has constants");
    let config = &mut rodata.config;
    config.enabled = enabled;
    config.generation = generation;
    config.cells = cells();
    config.unreserved_cells = unreserved_cells();
    config.call_flags = call_flags();
    config.small_buckets = stats::histogram::SMALL;
    for (place, known) in config.interpreters.iter_mut().zip(scope_name::interpreters()) {
        (place.name, place.code, place.value) = (known.name, known.code, known.value);
    }
}

/// The lowest set bits.
fn lowest_two_bits(mask: u8) -> [u8; wire::ARG_NAMES as usize] {
    [mask, mask & mask.wrapping_sub(1)]
        .map(|mask| (mask.trailing_zeros() as u8).min(wire::CALL_ARGS as u8))
}

/// Reuses the maps of a gate that had `enabled` before, but for those that are not made yet.
pub fn reuse(object: &mut OpenObject, maps: &Maps, enabled: u32, lazy: &[&LazyMaps]) -> Result<()> {
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        let is_new = lazy.iter().any(|lazy| lazy.are_missing(enabled) && lazy.include(&name));
        if SHARED.contains(&name.as_str()) && !is_new {
            map.reuse_fd(maps.get(&name).as_fd()).doing("reusing the maps of the loaded gate")?;
        }
    }
    Ok(())
}

/// The programs of a gate with these extensions, and where the whole of cgroup v2 is mounted, if
/// some need it. Without it, these are left out.
fn programs_here(enabled: u32) -> (Vec<&'static GateProgram>, Option<String>) {
    let needs_cgroup2 = |program: &GateProgram| program.needs == Requirement::Cgroup2;
    let mut programs: Vec<_> = GateProgram::used(enabled).collect();
    let is_needed = programs.iter().any(|program| needs_cgroup2(program));
    let hierarchy = is_needed.then(enforcement::cgroup2_root).flatten();
    programs.retain(|program| !needs_cgroup2(program) || hierarchy.is_some());
    (programs, hierarchy)
}

/// A program of the gate by its name without the prefix.
fn find<'a>(gate: &'a Object, name: &str) -> ProgramMut<'a> {
    gate.progs_mut()
        .find(|program| program.name().to_string_lossy().strip_prefix(PREFIX) == Some(name))
        .expect("the table's programs exist")
}

impl LoadedGate {
    /// Loads a generation over the maps of a gate that had other extensions before, or over new
    /// ones.
    pub fn new(
        before: Option<(&Maps, u32)>,
        enabled: u32,
        generation: u32,
        lazy: &[&LazyMaps],
    ) -> Result<Self> {
        let mut skeleton = open(enabled, lazy)?;
        configure(&mut skeleton, enabled, generation);
        if let Some((maps, enabled)) = before {
            reuse(skeleton.open_object_mut(), maps, enabled, lazy)?;
        }
        let maps = before.map(|(maps, _)| maps);
        let (programs, hierarchy) = programs_here(enabled);
        let holds = Enforcement::new(enabled);
        let config =
            &mut skeleton.maps.rodata_data.as_deref_mut().expect("the gate has constants").config;
        for (flags, precall) in config.call_flags.iter_mut().zip(holds.precall_table()) {
            *flags |= precall;
        }
        if enabled & (wire::LENS_SITES | wire::LENS_SLOW) != 0 {
            let symbols = KernelSymbols::get();
            config.sched_text_start = symbols.address("__sched_text_start").unwrap_or(0);
            config.sched_text_end = symbols.address("__sched_text_end").unwrap_or(0);
        }
        let hooks = holds.hooks();
        for mut program in skeleton.open_object_mut().progs_mut() {
            let name = program.name().to_string_lossy();
            let name = name.strip_prefix(PREFIX).unwrap_or_default();
            let is_used = programs.iter().any(|program| program.stem == name);
            program.set_autoload(is_used || hooks.contains(name));
        }
        let skeleton = skeleton.load().doing("loading the gate's programs")?;
        let loaded = Self {
            skeleton,
            programs,
            links: Vec::new(),
            before: holds,
            before_links: Vec::new(),
            hierarchy,
        };
        if maps.is_none() {
            loaded.load_argument_kinds()?;
        }
        Ok(loaded)
    }

    pub fn map_ids(&self) -> Result<MapIds> {
        let mut ids = [0; wire::GATE_MAPS as usize];
        for map in self.skeleton.object().maps() {
            if let Some(index) = SHARED.iter().position(|name| map.name() == *name) {
                ids[index] = map.info().doing("reading the IDs of the gate's maps")?.info.id;
            }
        }
        Ok(ids)
    }

    /// Stores which arguments are descriptors and paths, for all calls at once.
    fn load_argument_kinds(&self) -> Result<()> {
        let (mut keys, mut values, mut count) = (Vec::new(), Vec::new(), 0);
        for abi in calls::Abi::ALL {
            for (number, _) in calls::all(abi) {
                let fd = lowest_two_bits(calls::fd_mask(abi, number));
                let path = lowest_two_bits(calls::path_mask(abi, number));
                keys.extend((abi as u32 * wire::CALLS_PER_ABI + number).to_ne_bytes());
                values.extend(wire::arg_kinds { fd, path }.as_bytes());
                count += 1;
            }
        }
        let (any, map) = (libbpf_rs::MapFlags::ANY, &self.skeleton.maps.lens_arg_kinds);
        map.update_batch(&keys, &values, count, any, any)
            .doing("storing the kinds of the calls' arguments")
    }

    /// Attaches its programs, context switches first: the gate must know the running tasks before
    /// it sees a call.
    pub fn attach(&mut self) -> Result<LinkIds> {
        if self.before_links.is_empty() {
            self.before_links = self.before.attach(self.skeleton.object())?;
        }
        let root = match &self.hierarchy {
            Some(place) => Some(File::open(place).doing(format!("open {place}"))?),
            None => None,
        };
        for program in &self.programs {
            let loaded = find(self.skeleton.object(), program.stem);
            let link = match &root {
                Some(root) if program.needs == Requirement::Cgroup2 => loaded
                    .attach_cgroup(root.as_raw_fd())
                    .doing("attaching to the root of the control groups"),
                _ => loaded.attach_trace().doing(format!("attaching to {}", program.hook)),
            };
            self.links.push(link?);
        }
        let mut ids = [0; wire::GATE_LINKS as usize];
        for (link, id) in self.before_links.iter().chain(&self.links).zip(&mut ids) {
            *id = link.info().doing("reading the ID of a link")?.id;
        }
        Ok(ids)
    }

    /// Detaches the programs that each call pays for.
    pub fn detach(&mut self) {
        self.links.clear();
    }
}

/// Programs that iterate over all tasks or sockets, over a gate's maps.
pub struct Iterators {
    skeleton: GateSkel<'static>,
}

/// What one of these programs does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IteratorKind {
    /// Attaches the tasks that `attach_requests` names.
    Adopt,
    /// Writes what each member has used since the last charge.
    Members,
    /// Matches the rules of services for each member.
    Ask,
    /// Writes sockets instead of tasks.
    Sockets,
}

impl IteratorKind {
    /// Its name without the prefix.
    const fn program(self) -> &'static str {
        match self {
            Self::Adopt => "attach_tasks",
            Self::Members => "iter_members",
            Self::Ask => "iter_reclassify",
            Self::Sockets => "iter_sockets",
        }
    }
}

impl Iterators {
    /// Loads only `these`. Each is verified by itself, but the kernel's types are resolved once for
    /// all.
    pub fn new(
        maps: &Maps,
        enabled: u32,
        generation: u32,
        lazy: &[&LazyMaps],
        these: &[IteratorKind],
    ) -> Result<Self> {
        let mut skeleton = open(enabled, lazy)?;
        configure(&mut skeleton, enabled, generation);
        reuse(skeleton.open_object_mut(), maps, enabled, lazy)?;
        for mut program in skeleton.open_object_mut().progs_mut() {
            let name = program.name().to_string_lossy();
            let is_one = these.iter().any(|over| name.strip_prefix(PREFIX) == Some(over.program()));
            program.set_autoload(is_one);
        }
        Ok(Self { skeleton: skeleton.load().doing("loading the gate's task iterators")? })
    }

    /// Runs one of the loaded programs over all tasks or sockets once. Returns what it wrote.
    pub fn run(&self, over: IteratorKind) -> Result<Vec<u8>> {
        let program = find(self.skeleton.object(), over.program());
        let link = match over {
            IteratorKind::Sockets => {
                program.attach_iter(self.skeleton.maps.service_sockets.as_fd())
            }
            // A task iterator takes no map; this form of attaching passes no parameters.
            _ => program.attach(),
        };
        let link = link.doing("attaching a task iterator")?;
        let mut iterator = Iter::new(&link).doing("starting a task iterator")?;
        let mut told = Vec::new();
        iterator.read_to_end(&mut told).doing("iterate over all tasks")?;
        Ok(told)
    }
}

/// Makes a ring buffer for a session's records.
pub fn new_ring() -> Result<MapHandle> {
    let options = libbpf_rs::libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
        ..Default::default()
    };
    MapHandle::create(
        libbpf_rs::MapType::RingBuf,
        Some("tollgate_ring"),
        0,
        0,
        wire::RING_BYTES,
        &options,
    )
    .doing("making a ring buffer")
}
