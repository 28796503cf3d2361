//! Plugins: compiled programs and their memory, in the kernel.

mod chain;
mod data;
mod hooks;
mod limits;
mod load;
mod opened;
mod section;
pub mod tracing;
mod types;
pub mod verifier_log;

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ecode::interpret::Faults;
use ecode::{Compiled, Memory, Object};
use libbpf_rs::libbpf_sys::{self, bpf_map_create_opts, bpf_test_run_opts};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapType, RingBuffer, RingBufferBuilder};

use crate::cpus;
use crate::error::{Doing, Error, Result};
use crate::gate::Gate;
use crate::process::is_root;

pub use chain::{EVERYBODY, MOST_LINKED, sweep};
pub use data::Data;
pub use hooks::Hooks;
pub use opened::{Numbers, Opened};
pub use section::interval;
pub use types::{offset_of, reading_took};

use chain::Place;
use load::{Debug, load_program};
use section::Site;

/// The kernel's name for a program or map has 15 bytes (BPF_OBJ_NAME_LEN).
const NAME_BYTES: usize = 15;
/// For what a plugin tells, until it is read: some thousand lines.
pub const RECORDS_BYTES: u32 = 256 << 10;
/// Numbers that a handler may be called with.
pub const MOST_ARGUMENTS: usize = 12;

/// As long as it is there, its programs and memory are in the kernel.
pub struct Plugin {
    programs: Programs,
    data: Data,
    control: MapHandle,
    maps: Vec<MapHandle>,
    records: Option<Records>,
}

/// When they are dropped, they are taken out of their hooks, and go when nobody can be in them any more.
#[derive(Default)]
struct Programs(Vec<Program>);

struct Program {
    /// None: it is not loaded.
    descriptor: Option<OwnedFd>,
    site: Site,
    /// At its hook.
    place: Option<Place>,
}

/// What two plugins have in common.
pub struct Shared {
    /// Whether all variables are the other's.
    pub data: bool,
    /// Which of the other's each map is.
    pub maps: Vec<Option<usize>>,
}

/// Whose a plugin is, and when its turn is.
#[derive(Debug, Clone, Copy, Default)]
pub struct Turn {
    /// [`EVERYBODY`]: of all tasks.
    pub session: u32,
    /// The lowest one comes first.
    pub priority: i32,
}

/// What the plugin tells user space.
struct Records {
    map: MapHandle,
    reader: RingBuffer<'static>,
    inbox: Rc<RefCell<Vec<Vec<u8>>>>,
}

fn memory(kind: MapType, name: &str, key: u32, value: u32, entries: u32, flags: u32) -> Result<MapHandle> {
    let options = bpf_map_create_opts {
        sz: size_of::<bpf_map_create_opts>() as _,
        map_flags: flags,
        ..Default::default()
    };
    let name = &name[..name.len().min(NAME_BYTES)];
    let made = MapHandle::create(kind, Some(name), key, value, entries, &options);
    made.map_err(|cause| Error::Io { doing: "make a plugin's memory".into(), cause: io::Error::other(cause) })
}

fn same(map: &MapHandle) -> Result<MapHandle> {
    MapHandle::try_from(map).doing("sharing a plugin's memory")
}

impl Plugin {
    /// What is called of it into the kernel, and nothing at hooks.
    pub fn load(object: &Object) -> Result<Self> {
        let mut plugin = Self::memory(object, None)?;
        for compiled in &object.programs {
            let site = Site::new(compiled.section, &compiled.selected)?;
            let descriptor = match site {
                Site::Call => Some(plugin.program(compiled, &site, None)?),
                _ => None,
            };
            plugin.programs.0.push(Program { descriptor, site, place: None });
        }
        Ok(plugin)
    }

    /// Into the kernel, at its hooks, but nobody comes by it: [`Plugin::link`]. Over what another one has in memory.
    pub fn load_at(
        object: &Object,
        hooks: &mut Hooks,
        gate: &Gate,
        turn: Turn,
        over: Option<(&Self, &Shared)>,
    ) -> Result<Self> {
        let mut plugin = Self::memory(object, over)?;
        for compiled in &object.programs {
            let site = Site::new(compiled.section, &compiled.selected)?;
            let place = if compiled.is_chained { Some(hooks.place(&site, gate, turn)?) } else { None };
            let descriptor = plugin.program(compiled, &site, place.as_ref())?;
            if let Some(place) = &place {
                place.put(descriptor.as_fd())?;
            }
            plugin.programs.0.push(Program { descriptor: Some(descriptor), site, place });
        }
        Ok(plugin)
    }

    fn memory(object: &Object, over: Option<(&Self, &Shared)>) -> Result<Self> {
        if !is_root() {
            return Err(Error::NotRoot);
        }
        let is_new = |number: &usize| over.is_none_or(|(_, shared)| shared.maps[*number].is_none());
        limits::fits((0..object.maps.len()).filter(is_new).map(|number| &object.maps[number]))?;
        let array = |name, bytes: usize| {
            let bytes = (bytes as u32).max(8);
            memory(MapType::Array, name, 4, bytes, 1, libbpf_sys::BPF_F_MMAPABLE)
        };
        let data = match over {
            Some((other, shared)) if shared.data => other.data.again()?,
            _ => {
                let data = Data::new(array("plugin_data", object.data.len())?, object.data.len())?;
                data.begin_with(&object.data);
                data
            }
        };
        let control = array("plugin_control", object.control_bytes as usize)?;
        let records = if object.has_records { Some(Records::new()?) } else { None };
        let mut plugin = Self { programs: Programs::default(), data, control, maps: Vec::new(), records };
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

    fn program(&self, compiled: &Compiled, site: &Site, place: Option<&Place>) -> Result<OwnedFd> {
        let mut instructions = compiled.instructions.clone();
        let place = || place.expect("who asks for the next one has a place");
        for (at, memory) in &compiled.memory {
            let map = match memory {
                Memory::Data => self.data.as_fd(),
                Memory::Control => self.control.as_fd(),
                Memory::Map(map) => self.maps[*map].as_fd(),
                Memory::Records => self.records.as_ref().expect("it has some").map.as_fd(),
                Memory::Next => {
                    instructions[at + 1][4..].copy_from_slice(&place().next_offset().to_le_bytes());
                    place().chain().memory()
                }
                Memory::Slots => place().chain().programs(),
                Memory::Verdicts => place().chain().verdicts(),
            };
            instructions[*at][4..].copy_from_slice(&map.as_raw_fd().to_le_bytes());
        }
        let debug = Debug { btf: &compiled.btf, functions: &compiled.functions, lines: &compiled.lines };
        load_program(&instructions, &site.kind()?, Some(debug))
    }

    /// From now on its hooks run it, each by a single step; instead of another plugin, whose calls then are its own. How long these
    /// steps took. If one of them fails, all is as before.
    pub fn link(&self, instead_of: Option<&Self>) -> Result<Duration> {
        let mut took = Duration::ZERO;
        let mut others: Vec<&Program> = instead_of.iter().flat_map(|other| &other.programs.0).collect();
        let mut done: Vec<(&Place, Option<&Place>)> = Vec::new();
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
            took += other.place.as_ref().map_or(Ok(Duration::ZERO), Place::unlink)?;
        }
        Ok(took)
    }

    /// Nobody comes by it any more, but it stays loaded.
    pub fn unlink(&self) -> Result<Duration> {
        self.programs.unlink()
    }

    fn leave(self) -> Option<JoinHandle<()>> {
        self.programs.leave()
    }

    /// Whether a network device is gone that it was attached to.
    pub fn is_lost(&self) -> bool {
        self.programs.places().any(Place::is_lost)
    }

    pub fn is_linked(&self) -> bool {
        self.programs.places().any(Place::is_linked)
    }

    /// The low 32 bits of what a handler of calls returns.
    pub fn call(&self, program: usize, arguments: &[u64]) -> Result<i32> {
        run(self.called(program), arguments)
    }

    fn called(&self, program: usize) -> BorrowedFd<'_> {
        self.programs.0[program].descriptor.as_ref().expect("what is called is loaded").as_fd()
    }

    /// For other processes.
    pub fn numbers(&self, program: usize) -> Result<Numbers> {
        let number = |map: &MapHandle| Ok(map.info().doing("numbering a plugin's memory")?.info.id);
        let (data, control) = (number(&self.data.map)?, number(&self.control)?);
        Ok(Numbers { program: opened::number_of(self.called(program))?, data, control })
    }
}

impl Programs {
    fn places(&self) -> impl Iterator<Item = &Place> {
        self.0.iter().filter_map(|program| program.place.as_ref())
    }

    fn unlink(&self) -> Result<Duration> {
        self.places().map(Place::unlink).sum()
    }

    /// Drops them in a thread of its own, as that waits. Where there can be none, it is waited for here.
    fn leave(mut self) -> Option<JoinHandle<()>> {
        self.places().next()?;
        // Whoever comes next may attach another program, of which there is one at a time; the others may wait as long as the kernel does.
        let is_alone = |program: &&mut Program| matches!(program.site, Site::Xdp(_));
        let alone = self.0.iter_mut().filter(is_alone);
        alone.filter_map(|program| program.place.as_mut()).for_each(Place::detach);
        thread::Builder::new().spawn(move || drop(self)).ok()
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        if self.places().next().is_some() {
            // Without the lock, each place is taken out by itself.
            let _ = self.unlink();
            cpus::wait_for_all();
            for Program { site, place, .. } in &self.0 {
                place.iter().for_each(|place| place.empty(site.nothing()));
            }
        }
    }
}

fn run(program: BorrowedFd<'_>, arguments: &[u64]) -> Result<i32> {
    let mut context = [0_u64; MOST_ARGUMENTS];
    context[..arguments.len()].copy_from_slice(arguments);
    let mut options = bpf_test_run_opts {
        sz: size_of::<bpf_test_run_opts>() as _,
        ctx_in: context.as_ptr().cast(),
        ctx_size_in: size_of_val(&context) as u32,
        ..Default::default()
    };
    // SAFETY: the context is there until the call is over, with the size that is said.
    let done = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &mut options) };
    if done < 0 {
        return Err(io::Error::from_raw_os_error(-done)).doing("call a plugin");
    }
    Ok(options.retval as i32)
}

impl Plugin {
    /// All global variables.
    pub fn data(&self) -> &Data {
        &self.data
    }

    /// Since it was loaded.
    pub fn faults(&self) -> Result<Faults> {
        Ok(Faults::of(&value(&self.control)?))
    }

    /// Those that were not asked for yet.
    pub fn records(&self) -> Result<Vec<Vec<u8>>> {
        let Some(records) = &self.records else { return Ok(Vec::new()) };
        records.reader.consume().doing("reading what a plugin tells")?;
        Ok(records.inbox.take())
    }

    /// Keys and values.
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
        builder.add(&map, take).doing("opening what a plugin tells")?;
        let reader = builder.build().doing("opening what a plugin tells")?;
        Ok(Self { map, reader, inbox })
    }
}

fn value(map: &MapHandle) -> Result<Vec<u8>> {
    let value = map.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY).doing("reading a plugin's variables")?;
    Ok(value.unwrap_or_default())
}
