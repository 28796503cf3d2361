//! Probes how this kernel bounds the loops of plugins. Each process that compiles plugins does
//! this, so it does not open the object of `probe.bpf.c`, which takes longer.

use std::os::fd::{FromRawFd as _, OwnedFd};
use std::ptr;
use std::sync::OnceLock;

use ecode::Loops;
use libbpf_rs::libbpf_sys;

/// r0 = 0; round: may_goto end; goto round; end: exit
const ROUNDS: [u64; 4] = [0xb7, 0xe5 | 1 << 16, 0x05 | 0xfffe << 16, 0x95];

/// How this kernel bounds loops. For a process that may not load programs, this is what newer
/// kernels do. Probed once for each process.
pub fn loops() -> Loops {
    static LOOPS: OnceLock<Loops> = OnceLock::new();
    *LOOPS.get_or_init(|| {
        // SAFETY: valid instructions and their number; no options.
        let program = unsafe {
            libbpf_sys::bpf_prog_load(
                libbpf_sys::BPF_PROG_TYPE_SOCKET_FILTER,
                ptr::null(),
                c"GPL".as_ptr(),
                ROUNDS.as_ptr().cast(),
                ROUNDS.len() as _,
                ptr::null_mut(),
            )
        };
        if program >= 0 {
            // SAFETY: a new descriptor that only this process owns.
            drop(unsafe { OwnedFd::from_raw_fd(program) });
        }
        if program >= 0 || program == -libc::EPERM { Loops::MayGoto } else { Loops::Helper }
    })
}
