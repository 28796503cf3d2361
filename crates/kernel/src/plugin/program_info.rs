//! Queries the kernel about loaded programs.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};

use libbpf_rs::libbpf_sys::{self, bpf_prog_info};

use super::load::descriptor;
use crate::error::{ErrorContext, Result};

/// A program's ID, by which other processes open it.
pub fn program_id(program: BorrowedFd<'_>) -> Result<u32> {
    Ok(info(program).doing("read the ID of a plugin's program")?.id)
}

/// A program's name, by its ID. It may be empty.
pub fn name_of(id: u32) -> io::Result<String> {
    // SAFETY: a plain call, which returns a new descriptor of a program.
    let program = descriptor(unsafe { libbpf_sys::bpf_prog_get_fd_by_id(id) })?;
    let letters = info(program.as_fd())?.name.map(|letter| letter as u8);
    let end = letters.iter().position(|letter| *letter == 0).unwrap_or(letters.len());
    Ok(String::from_utf8_lossy(&letters[..end]).into_owned())
}

fn info(program: BorrowedFd<'_>) -> io::Result<bpf_prog_info> {
    // SAFETY: all zeros is a valid value of it.
    let mut info: bpf_prog_info = unsafe { std::mem::zeroed() };
    let mut size = size_of_val(&info) as u32;
    // SAFETY: a destination for the result, with its size.
    let done =
        unsafe { libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &mut info, &mut size) };
    if done < 0 { Err(io::Error::from_raw_os_error(-done)) } else { Ok(info) }
}
