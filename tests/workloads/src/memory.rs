//! Anonymous memory by a direct mmap: the allocator's own calls depend on its state.

use crate::failure::{Failure, os_failure};
use std::io;
use std::ptr;

pub struct AnonymousMapping {
    start: *mut u8,
    length: usize,
}

impl AnonymousMapping {
    pub fn anonymous(length: usize) -> Result<Self, Failure> {
        // SAFETY: a new private mapping at an address of the kernel's choice replaces no memory.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            return Err(os_failure(format!("map {length} bytes"), error));
        }
        Ok(AnonymousMapping { start: start.cast(), length })
    }

    pub fn start(&self) -> *mut u8 {
        self.start
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is readable, writable, zeroed and `length` bytes long; the borrow of
        // `self` keeps it alive and unshared.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.length) }
    }
}

impl Drop for AnonymousMapping {
    fn drop(&mut self) {
        // SAFETY: this is exactly the range that mmap returned, and no borrow of it is left.
        unsafe { libc::munmap(self.start.cast(), self.length) };
    }
}
