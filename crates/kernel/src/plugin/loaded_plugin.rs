//! A compiled plugin and its memory, in the kernel.

use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use ecode::Faults;
use ecode::{Compiled, Memory, Object, RETIRED};
use libbpf_rs::libbpf_sys;
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapType};

use super::attach_point::AttachPoint;
use super::attached_programs::{AttachedProgram, AttachedPrograms};
use super::chain::ChainOrder;
use super::chain_slot::ChainSlot;
use super::data::Data;
use super::foreign::PluginIds;
use super::hooks::PluginHooks;
use super::load::{Debug, load_program};
use super::map::{create_map, read_entry, share_map};
use super::map_memory;
use super::program_info::program_id;
use super::records::Records;
use super::run::run;
use crate::error::{Error, ErrorContext, Result};
use crate::gate::Gate;
use crate::process::is_root;

/// A plugin in the kernel, until dropped.
pub struct LoadedPlugin {
    programs: AttachedPrograms,
    data: Data,
    control: MapHandle,
    maps: Vec<MapHandle>,
    records: Option<Records>,
}

/// The memory that a plugin shares with the one that it replaces.
pub struct SharedMemory {
    /// Whether all variables are shared.
    pub data: bool,
    /// For each map, the index of the other plugin's map that it shares, if it shares one.
    pub maps: Vec<Option<usize>>,
}

impl LoadedPlugin {
    /// Loads only the handlers that are called. Nothing is attached.
    pub fn load(object: &Object) -> Result<Self> {
        let mut plugin = Self::memory(object, None)?;
        for compiled in &object.programs {
            let point = AttachPoint::new(compiled.section, &compiled.selected)?;
            let descriptor = match point {
                AttachPoint::Call => Some(plugin.program(compiled, &point, None)?),
                _ => None,
            };
            plugin.programs.0.push(AttachedProgram { descriptor, point, slot: None });
        }
        Ok(plugin)
    }

    /// Loads a plugin and reserves its slots. It does not run before it is linked ([`Self::link`]).
    /// With `over`, it shares memory with another plugin.
    pub fn load_at(
        object: &Object,
        hooks: &mut PluginHooks,
        gate: &Gate,
        order: ChainOrder,
        over: Option<(&Self, &SharedMemory)>,
    ) -> Result<Self> {
        let mut plugin = Self::memory(object, over)?;
        for (index, compiled) in object.programs.iter().enumerate() {
            let point = AttachPoint::new(compiled.section, &compiled.selected)?;
            let slot = if compiled.is_chained {
                let slot = hooks.reserve_slot(&point, gate, order);
                Some(slot.map_err(|error| error.of_program(index))?)
            } else {
                None
            };
            let descriptor = plugin.program(compiled, &point, slot.as_ref())?;
            if let Some(slot) = &slot {
                slot.set_program(descriptor.as_fd())?;
            }
            plugin.programs.0.push(AttachedProgram { descriptor: Some(descriptor), point, slot });
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
            create_map(MapType::Array, name, 4, bytes, 1, libbpf_sys::BPF_F_MMAPABLE)
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
                Some(map) => share_map(map)?,
                None => create_map(MapType::Hash, "plugin_map", key, value, shape.entries, 0)?,
            });
        }
        Ok(plugin)
    }

    fn program(
        &self,
        compiled: &Compiled,
        point: &AttachPoint,
        slot: Option<&ChainSlot>,
    ) -> Result<OwnedFd> {
        let mut instructions = compiled.instructions.clone();
        let slot = || slot.expect("a program that enters the next one has a slot");
        for (at, memory) in &compiled.memory {
            let map = match memory {
                Memory::Data => self.data.as_fd(),
                Memory::Control => self.control.as_fd(),
                Memory::Map(map) => self.maps[*map].as_fd(),
                Memory::Records => self.records.as_ref().expect("it has some").map.as_fd(),
                Memory::TailCall => {
                    instructions[at + 1][4..].copy_from_slice(&slot().next_offset().to_le_bytes());
                    slot().chain().memory()
                }
                Memory::Slots => slot().chain().programs(),
                Memory::Verdicts => slot().chain().verdicts(),
            };
            instructions[*at][4..].copy_from_slice(&map.as_raw_fd().to_le_bytes());
        }
        let debug =
            Debug { btf: &compiled.btf, functions: &compiled.functions, lines: &compiled.lines };
        load_program(&instructions, &point.load_attributes()?, Some(debug))
    }

    /// Links the plugin at its hooks, at each hook by a single store. With `instead_of`, it
    /// replaces another plugin there, and no call is missed. Returns how long the stores took. If a
    /// hook is full, nothing is changed.
    pub fn link(&self, instead_of: Option<&Self>) -> Result<Duration> {
        let mut took = Duration::ZERO;
        let mut others: Vec<&AttachedProgram> =
            instead_of.iter().flat_map(|other| &other.programs.0).collect();
        let mut done: Vec<(&ChainSlot, Option<&ChainSlot>)> = Vec::new();
        for (index, program) in self.programs.0.iter().enumerate() {
            let Some(slot) = &program.slot else { continue };
            let other = others.iter().position(|other| other.point == program.point);
            let other = other.and_then(|other| others.remove(other).slot.as_ref());
            match slot.link(other) {
                Ok(step) => took += step,
                Err(error) => {
                    for (slot, other) in done.into_iter().rev() {
                        other.map_or_else(|| slot.unlink(), |other| other.link(Some(slot)))?;
                    }
                    return Err(error.of_program(index));
                }
            }
            done.push((slot, other));
        }
        for other in others {
            took += other.slot.as_ref().map_or(Ok(Duration::ZERO), ChainSlot::unlink)?;
        }
        Ok(took)
    }

    /// Unlinks the plugin from its hooks, and leaves it loaded. Returns how long the stores took.
    pub fn unlink(&self) -> Result<Duration> {
        self.programs.unlink()
    }

    /// Drops the plugin without waiting for the threads that are still in it. When `hooks` is
    /// dropped, it waits for them.
    pub fn retire(self, hooks: &mut PluginHooks) {
        // Without the mark, clients that have the plugin open do not learn that it is gone.
        let _ = self.mark_retired();
        hooks.add_retiring(self.programs.retire());
    }

    fn mark_retired(&self) -> Result<()> {
        let bytes = self.control.value_size() as usize;
        let control = Data::new(share_map(&self.control)?, bytes)?;
        control.write(RETIRED as usize, &1_u64.to_ne_bytes());
        Ok(())
    }

    /// Whether a network device to which the plugin was attached is gone.
    pub fn is_device_gone(&self) -> bool {
        self.programs.slots().any(ChainSlot::is_device_gone)
    }

    /// Whether it is linked at one of its hooks.
    pub fn is_linked(&self) -> bool {
        self.programs.slots().any(ChainSlot::is_linked)
    }

    /// Calls a handler, by its index among the programs. Returns the low 32 bits of its result.
    ///
    /// # Panics
    /// If the handler is not loaded ([`Self::load`]), or if there are more than
    /// [`MAX_ARGUMENTS`](super::MAX_ARGUMENTS) arguments.
    pub fn call(&self, program: usize, arguments: &[u64]) -> Result<i32> {
        run(self.called(program), arguments)
    }

    fn called(&self, program: usize) -> BorrowedFd<'_> {
        self.programs.0[program].descriptor.as_ref().expect("what is called is loaded").as_fd()
    }

    /// The IDs by which other processes open the plugin, to call this handler.
    pub fn bpf_ids(&self, program: usize) -> Result<PluginIds> {
        let number =
            |map: &MapHandle| Ok(map.info().doing("reading the IDs of a plugin's maps")?.info.id);
        let (data, control) = (number(&self.data.map)?, number(&self.control)?);
        Ok(PluginIds { program: program_id(self.called(program))?, data, control })
    }

    /// Its global variables.
    pub fn data(&self) -> &Data {
        &self.data
    }

    /// The faults since it was loaded.
    pub fn faults(&self) -> Result<Faults> {
        Ok(Faults::of(&read_entry(&self.control)?))
    }

    /// The records of its output that were not read yet.
    pub fn records(&self) -> Result<Vec<Vec<u8>>> {
        self.records.as_ref().map_or(Ok(Vec::new()), Records::read)
    }

    /// The keys and values of a map, by its index among the plugin's maps.
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
