//! A pipe that passes single bytes: one read and one write for each byte, whichever side is first.

use crate::failure::{Failure, check, failed, os_failure};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

pub struct Pipe {
    pub reader: File,
    pub writer: File,
}

impl Pipe {
    pub fn new() -> Result<Self, Failure> {
        Self::with_flags(0)
    }

    pub fn with_flags(flags: libc::c_int) -> Result<Self, Failure> {
        let mut ends: [RawFd; 2] = [-1; 2];
        // SAFETY: `ends` has room for the two descriptors that pipe2 writes.
        let made = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | flags) };
        check(made, "make a pipe")?;
        // SAFETY: pipe2 succeeded, so both descriptors are open, and nothing else owns them.
        let [reader, writer] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
        Ok(Pipe { reader: reader.into(), writer: writer.into() })
    }

    pub fn send(&self) -> Result<(), Failure> {
        (&self.writer).write_all(b".").map_err(|error| os_failure("write to a pipe", error))
    }

    pub fn receive(&self) -> Result<(), Failure> {
        match (&self.reader).read(&mut [0]) {
            Ok(1) => Ok(()),
            Ok(_) => Err(failed("the other end of a pipe was closed too early")),
            Err(error) => Err(os_failure("read from a pipe", error)),
        }
    }
}
