//! Calls handlers that are not attached to a hook (`on call`).

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use libbpf_rs::libbpf_sys::{self, bpf_test_run_opts};

use crate::error::{ErrorContext, Result};

/// The maximum number of parameters of a handler that is called (docs/ecode.md).
pub const MAX_ARGUMENTS: usize = 12;

/// Calls a handler once. Returns the low 32 bits of its result.
///
/// # Panics
/// If there are more than [`MAX_ARGUMENTS`] arguments.
pub fn run(program: BorrowedFd<'_>, arguments: &[u64]) -> Result<i32> {
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
