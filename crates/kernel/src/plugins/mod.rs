//! Plugins: compiled programs and their memory, in the kernel.

mod attach_point;
mod chain;
mod data;
mod foreign;
mod hooks;
mod load;
mod map_memory;
pub mod tracefs;
mod type_cache;
pub mod verifier_log;

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ecode::Faults;
use ecode::{Compiled, Memory, Object};
use libbpf_rs::libbpf_sys::{self, bpf_map_create_opts, bpf_test_run_opts};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapType, RingBuffer, RingBufferBuilder};

use crate::cpus;
use crate::error::{Error, ErrorContext, Result};
use crate::gate::Gate;
use crate::process::is_root;

pub use attach_point::interval;
pub use chain::{ALL_SESSIONS, MAX_LINKED, sweep};
pub use data::Data;
pub use foreign::{ForeignPlugin, PluginIds};
pub use hooks::PluginHooks;
pub use type_cache::{btf_read_time, offset_of};

use attach_point::AttachPoint;
use chain::ChainSlot;
use load::{Debug, load_program};

/// The kernel's name for a program or map has 15 bytes (BPF_OBJ_NAME_LEN).
const NAME_BYTES: usize = 15;
/// Room for a plugin's output until it is read: some thousand lines.
pub const RECORDS_BYTES: u32 = 256 << 10;
/// The maximum number of arguments of a handler.
pub const MAX_ARGUMENTS: usize = 12;

/// While it lives, its programs and memory are in the kernel.
pub struct LoadedPlugin {
    programs: AttachedPrograms,
    data: Data,
    control: MapHandle,
    maps: Vec<MapHandle>,
    records: Option<Records>,
}

/// When dropped, they are unlinked from their hooks, and freed when no thread can be in them any
/// more.
#[derive(Default)]
struct AttachedPrograms(Vec<AttachedProgram>);

struct AttachedProgram {
    /// `None`: it is not loaded.
    descriptor: Option<OwnedFd>,
    site: AttachPoint,
    /// Its slot at the hook.
    place: Option<ChainSlot>,
}

/// What two plugins have in common.
pub struct SharedMemory {
    /// Whether all variables are shared.
    pub data: bool,
    /// For each map, the other plugin's map that it shares.
    pub maps: Vec<Option<usize>>,
}

/// The session of a plugin, and its position in the chain.
#[derive(Debug, Clone, Copy, Default)]
pub struct ChainOrder {
    /// [`ALL_SESSIONS`]: all tasks.
    pub session: u32,
    /// The lowest one runs first.
    pub priority: i32,
}

/// The plugin's output.
struct Records {
    map: MapHandle,
    reader: RingBuffer<'static>,
    inbox: Rc<RefCell<Vec<Vec<u8>>>>,
}

fn memory(
    kind: MapType,
    name: &str,
    key: u32,
    value: u32,
    entries: u32,
    flags: u32,
) -> Result<MapHandle> {
    let options = bpf_map_create_opts {
        sz: size_of::<bpf_map_create_opts>() as _,
        map_flags: flags,
        ..Default::default()
    };
    let name = &name[..name.len().min(NAME_BYTES)];
    let made = MapHandle::create(kind, Some(name), key, value, entries, &options);
    made.map_err(|cause| Error::Io {
        doing: "create a plugin's map".into(),
        cause: io::Error::other(cause),
    })
}

fn same(map: &MapHandle) -> Result<MapHandle> {
    MapHandle::try_from(map).doing("sharing a plugin's map")
}

impl LoadedPlugin {
    /// Loads the handlers that are called, and nothing at hooks.
    pub fn load(object: &Object) -> Result<Self> {
        let mut plugin = Self::memory(object, None)?;
        for compiled in &object.programs {
            let site = AttachPoint::new(compiled.section, &compiled.selected)?;
            let descriptor = match site {
                AttachPoint::Call => Some(plugin.program(compiled, &site, None)?),
                _ => None,
            };
            plugin.programs.0.push(AttachedProgram { descriptor, site, place: None });
        }
        Ok(plugin)
    }

    /// Loads a plugin at its hooks, where no thread reaches it until [`Self::link`]. With `over`,
    /// it shares memory with another plugin.
    pub fn load_at(
        object: &Object,
        hooks: &mut PluginHooks,
        gate: &Gate,
        turn: ChainOrder,
        over: Option<(&Self, &SharedMemory)>,
    ) -> Result<Self> {
        let mut plugin = Self::memory(object, over)?;
        for compiled in &object.programs {
            let site = AttachPoint::new(compiled.section, &compiled.selected)?;
            let place = if compiled.is_chained {
                Some(hooks.reserve_slot(&site, gate, turn)?)
            } else {
                None
            };
            let descriptor = plugin.program(compiled, &site, place.as_ref())?;
            if let Some(place) = &place {
                place.set_program(descriptor.as_fd())?;
            }
            plugin.programs.0.push(AttachedProgram { descriptor: Some(descriptor), site, place });
        }
        Ok(plugin)
    }

    fn memory(object: &Object, over: Option<(&Self, &SharedMemory)>) -> Result<Self> {
        if !is_root() {
            return Err(Error::NotRoot);
        }
        let is_new = |number: &usize| over.is_none_or(|(_, shared)| shared.maps[*number].is_none());
        map_memory::fits((0..object.maps.len()).filter(is_new).map(|number| &object.maps[number]))?;
        let array = |name, bytes: usize| {
            let bytes = (bytes as u32).max(8);
            memory(MapType::Array, name, 4, bytes, 1, libbpf_sys::BPF_F_MMAPABLE)
        };
        let data = match over {
            Some((other, shared)) if shared.data => other.data.remap()?,
            _ => {
                let data = Data::new(array("plugin_data", object.data.len())?, object.data.len())?;
                data.init(&object.data);
                data
            }
        };
        let control = array("plugin_control", object.control_bytes as usize)?;
        let records = if object.has_records { Some(Records::new()?) } else { None };
        let mut plugin = Self {
            programs: AttachedPrograms::default(),
            data,
            control,
            maps: Vec::new(),
            records,
        };
        for (number, shape) in object.maps.iter().enumerate() {
            let (key, value) = (shape.key_bytes, shape.value_bytes);
            let others = over.and_then(|(other, shared)| Some(&other.maps[shared.maps[number]?]));
            plugin.maps.push(match others {
                Some(map) => same(map)?,
                None => memory(MapType::Hash, "plugin_map", key, value, shape.entries, 0)?,
            });
        }
        Ok(plugin)
    }

    fn program(
        &self,
        compiled: &Compiled,
        site: &AttachPoint,
        place: Option<&ChainSlot>,
    ) -> Result<OwnedFd> {
        let mut instructions = compiled.instructions.clone();
        let place = || place.expect("who asks for the next one has a place");
        for (at, memory) in &compiled.memory {
            let map = match memory {
                Memory::Data => self.data.as_fd(),
                Memory::Control => self.control.as_fd(),
                Memory::Map(map) => self.maps[*map].as_fd(),
                Memory::Records => self.records.as_ref().expect("it has some").map.as_fd(),
                Memory::TailCall => {
                    instructions[at + 1][4..].copy_from_slice(&place().next_offset().to_le_bytes());
                    place().chain().memory()
                }
                Memory::Slots => place().chain().programs(),
                Memory::Verdicts => place().chain().verdicts(),
            };
            instructions[*at][4..].copy_from_slice(&map.as_raw_fd().to_le_bytes());
        }
        let debug =
            Debug { btf: &compiled.btf, functions: &compiled.functions, lines: &compiled.lines };
        load_program(&instructions, &site.load_attributes()?, Some(debug))
    }

    /// Makes its hooks run it from now on, each by a single step; with `instead_of`, in place of
    /// another plugin, whose calls it gets. Returns how long these steps took. If one of them
    /// fails, all is as before.
    pub fn link(&self, instead_of: Option<&Self>) -> Result<Duration> {
        let mut took = Duration::ZERO;
        let mut others: Vec<&AttachedProgram> =
            instead_of.iter().flat_map(|other| &other.programs.0).collect();
        let mut done: Vec<(&ChainSlot, Option<&ChainSlot>)> = Vec::new();
        for program in &self.programs.0 {
            let Some(place) = &program.place else { continue };
            let other = others.iter().position(|other| other.site == program.site);
            let other = other.and_then(|other| others.remove(other).place.as_ref());
            match place.link(other) {
                Ok(step) => took += step,
                Err(error) => {
                    for (place, other) in done.into_iter().rev() {
                        other.map_or_else(|| place.unlink(), |other| other.link(Some(place)))?;
                    }
                    return Err(error);
                }
            }
            done.push((place, other));
        }
        for other in others {
            took += other.place.as_ref().map_or(Ok(Duration::ZERO), ChainSlot::unlink)?;
        }
        Ok(took)
    }

    /// Unlinks it from its hooks; it stays loaded.
    pub fn unlink(&self) -> Result<Duration> {
        self.programs.unlink()
    }

    fn retire(self) -> Option<JoinHandle<()>> {
        self.programs.retire()
    }

    /// Whether a network device is gone that it was attached to.
    pub fn is_device_gone(&self) -> bool {
        self.programs.places().any(ChainSlot::is_device_gone)
    }

    pub fn is_linked(&self) -> bool {
        self.programs.places().any(ChainSlot::is_linked)
    }

    /// Calls a handler. Returns the low 32 bits of its result.
    pub fn call(&self, program: usize, arguments: &[u64]) -> Result<i32> {
        run(self.called(program), arguments)
    }

    fn called(&self, program: usize) -> BorrowedFd<'_> {
        self.programs.0[program].descriptor.as_ref().expect("what is called is loaded").as_fd()
    }

    /// The IDs by which other processes open it.
    pub fn bpf_ids(&self, program: usize) -> Result<PluginIds> {
        let number =
            |map: &MapHandle| Ok(map.info().doing("reading the IDs of a plugin's maps")?.info.id);
        let (data, control) = (number(&self.data.map)?, number(&self.control)?);
        Ok(PluginIds { program: foreign::program_id(self.called(program))?, data, control })
    }
}

impl AttachedPrograms {
    fn places(&self) -> impl Iterator<Item = &ChainSlot> {
        self.0.iter().filter_map(|program| program.place.as_ref())
    }

    fn unlink(&self) -> Result<Duration> {
        self.places().map(ChainSlot::unlink).sum()
    }

    /// Drops them in a thread of its own, because that waits. If no thread can be started, it waits
    /// here.
    fn retire(mut self) -> Option<JoinHandle<()>> {
        self.places().next()?;
        // A network device has one XDP program at a time, and the next plugin may attach another
        // one; the other hooks may wait as long as the kernel does.
        let is_alone = |program: &&mut AttachedProgram| matches!(program.site, AttachPoint::Xdp(_));
        let alone = self.0.iter_mut().filter(is_alone);
        alone.filter_map(|program| program.place.as_mut()).for_each(ChainSlot::detach);
        thread::Builder::new().spawn(move || drop(self)).ok()
    }
}

impl Drop for AttachedPrograms {
    fn drop(&mut self) {
        if self.places().next().is_some() {
            // Without the lock, each slot is unlinked by itself.
            let _ = self.unlink();
            cpus::wait_for_all();
            for AttachedProgram { site, place, .. } in &self.0 {
                place.iter().for_each(|place| place.clear_program(site.empty_program()));
            }
        }
    }
}

fn run(program: BorrowedFd<'_>, arguments: &[u64]) -> Result<i32> {
    let mut context = [0_u64; MAX_ARGUMENTS];
    context[..arguments.len()].copy_from_slice(arguments);
    let mut options = bpf_test_run_opts {
        sz: size_of::<bpf_test_run_opts>() as _,
        ctx_in: context.as_ptr().cast(),
        ctx_size_in: size_of_val(&context) as u32,
        ..Default::default()
    };
    // SAFETY: the context lives until the call is over, and has the given size.
    let done = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &mut options) };
    if done < 0 {
        return Err(io::Error::from_raw_os_error(-done)).doing("call a plugin");
    }
    Ok(options.retval as i32)
}

impl LoadedPlugin {
    /// All global variables.
    pub fn data(&self) -> &Data {
        &self.data
    }

    /// Since the plugin was loaded.
    pub fn faults(&self) -> Result<Faults> {
        Ok(Faults::of(&value(&self.control)?))
    }

    /// Those that were not read yet.
    pub fn records(&self) -> Result<Vec<Vec<u8>>> {
        let Some(records) = &self.records else { return Ok(Vec::new()) };
        records.reader.consume().doing("reading a plugin's output")?;
        Ok(records.inbox.take())
    }

    /// The keys and values of a map.
    pub fn entries(&self, map: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let map = &self.maps[map];
        let mut entries = Vec::new();
        for key in map.keys() {
            if let Some(value) = map.lookup(&key, MapFlags::ANY).doing("reading a plugin's map")? {
                entries.push((key, value));
            }
        }
        Ok(entries)
    }
}

impl Records {
    fn new() -> Result<Self> {
        let map = memory(MapType::RingBuf, "plugin_records", 0, 0, RECORDS_BYTES, 0)?;
        let inbox: Rc<RefCell<Vec<_>>> = Rc::default();
        let into = Rc::clone(&inbox);
        let mut builder = RingBufferBuilder::new();
        let take = move |bytes: &[u8]| {
            into.borrow_mut().push(bytes.to_vec());
            0
        };
        builder.add(&map, take).doing("opening a plugin's ring buffer")?;
        let reader = builder.build().doing("opening what a plugin tells")?;
        Ok(Self { map, reader, inbox })
    }
}

fn value(map: &MapHandle) -> Result<Vec<u8>> {
    let value =
        map.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY).doing("reading a plugin's variables")?;
    Ok(value.unwrap_or_default())
}
