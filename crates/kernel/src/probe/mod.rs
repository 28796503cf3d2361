//! Tries what this kernel can do: it loads tiny programs and maps of `bpf/measure/probe.bpf.c`, one
//! at a time, and attaches some of them for a moment. Nothing stays behind.

mod error;
mod host;
mod loops;
mod object;
mod types;

use libbpf_rs::libbpf_sys;

pub use error::{ProbeError, ProbeResult};
pub use host::{release, security_modules};
pub use loops::loops;
pub use types::Types;

use crate::error::Error;
use crate::mapped_array::MappedArray;
use object::COUNTER;

/// Whether this process may use BPF as the gate does, which finds maps and links by their IDs.
pub fn may_use_bpf() -> ProbeResult {
    let mut next = 0;
    // SAFETY: writes one number to `next`.
    let result = unsafe { libbpf_sys::bpf_map_get_next_id(0, &mut next) };
    match result {
        0 => Ok(()),
        // Permitted, but there is no map.
        error if error == -libc::ENOENT => Ok(()),
        error => Err(ProbeError::new("bpf", -error)),
    }
}

/// Loads a program, with the maps that it uses.
pub fn load(program: &str, maps: &[&str]) -> ProbeResult {
    object::with(&[program], maps, |_| Ok(()))
}

/// Loads a program, attaches it and detaches it.
pub fn attach(program: &str) -> ProbeResult {
    object::with(&[program], &[], |loaded| loaded.attach(program).map(drop))
}

/// Attaches a program by kprobe.multi to the entry of getpgid, and detaches it.
pub fn attach_kprobe_multi() -> ProbeResult {
    const PROGRAM: &str = "kprobe_multi";
    object::with(&[PROGRAM], &[], |loaded| {
        loaded.attach_kprobe_multi(PROGRAM, "__x64_sys_getpgid").map(drop)
    })
}

/// Iterates over all tasks with a program that does nothing.
pub fn iterate_tasks() -> ProbeResult {
    const PROGRAM: &str = "task_iterator";
    object::with(&[PROGRAM], &[], |loaded| {
        loaded.attach(PROGRAM)?.iterate().map_err(|error| ProbeError::of(PROGRAM, &error))
    })
}

/// Creates a map.
pub fn make(map: &str) -> ProbeResult {
    object::with(&[], &[map], |_| Ok(()))
}

/// Creates an array and maps it into memory.
pub fn map_into_memory() -> ProbeResult {
    const MAP: &str = "mmapable";
    object::with(&[], &[MAP], |loaded| match MappedArray::<u64>::new(&loaded.map(MAP)?, 1) {
        Ok(_) => Ok(()),
        Err(Error::Io { cause, .. }) => Err(ProbeError::of(MAP, &cause)),
        Err(_) => Err(ProbeError::new(MAP, libc::EIO)),
    })
}

/// Puts a ring buffer into an array of ring buffers.
pub fn ring_in_array() -> ProbeResult {
    const RING: &str = "ring_buffer";
    const ARRAY: &str = "ring_array";
    object::with(&[], &[RING, ARRAY], |loaded| loaded.put(ARRAY, &loaded.map(RING)?))
}

/// Attaches an LSM program to the hook of bpf() itself. Returns whether the hook ran it, that is,
/// whether BPF is among the active security modules.
pub fn lsm_runs() -> ProbeResult<bool> {
    const PROGRAM: &str = "lsm";
    object::with(&[PROGRAM], &[COUNTER], |loaded| {
        let _link = loaded.attach(PROGRAM)?;
        // This is itself a bpf() call: the hook runs before the value is read.
        loaded.counter().map(|count| count > 0)
    })
}

/// Runs a loop of may_goto. Returns whether its bound is a time, and not a number of iterations.
pub fn may_goto_is_timed() -> ProbeResult<bool> {
    const PROGRAM: &str = "may_goto";
    const COUNTED: u64 = 1 << 23;
    object::with(&[PROGRAM], &[COUNTER], |loaded| {
        loaded.run(PROGRAM)?;
        // A counted loop stops after this number of rounds. A timed one has another number of
        // rounds, which depends on the machine's speed.
        loaded.counter().map(|rounds| rounds.abs_diff(COUNTED) > 1)
    })
}

/// Queries the tcx programs of the loopback interface: only kernels with tcx know the query.
pub fn tcx() -> ProbeResult {
    const LOOPBACK: i32 = 1;
    let mut options = libbpf_sys::bpf_prog_query_opts {
        sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as _,
        ..Default::default()
    };
    // SAFETY: `options` has no array for IDs, so that only its own fields are written.
    let result = unsafe {
        libbpf_sys::bpf_prog_query_opts(LOOPBACK, libbpf_sys::BPF_TCX_INGRESS, &mut options)
    };
    match result {
        0 => Ok(()),
        // This network namespace has no such interface.
        error if error == -libc::ENODEV => Ok(()),
        error => Err(ProbeError::new("tcx", -error)),
    }
}

/// Runs `probes` without libbpf's messages, because a refusal is no failure here.
pub fn quietly<T>(probes: impl FnOnce() -> T) -> T {
    let before = libbpf_rs::set_print(None);
    let result = probes();
    libbpf_rs::set_print(before);
    result
}
