//! Loads one generation of the gate, and attaches it.

use std::fs::File;
use std::io::Read as _;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, IntoRawFd as _, OwnedFd};

use libbpf_rs::skel::{OpenSkel as _, Skel as _, SkelBuilder as _};
use libbpf_rs::{
    Iter, Link, MapCore as _, MapHandle, Object, OpenObject, PerfEventOpts, ProgramMut,
};
use zerocopy::IntoBytes as _;

use super::call_flags::call_flags;
use super::file_use::file_use;
use super::maps::{LazyMaps, LinkIds, MapIds, Maps, SHARED};
use crate::cpus;
use crate::error::{ErrorContext, Result};
use crate::gate_programs::{GateProgram, Requirement};
use crate::identity_name;
use crate::lens::why_config;
use crate::mounts::cgroup2_root;
use crate::precall::{PREFIX, PrecallHooks};
use crate::skeletons::gate::{GateSkel, GateSkelBuilder, OpenGateSkel};
use crate::symbols::KernelSymbols;
use crate::wire;

/// The kernel memory for the counters of all processors together, unless `CELLS_MIN` cells need
/// more.
const CELL_BYTES: usize = 32 << 20;
/// There are at least this many cells. A program makes some dozens of different calls.
const CELLS_MIN: usize = 256;
/// At most this many cells are reserved for the sessions' base rows, so that every call is counted
/// there, even if many rows use up all other cells.
const CELLS_RESERVED: u32 = 512;

/// One generation's programs.
pub struct LoadedGate {
    skeleton: GateSkel<'static>,
    programs: Vec<&'static GateProgram>,
    links: Vec<Link>,
    precall: PrecallHooks,
    /// Links of the programs that hold calls before they take effect.
    precall_links: Vec<Link>,
    /// Where the root of cgroup v2 is mounted, if programs are attached to it.
    cgroup2_root: Option<String>,
}

fn cells() -> u32 {
    let fit = CELL_BYTES / (size_of::<wire::cell>() * cpus::possible());
    fit.clamp(CELLS_MIN, wire::CELLS_MAX as usize) as u32
}

/// The number of cells that are for all rows. The cells from this index on are only for the
/// sessions' base rows.
pub fn unreserved_cells() -> u32 {
    cells() - cells().div_ceil(2).min(CELLS_RESERVED)
}

/// Opens the gate's object. The maps in the result must exist until it is loaded.
fn open(enabled: u32, lazy: &[&LazyMaps]) -> Result<(OpenGateSkel<'static>, Vec<MapHandle>)> {
    // A skeleton borrows its object. The objects are never freed, because a process loads only a
    // few.
    let object = Box::leak(Box::new(MaybeUninit::uninit()));
    let mut skeleton =
        GateSkelBuilder::default().open(object).doing("opening the gate's object")?;
    let maps = &mut skeleton.maps;
    maps.lens_cells.set_max_entries(cells()).doing("sizing the gate's counters")?;
    for unused in lazy.iter().filter(|lazy| lazy.are_missing(enabled)) {
        (unused.shrink)(maps)?;
    }
    let used = lazy.iter().filter(|lazy| !lazy.are_missing(enabled));
    let shapes = used.filter_map(|used| used.fit.map(|fit| fit(maps))).collect::<Result<_>>()?;
    Ok((skeleton, shapes))
}

/// The first address of the kernel's code that sleeps for its callers, and that behind its end
/// ([`wire::gate_config`]). Both are 0 if the kernel hides them.
fn wait_texts(symbols: &KernelSymbols) -> [(u64, u64); wire::WAIT_TEXTS as usize] {
    let [start, end, functions @ ..] = symbols.addresses([
        "__sched_text_start",
        "__sched_text_end",
        "wait_woken",
        "do_wait_intr",
        "do_wait_intr_irq",
    ]);
    let [woken, interruptible, interruptible_irq] =
        functions.map(|start| start.and_then(|start| symbols.range_from(start)));
    [start.zip(end), woken, interruptible, interruptible_irq].map(Option::unwrap_or_default)
}

fn configure(skeleton: &mut OpenGateSkel<'static>, enabled: u32, generation: u32) {
    let rodata = skeleton.maps.rodata_data.as_deref_mut().expect("the gate has constants");
    let config = &mut rodata.config;
    config.enabled = enabled;
    config.generation = generation;
    config.cells = cells();
    config.unreserved_cells = unreserved_cells();
    config.processors = cpus::possible() as u32;
    config.call_flags = call_flags();
    config.small_buckets = stats::histogram::SMALL;
    for (entry, known) in config.interpreters.iter_mut().zip(identity_name::interpreters()) {
        (entry.name, entry.code, entry.value) = (known.name, known.code, known.value);
    }
}

/// The positions of the two lowest set bits. `CALL_ARGS` stands for a bit that does not exist.
fn lowest_two_bits(mask: u8) -> [u8; wire::ARG_NAMES as usize] {
    [mask, mask & mask.wrapping_sub(1)]
        .map(|mask| (mask.trailing_zeros() as u8).min(wire::CALL_ARGS as u8))
}

/// Makes an object use the maps of a gate with `enabled` (bits of [`wire::gate_mask`]), except the
/// lazy maps that this gate does not have yet.
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

/// The programs of a gate with these extensions, and the mount point of the root of cgroup v2, if
/// some programs need it. If the root is not mounted, those programs are left out.
fn programs_here(enabled: u32) -> (Vec<&'static GateProgram>, Option<String>) {
    let needs_cgroup2 = |program: &GateProgram| program.needs == Requirement::Cgroup2;
    let mut programs: Vec<_> = GateProgram::used(enabled).collect();
    let is_needed = programs.iter().any(|program| needs_cgroup2(program));
    let root = is_needed.then(cgroup2_root).flatten();
    programs.retain(|program| !needs_cgroup2(program) || root.is_some());
    (programs, root)
}

/// Finds a program of the gate by its name without the prefix.
///
/// # Panics
/// If there is none.
fn find<'a>(gate: &'a Object, name: &str) -> ProgramMut<'a> {
    gate.progs_mut()
        .find(|program| program.name().to_string_lossy().strip_prefix(PREFIX) == Some(name))
        .expect("the table's programs exist")
}

impl LoadedGate {
    /// Loads a generation with `enabled` (bits of [`wire::gate_mask`]). `previous` has the maps and
    /// the bits of the previous generation. The new generation uses the same maps. Without
    /// `previous`, new maps are made. Nothing is attached yet.
    pub fn new(
        previous: Option<(&Maps, u32)>,
        enabled: u32,
        generation: u32,
        lazy: &[&LazyMaps],
    ) -> Result<Self> {
        let (mut skeleton, _shapes) = open(enabled, lazy)?;
        configure(&mut skeleton, enabled, generation);
        if let Some((maps, enabled)) = previous {
            reuse(skeleton.open_object_mut(), maps, enabled, lazy)?;
        }
        let (programs, cgroup2_root) = programs_here(enabled);
        let precall = PrecallHooks::new(enabled);
        let config =
            &mut skeleton.maps.rodata_data.as_deref_mut().expect("the gate has constants").config;
        for (flags, held) in config.call_flags.iter_mut().zip(precall.precall_table()) {
            *flags |= held;
        }
        if enabled & (wire::LENS_SITES | wire::LENS_SLOW | wire::LENS_IN_BAND) != 0 {
            let texts = wait_texts(KernelSymbols::get());
            for (text, range) in config.wait_texts.iter_mut().zip(texts) {
                (text.start, text.end) = range;
            }
        }
        if enabled & wire::LENS_WHY != 0 {
            config.why = why_config::config();
        }
        let hooks = precall.hooks();
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
            precall,
            precall_links: Vec::new(),
            cgroup2_root,
        };
        if previous.is_none() {
            loaded.load_argument_kinds()?;
        }
        Ok(loaded)
    }

    /// The IDs of the shared maps, in the order of [`SHARED`].
    pub(crate) fn map_ids(&self) -> Result<MapIds> {
        let mut ids = [0; wire::GATE_MAPS as usize];
        for map in self.skeleton.object().maps() {
            if let Some(index) = SHARED.iter().position(|name| map.name() == *name) {
                ids[index] = map.info().doing("reading the IDs of the gate's maps")?.info.id;
            }
        }
        Ok(ids)
    }

    /// Stores which arguments of calls are descriptors and paths, and what calls do with files. One
    /// system call does this for all calls.
    fn load_argument_kinds(&self) -> Result<()> {
        let (mut keys, mut values, mut count) = (Vec::new(), Vec::new(), 0);
        for abi in calls::Abi::ALL {
            for (number, _) in calls::all(abi) {
                let fd = lowest_two_bits(calls::fd_mask(abi, number));
                let path = lowest_two_bits(calls::path_mask(abi, number));
                keys.extend((abi as u32 * wire::CALLS_PER_ABI + number).to_ne_bytes());
                let file_use = file_use(abi, number);
                values.extend(wire::arg_kinds { fd, path, file_use }.as_bytes());
                count += 1;
            }
        }
        let (any, map) = (libbpf_rs::MapFlags::ANY, &self.skeleton.maps.lens_arg_kinds);
        map.update_batch(&keys, &values, count, any, any)
            .doing("storing the kinds of the calls' arguments")
    }

    /// Attaches the programs, the one for context switches first, because the gate must know the
    /// running tasks before it sees a call. Returns the IDs of the links. Unused entries are 0.
    pub fn attach(&mut self) -> Result<LinkIds> {
        if self.precall_links.is_empty() {
            self.precall_links = self.precall.attach(self.skeleton.object())?;
        }
        let root = match &self.cgroup2_root {
            Some(path) => Some(File::open(path).doing(format!("open {path}"))?),
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
        for (link, id) in self.precall_links.iter().chain(&self.links).zip(&mut ids) {
            *id = link.info().doing("reading the ID of a link")?.id;
        }
        Ok(ids)
    }

    /// Detaches all programs except those that hold calls before they take effect.
    pub fn detach(&mut self) {
        self.links.clear();
    }
}

/// Loads only the programs of these names (without the prefix), which use a gate's maps.
fn load_only(
    maps: &Maps,
    enabled: u32,
    generation: u32,
    lazy: &[&LazyMaps],
    names: &[&str],
    doing: &str,
) -> Result<GateSkel<'static>> {
    let (mut skeleton, _shapes) = open(enabled, lazy)?;
    configure(&mut skeleton, enabled, generation);
    reuse(skeleton.open_object_mut(), maps, enabled, lazy)?;
    for mut program in skeleton.open_object_mut().progs_mut() {
        let name = program.name().to_string_lossy();
        let name = name.strip_prefix(PREFIX);
        program.set_autoload(name.is_some_and(|name| names.contains(&name)));
    }
    skeleton.load().doing(doing)
}

/// The program of a timer in the kernel, which interrupts each processor in which it is attached.
pub struct TimerProgram {
    skeleton: GateSkel<'static>,
}

impl TimerProgram {
    pub fn new(maps: &Maps, enabled: u32, generation: u32, lazy: &[&LazyMaps]) -> Result<Self> {
        let doing = "loading the program of the timers";
        let skeleton = load_only(maps, enabled, generation, lazy, &["flame_timer"], doing)?;
        Ok(Self { skeleton })
    }

    /// Attaches the program to an event, which the link closes at its end. `session`: the one whose
    /// threads are sampled.
    pub fn attach(&self, event: OwnedFd, session: u32) -> Result<Link> {
        let options = PerfEventOpts { cookie: session.into(), ..Default::default() };
        find(self.skeleton.object(), "flame_timer")
            .attach_perf_event_with_opts(event.into_raw_fd(), options)
            .doing("attaching to a timer of a processor")
    }
}

/// Programs that iterate over all tasks or their files, and use a gate's maps.
pub struct Iterators {
    skeleton: GateSkel<'static>,
}

/// What one of these programs does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IteratorKind {
    /// Attaches the tasks that `attach_requests` names.
    Attach,
    /// Adds the kernel's ticks to the accounts of threads that have not ended.
    Ticks,
    /// Writes what each member has used since the last charge.
    Members,
    /// Matches the rules of services for each member.
    Reclassify,
    /// Writes each open socket that the services know, once for each of its descriptors.
    Sockets,
}

impl IteratorKind {
    /// The program's name without the prefix.
    const fn program(self) -> &'static str {
        match self {
            Self::Attach => "attach_tasks",
            Self::Ticks => "iter_ticks",
            Self::Members => "iter_members",
            Self::Reclassify => "iter_reclassify",
            Self::Sockets => "iter_sockets",
        }
    }
}

impl Iterators {
    /// Loads only the programs in `kinds`. The kernel verifies each program, but the kernel's types
    /// are resolved only once for all programs.
    pub fn new(
        maps: &Maps,
        enabled: u32,
        generation: u32,
        lazy: &[&LazyMaps],
        kinds: &[IteratorKind],
    ) -> Result<Self> {
        let names: Vec<_> = kinds.iter().map(|kind| kind.program()).collect();
        let doing = "loading the gate's task iterators";
        Ok(Self { skeleton: load_only(maps, enabled, generation, lazy, &names, doing)? })
    }

    /// Runs one of the loaded programs once for each task or file. Returns what it wrote.
    pub fn run(&self, kind: IteratorKind) -> Result<Vec<u8>> {
        let program = find(self.skeleton.object(), kind.program());
        // A task iterator takes no map. `attach` passes no parameters.
        let link = program.attach().doing("attaching a task iterator")?;
        let mut iterator = Iter::new(&link).doing("starting a task iterator")?;
        let mut output = Vec::new();
        iterator.read_to_end(&mut output).doing("iterate over all tasks")?;
        Ok(output)
    }
}

/// Makes a ring buffer of this size for a session's records.
pub fn new_ring(bytes: u32) -> Result<MapHandle> {
    let options = libbpf_rs::libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
        ..Default::default()
    };
    MapHandle::create(libbpf_rs::MapType::RingBuf, Some("tollgate_ring"), 0, 0, bytes, &options)
        .doing("making a ring buffer")
}
