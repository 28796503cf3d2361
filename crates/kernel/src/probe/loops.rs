//! How this kernel bounds the loops of plugins. Probed where they are compiled, in less time than
//! opening `probe.bpf.c` takes.

use std::os::fd::{FromRawFd as _, OwnedFd};
use std::ptr;
use std::sync::OnceLock;

use ecode::Loops;
use libbpf_rs::libbpf_sys;

/// r0 = 0; round: may_goto end; goto round; end: exit
const ROUNDS: [u64; 4] = [0xb7, 0xe5 | 1 << 16, 0x05 | 0xfffe << 16, 0x95];

/// As this kernel bounds them. A process that may not probe gets what newer kernels have.
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
