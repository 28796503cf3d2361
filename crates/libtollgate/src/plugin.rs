//! A daemon's plugin, called from this process: the daemon says where it is in the kernel, and is not asked any more.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::ptr::{self, NonNull};

use serde_json::{Value, json};

use crate::{Error, daemon};

/// `on call` takes no more (docs/ecode.md).
pub const MOST_ARGUMENTS: usize = 12;

// include/uapi/linux/bpf.h, enum bpf_cmd
const PROG_TEST_RUN: i32 = 10;
const PROG_GET_FD_BY_ID: i32 = 13;
const MAP_GET_FD_BY_ID: i32 = 14;

pub struct Plugin {
    program: OwnedFd,
    parameters: usize,
    memory: NonNull<u8>,
    bytes: usize,
    /// Where each global variable is, and its bytes.
    variables: BTreeMap<String, (usize, usize)>,
}

// SAFETY: the memory is the kernel's as much as this process's, and is only handed out as addresses.
unsafe impl Send for Plugin {}
// SAFETY: as above.
unsafe impl Sync for Plugin {}

/// `union bpf_attr`, of BPF_PROG_TEST_RUN.
#[repr(C)]
#[derive(Default)]
struct Run {
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
    // SAFETY: attributes that are there until the call is over, with their size.
    let done = unsafe { libc::syscall(libc::SYS_bpf, command, ptr::from_mut(attributes), size_of::<T>()) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done) }
}

fn opened(command: i32, number: &Value) -> Result<OwnedFd, Error> {
    let number = number.as_u64().ok_or_else(|| daemon::not_understood(number))?;
    // The number, and two words that are 0.
    let mut attributes = [number as u32, 0, 0];
    let descriptor = bpf(command, &mut attributes).map_err(Error::Kernel)?;
    // SAFETY: it is new, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor as i32) })
}

impl Plugin {
    pub fn open(name: &str) -> Result<Self, Error> {
        let (answer, program, map) = Self::found(name)?;
        let listed = answer["variables"].as_array().ok_or_else(|| daemon::not_understood(&answer))?;
        let number = |of: &Value| of.as_u64().unwrap_or_default() as usize;
        let variable = |variable: &Value| {
            let place = (number(&variable["offset"]), number(&variable["bytes"]));
            Some((variable["name"].as_str()?.to_owned(), place))
        };
        let variables: BTreeMap<_, _> = listed.iter().filter_map(variable).collect();
        let bytes = variables.values().map(|(at, bytes)| at + bytes).max().unwrap_or(0).max(1);
        let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new shared mapping at an address of the kernel's choice.
        let memory = unsafe { libc::mmap(ptr::null_mut(), bytes, access, shared, map.as_raw_fd(), 0) };
        if memory == libc::MAP_FAILED {
            return Err(Error::Kernel(io::Error::last_os_error()));
        }
        let memory = NonNull::new(memory.cast()).expect("mmap does not return address 0");
        Ok(Self { program, parameters: number(&answer["parameters"]), memory, bytes, variables })
    }

    /// One that was swapped since the daemon said where it is, is asked for once more.
    fn found(name: &str) -> Result<(Value, OwnedFd, OwnedFd), Error> {
        const TRIES: usize = 10;
        let mut tries = 0;
        loop {
            let answer = daemon::ask(&json!({"ask-plugins": "open", "name": name}))?;
            let program = opened(PROG_GET_FD_BY_ID, &answer["program"]);
            tries += 1;
            match program.and_then(|program| Ok((program, opened(MAP_GET_FD_BY_ID, &answer["data"])?))) {
                Err(Error::Kernel(cause)) if cause.kind() == io::ErrorKind::NotFound && tries < TRIES => {}
                found => return found.map(|(program, map)| (answer, program, map)),
            }
        }
    }

    /// The lower 32 bits of what `on call` returns; each number is converted to the type of its parameter.
    pub fn call(&self, arguments: &[u64]) -> Result<i32, Error> {
        if arguments.len() != self.parameters {
            let (wanted, given) = (self.parameters, arguments.len());
            return Err(Error::Refused(format!(
                "`on call` takes so many numbers: {wanted}, and not {given}"
            )));
        }
        let mut context = [0_u64; MOST_ARGUMENTS];
        context[..arguments.len()].copy_from_slice(arguments);
        let mut run = Run {
            program: self.program.as_raw_fd() as u32,
            context_size: size_of_val(&context) as u32,
            context: context.as_ptr() as u64,
            ..Run::default()
        };
        bpf(PROG_TEST_RUN, &mut run).map_err(Error::Kernel)?;
        Ok(run.result as i32)
    }

    /// Where a global variable is in this process's memory, which the plugin shares, and how many bytes it has. It is there as
    /// long as the plugin is open.
    pub fn variable(&self, name: &str) -> Option<(*mut u8, usize)> {
        let (at, bytes) = self.variables.get(name)?;
        // SAFETY: within the mapping, which is as long as all variables.
        Some((unsafe { self.memory.as_ptr().add(*at) }, *bytes))
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `open`.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.bytes) };
    }
}
