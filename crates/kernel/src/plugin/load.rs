//! Loads a program's instructions into the kernel.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::ptr;

use libbpf_rs::PrintLevel;
use libbpf_rs::libbpf_sys::{self, bpf_prog_load_opts};

use super::verifier_log::line;
use crate::error::{Error, ErrorContext, Result};

/// Room for the verifier's log.
const LOG_BYTES: usize = 64 << 10;

/// What the kernel has to know to load a program, besides its instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadAttributes {
    /// `enum bpf_prog_type`.
    pub program: u32,
    /// `enum bpf_attach_type`.
    pub attach: u32,
    /// The number of the tracepoint's type among the kernel's types, or 0 if the program is
    /// attached elsewhere.
    pub types: u32,
    /// `BPF_F_…`.
    pub flags: u32,
}

/// A program's debug information, by which the kernel knows its types, functions and lines.
pub struct Debug<'a> {
    /// The types, as BTF.
    pub btf: &'a [u8],
    /// `struct bpf_func_info`.
    pub functions: &'a [[u32; 2]],
    /// `struct bpf_line_info`.
    pub lines: &'a [[u32; 4]],
}

/// Loads a program. If the kernel refuses, the error has the verifier's log, and the line at which
/// the verifier stopped.
pub fn load_program(
    instructions: &[[u8; 8]],
    attributes: &LoadAttributes,
    debug: Option<Debug<'_>>,
) -> Result<OwnedFd> {
    let mut options = bpf_prog_load_opts {
        sz: size_of::<bpf_prog_load_opts>() as _,
        expected_attach_type: attributes.attach,
        attach_btf_id: attributes.types,
        prog_flags: attributes.flags,
        ..Default::default()
    };
    let types = debug.as_ref().map(|debug| load_types(debug.btf)).transpose()?;
    if let (Some(types), Some(debug)) = (&types, &debug) {
        options.prog_btf_fd = types.as_raw_fd() as u32;
        options.func_info = debug.functions.as_ptr().cast();
        options.func_info_cnt = debug.functions.len() as u32;
        options.func_info_rec_size = size_of::<[u32; 2]>() as u32;
        options.line_info = debug.lines.as_ptr().cast();
        options.line_info_cnt = debug.lines.len() as u32;
        options.line_info_rec_size = size_of::<[u32; 4]>() as u32;
    }
    load(instructions, attributes.program, &options).or_else(|refusal| {
        // Only after a refusal is the verifier's log worth its cost.
        let mut log = vec![0_u8; LOG_BYTES];
        let with_log = bpf_prog_load_opts {
            log_level: 1,
            log_buf: log.as_mut_ptr().cast(),
            log_size: log.len() as u32,
            ..options
        };
        load(instructions, attributes.program, &with_log).map_err(|_| {
            let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
            let log = String::from_utf8_lossy(&log[..end]).into_owned();
            // libbpf prints the log of the gate's programs in the same way.
            if let Some((_, print)) = libbpf_rs::get_print() {
                print(PrintLevel::Warn, log.clone());
            }
            let line = debug.and_then(|debug| line(&log, debug.lines));
            Error::Refused { log, line, cause: refusal }
        })
    })
}

/// Encodes an instruction. `registers` has the destination in its low four bits, and the source in
/// the high ones.
pub fn instruction(code: u8, registers: u8, offset: i16, immediate: i32) -> [u8; 8] {
    let mut bytes = [code, registers, 0, 0, 0, 0, 0, 0];
    bytes[2..4].copy_from_slice(&offset.to_le_bytes());
    bytes[4..].copy_from_slice(&immediate.to_le_bytes());
    bytes
}

fn load_types(btf: &[u8]) -> Result<OwnedFd> {
    // SAFETY: valid bytes and their number; no options.
    let types =
        unsafe { libbpf_sys::bpf_btf_load(btf.as_ptr().cast(), btf.len() as _, ptr::null_mut()) };
    descriptor(types).doing("load a plugin's type information")
}

fn load(
    instructions: &[[u8; 8]],
    program: u32,
    options: &bpf_prog_load_opts,
) -> io::Result<OwnedFd> {
    let name = CString::new("plugin").expect("it has no NUL");
    let license = CString::new("GPL").expect("it has no NUL");
    let mut options = *options;
    // SAFETY: all that the options point to lives until the call is over, with the sizes that they
    // give.
    descriptor(unsafe {
        libbpf_sys::bpf_prog_load(
            program,
            name.as_ptr(),
            license.as_ptr(),
            instructions.as_ptr().cast(),
            instructions.len() as _,
            &mut options,
        )
    })
}

/// Converts a result of libbpf, which is a new descriptor or a negative errno.
pub fn descriptor(number: i32) -> io::Result<OwnedFd> {
    if number < 0 {
        return Err(io::Error::from_raw_os_error(-number));
    }
    // SAFETY: a new descriptor that only this process owns.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
