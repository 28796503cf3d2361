//! Calls a daemon's plugin from this process. The daemon sends the IDs of the plugin's program and
//! map once; calls then go directly to the kernel.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::ptr::{self, NonNull};

use serde_json::{Value, json};

use crate::{Error, client};

/// The maximum number of parameters of `on call` (docs/ecode.md).
pub const MAX_ARGUMENTS: usize = 12;

// include/uapi/linux/bpf.h, enum bpf_cmd
const PROG_TEST_RUN: i32 = 10;
const PROG_GET_FD_BY_ID: i32 = 13;
const MAP_GET_FD_BY_ID: i32 = 14;

/// An open plugin. It stays loaded in the daemon when this is dropped.
pub struct Plugin {
    program: OwnedFd,
    parameters: usize,
    memory: Mapping,
    /// Memory in which the daemon marks a plugin that it has swapped or unloaded.
    control: Mapping,
    /// The offset of this mark.
    retired_at: usize,
    /// The offset and the size in bytes of each global variable.
    variables: BTreeMap<String, (usize, usize)>,
}

/// The beginning of a map with one entry, in memory that this process shares with the kernel.
struct Mapping {
    memory: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the kernel writes to the memory as well, so it is handed out as raw pointers only.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(map: &OwnedFd, bytes: usize, access: i32) -> Result<Self, Error> {
        // SAFETY: a new shared mapping at an address that the kernel chooses.
        let memory = unsafe {
            libc::mmap(ptr::null_mut(), bytes, access, libc::MAP_SHARED, map.as_raw_fd(), 0)
        };
        if memory == libc::MAP_FAILED {
            return Err(Error::Kernel(io::Error::last_os_error()));
        }
        let memory = NonNull::new(memory.cast()).expect("mmap does not return address 0");
        Ok(Self { memory, bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.bytes) };
    }
}

/// `union bpf_attr` for BPF_PROG_TEST_RUN.
#[repr(C)]
#[derive(Default)]
struct TestRunAttr {
    program: u32,
    result: u32,
    data_sizes: [u32; 2],
    data: [u64; 2],
    repeat: u32,
    duration: u32,
    context_size: u32,
    context_size_out: u32,
    context: u64,
    context_out: u64,
    flags: u32,
    cpu: u32,
    batch_size: u32,
    unused: u32,
}

fn bpf<T>(command: i32, attributes: &mut T) -> io::Result<i64> {
    // SAFETY: the attributes live until the call returns, and the size is theirs.
    let done =
        unsafe { libc::syscall(libc::SYS_bpf, command, ptr::from_mut(attributes), size_of::<T>()) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done) }
}

fn open_by_id(command: i32, number: &Value) -> Result<OwnedFd, Error> {
    let number = number.as_u64().ok_or_else(|| client::unexpected_reply(number))?;
    // The ID and two words that must be 0.
    let mut attributes = [number as u32, 0, 0];
    let descriptor = bpf(command, &mut attributes).map_err(Error::Kernel)?;
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor as i32) })
}

impl Plugin {
    /// Opens the plugin with this name, which the daemon has loaded.
    pub fn open(name: &str) -> Result<Self, Error> {
        let (reply, program, [data, control]) = Self::request_ids(name)?;
        let listed =
            reply["variables"].as_array().ok_or_else(|| client::unexpected_reply(&reply))?;
        let number = |of: &Value| of.as_u64().unwrap_or_default() as usize;
        let variable = |variable: &Value| {
            let range = (number(&variable["offset"]), number(&variable["bytes"]));
            Some((variable["name"].as_str()?.to_owned(), range))
        };
        let variables: BTreeMap<_, _> = listed.iter().filter_map(variable).collect();
        let bytes = variables.values().map(|(at, bytes)| at + bytes).max().unwrap_or(0).max(1);
        let memory = Mapping::new(&data, bytes, libc::PROT_READ | libc::PROT_WRITE)?;
        let (parameters, retired_at) = (number(&reply["parameters"]), number(&reply["retired"]));
        let control = Mapping::new(&control, retired_at + size_of::<u64>(), libc::PROT_READ)?;
        Ok(Self { program, parameters, memory, control, retired_at, variables })
    }

    /// Requests the plugin's IDs, and opens the program and the maps. If they no longer exist,
    /// requests the IDs again, because a swap has replaced the program or a map since the daemon
    /// replied.
    fn request_ids(name: &str) -> Result<(Value, OwnedFd, [OwnedFd; 2]), Error> {
        const TRIES: usize = 10;
        let mut tries = 0;
        loop {
            let reply = client::request(&json!({"ask-plugins": "open", "name": name}))?;
            let open = || {
                let map = |key| open_by_id(MAP_GET_FD_BY_ID, &reply[key]);
                let program = open_by_id(PROG_GET_FD_BY_ID, &reply["program"])?;
                Ok((program, [map("data")?, map("control")?]))
            };
            tries += 1;
            match open() {
                Err(Error::Kernel(cause))
                    if cause.kind() == io::ErrorKind::NotFound && tries < TRIES => {}
                found => return found.map(|(program, maps)| (reply, program, maps)),
            }
        }
    }

    /// Runs `on call` and returns the lower 32 bits of its result. Each argument is converted to
    /// the type of its parameter.
    pub fn call(&self, arguments: &[u64]) -> Result<i32, Error> {
        if arguments.len() != self.parameters {
            let (wanted, given) = (self.parameters, arguments.len());
            return Err(Error::Refused(format!(
                "`on call` takes {wanted} numbers, but {given} were given"
            )));
        }
        let mut context = [0_u64; MAX_ARGUMENTS];
        context[..arguments.len()].copy_from_slice(arguments);
        let mut run = TestRunAttr {
            program: self.program.as_raw_fd() as u32,
            context_size: size_of_val(&context) as u32,
            context: context.as_ptr() as u64,
            ..TestRunAttr::default()
        };
        bpf(PROG_TEST_RUN, &mut run).map_err(Error::Kernel)?;
        Ok(run.result as i32)
    }

    /// Whether the daemon has swapped or unloaded the plugin since it was opened. Calls then still
    /// run the version that was opened, whose variables nothing else uses any more unless both
    /// versions have the same ones. Open the plugin again to call the new version.
    pub fn is_stale(&self) -> bool {
        // SAFETY: within the mapping, and aligned as the daemon's layout is.
        let mark = unsafe { self.control.memory.as_ptr().add(self.retired_at).cast::<u64>() };
        // SAFETY: as above; the daemon may write it meanwhile.
        unsafe { mark.read_volatile() != 0 }
    }

    /// The address and the size in bytes of a global variable, in memory that this process shares
    /// with the plugin. The address is valid as long as the plugin is open.
    pub fn variable(&self, name: &str) -> Option<(*mut u8, usize)> {
        let (at, bytes) = self.variables.get(name)?;
        // SAFETY: within the mapping, which covers all variables.
        Some((unsafe { self.memory.memory.as_ptr().add(*at) }, *bytes))
    }
}
