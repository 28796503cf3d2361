//! Plugins: compiled programs and their memory, in the kernel.

use std::cell::RefCell;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::ptr;
use std::rc::Rc;

use ecode::interpret::Faults;
use ecode::{Compiled, Memory, Object};
use libbpf_rs::libbpf_sys::{self, bpf_map_create_opts, bpf_prog_load_opts, bpf_test_run_opts};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapType, PrintLevel, RingBuffer, RingBufferBuilder};

use crate::error::{Doing, Error, Result};
use crate::process::is_root;

/// The kernel's name for a program or map has 15 bytes (BPF_OBJ_NAME_LEN).
const NAME_BYTES: usize = 15;
/// As much of the verifier's log as one reads; what it says last is kept.
const LOG_BYTES: usize = 64 << 10;
/// For what a plugin tells, until it is read: some thousand lines.
const RECORDS_BYTES: u32 = 256 << 10;
/// Numbers that a handler may be called with.
pub const MOST_ARGUMENTS: usize = 12;

/// As long as it is there, its programs and memory are in the kernel.
pub struct Plugin {
    programs: Vec<OwnedFd>,
    data: MapHandle,
    control: MapHandle,
    maps: Vec<MapHandle>,
    records: Option<Records>,
}

/// What the plugin tells user space.
struct Records {
    map: MapHandle,
    reader: RingBuffer<'static>,
    inbox: Rc<RefCell<Vec<Vec<u8>>>>,
}

fn map(kind: MapType, name: &str, key: u32, value: u32, entries: u32, flags: u32) -> Result<MapHandle> {
    let options = bpf_map_create_opts {
        sz: size_of::<bpf_map_create_opts>() as _,
        map_flags: flags,
        ..Default::default()
    };
    let name = &name[..name.len().min(NAME_BYTES)];
    MapHandle::create(kind, Some(name), key, value, entries, &options).doing("making a plugin's memory")
}

impl Plugin {
    pub fn load(object: &Object) -> Result<Self> {
        if !is_root() {
            return Err(Error::NotRoot);
        }
        let array = |name, bytes: usize| {
            let bytes = (bytes as u32).max(8);
            map(MapType::Array, name, 4, bytes, 1, libbpf_sys::BPF_F_MMAPABLE)
        };
        let data = array("plugin_data", object.data.len())?;
        let control = array("plugin_control", object.control_bytes as usize)?;
        let records = if object.has_records { Some(Records::new()?) } else { None };
        let mut plugin = Self { programs: Vec::new(), data, control, maps: Vec::new(), records };
        if !object.data.is_empty() {
            plugin.set_data(&object.data)?;
        }
        for shape in &object.maps {
            let (key, value) = (shape.key_bytes, shape.value_bytes);
            plugin.maps.push(map(MapType::Hash, "plugin_map", key, value, shape.entries, 0)?);
        }
        for compiled in &object.programs {
            plugin.programs.push(plugin.program(compiled)?);
        }
        Ok(plugin)
    }

    fn program(&self, compiled: &Compiled) -> Result<OwnedFd> {
        let mut instructions = compiled.instructions.clone();
        for (at, memory) in &compiled.memory {
            let map = match memory {
                Memory::Data => &self.data,
                Memory::Control => &self.control,
                Memory::Map(map) => &self.maps[*map],
                Memory::Records => &self.records.as_ref().expect("it has some").map,
            };
            instructions[*at][4..].copy_from_slice(&map.as_fd().as_raw_fd().to_le_bytes());
        }
        // SAFETY: bytes that are there, and their number; no options.
        let types = unsafe {
            libbpf_sys::bpf_btf_load(compiled.btf.as_ptr().cast(), compiled.btf.len() as _, ptr::null_mut())
        };
        let types = descriptor(types).doing("describe a plugin's functions to the kernel")?;
        let mut log = vec![0_u8; LOG_BYTES];
        let mut options = bpf_prog_load_opts {
            sz: size_of::<bpf_prog_load_opts>() as _,
            prog_btf_fd: types.as_raw_fd() as u32,
            func_info: compiled.functions.as_ptr().cast(),
            func_info_cnt: compiled.functions.len() as u32,
            func_info_rec_size: size_of::<[u32; 2]>() as u32,
            line_info: compiled.lines.as_ptr().cast(),
            line_info_cnt: compiled.lines.len() as u32,
            line_info_rec_size: size_of::<[u32; 4]>() as u32,
            // A hook's programs that are called on demand may wait for pages of user space.
            prog_flags: libbpf_sys::BPF_F_SLEEPABLE,
            log_level: 0,
            ..Default::default()
        };
        let name = CString::new("plugin").expect("it has no NUL");
        let license = CString::new("GPL").expect("it has no NUL");
        let load = |options: &mut bpf_prog_load_opts| {
            // SAFETY: all that the options point to is there until the call is over, with the sizes that they say.
            let program = unsafe {
                libbpf_sys::bpf_prog_load(
                    libbpf_sys::BPF_PROG_TYPE_SYSCALL,
                    name.as_ptr(),
                    license.as_ptr(),
                    instructions.as_ptr().cast(),
                    instructions.len() as _,
                    options,
                )
            };
            descriptor(program)
        };
        load(&mut options).or_else(|refusal| {
            // Only now is it worth the while to have the verifier tell what it does.
            let mut told = bpf_prog_load_opts {
                log_level: 1,
                log_buf: log.as_mut_ptr().cast(),
                log_size: log.len() as u32,
                ..options
            };
            load(&mut told).map_err(|_| {
                let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
                let log = String::from_utf8_lossy(&log[..end]).into_owned();
                // As libbpf does with the gate's.
                if let Some((_, print)) = libbpf_rs::get_print() {
                    print(PrintLevel::Warn, log.clone());
                }
                Error::Refused { log, cause: refusal }
            })
        })
    }

    /// The low 32 bits of what a handler of calls returns.
    pub fn call(&self, program: usize, arguments: &[u64]) -> Result<i32> {
        let mut context = [0_u64; MOST_ARGUMENTS];
        context[..arguments.len()].copy_from_slice(arguments);
        let mut options = bpf_test_run_opts {
            sz: size_of::<bpf_test_run_opts>() as _,
            ctx_in: context.as_ptr().cast(),
            ctx_size_in: size_of_val(&context) as u32,
            ..Default::default()
        };
        let program = self.programs[program].as_raw_fd();
        // SAFETY: the context is there until the call is over, with the size that is said.
        let done = unsafe { libbpf_sys::bpf_prog_test_run_opts(program, &mut options) };
        if done < 0 {
            return Err(io::Error::from_raw_os_error(-done)).doing("call a plugin");
        }
        Ok(options.retval as i32)
    }

    /// The bytes of all global variables.
    pub fn data(&self) -> Result<Vec<u8>> {
        value(&self.data)
    }

    pub fn set_data(&self, bytes: &[u8]) -> Result<()> {
        self.data.update(&0_u32.to_ne_bytes(), bytes, MapFlags::ANY).doing("writing a plugin's variables")
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
        let map = map(MapType::RingBuf, "plugin_records", 0, 0, RECORDS_BYTES, 0)?;
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

fn descriptor(number: i32) -> io::Result<OwnedFd> {
    if number < 0 {
        return Err(io::Error::from_raw_os_error(-number));
    }
    // SAFETY: it is new, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
