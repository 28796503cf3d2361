//! A plugin's variables, mapped: read and written while it runs.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};
use std::ptr::{self, NonNull};

use libbpf_rs::MapHandle;

use crate::error::{ErrorContext, Result};

pub struct Data {
    pub(super) map: MapHandle,
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is shared memory that outlives any thread; all access is by copies.
unsafe impl Send for Data {}

/// Pages of zeros need no memory yet: they are not written.
const PAGE: usize = 4096;

impl Data {
    pub fn new(map: MapHandle, bytes: usize) -> Result<Self> {
        let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let (length, descriptor) = (bytes.max(1).next_multiple_of(PAGE), map.as_fd().as_raw_fd());
        // SAFETY: a new shared mapping of a map's descriptor at an address of the kernel's choice.
        let base = unsafe { libc::mmap(ptr::null_mut(), length, access, shared, descriptor, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error()).doing("map a plugin's variables into memory");
        }
        let base = NonNull::new(base.cast()).expect("mmap does not return address 0");
        Ok(Self { map, base, bytes })
    }

    /// # Panics
    /// If there are fewer bytes.
    pub fn read(&self, at: usize, length: usize) -> Vec<u8> {
        assert!(at + length <= self.bytes, "{length} bytes at {at} of {}", self.bytes);
        let mut bytes = vec![0; length];
        // SAFETY: within the mapping, by the line above; the plugin may change it meanwhile, as it
        // may any byte.
        unsafe { ptr::copy_nonoverlapping(self.base.as_ptr().add(at), bytes.as_mut_ptr(), length) };
        bytes
    }

    /// # Panics
    /// If there are fewer bytes.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.bytes, "{} bytes at {at} of {}", bytes.len(), self.bytes);
        // Aligned numbers are written as a whole.
        // SAFETY: within the mapping, by the line above.
        unsafe {
            let to = self.base.as_ptr().add(at);
            match bytes.len() {
                2 if at.is_multiple_of(2) => {
                    to.cast::<u16>().write_volatile(u16::from_ne_bytes([bytes[0], bytes[1]]))
                }
                4 if at.is_multiple_of(4) => to
                    .cast::<u32>()
                    .write_volatile(u32::from_ne_bytes(bytes.try_into().expect("4"))),
                8 if at.is_multiple_of(8) => to
                    .cast::<u64>()
                    .write_volatile(u64::from_ne_bytes(bytes.try_into().expect("8"))),
                length => ptr::copy_nonoverlapping(bytes.as_ptr(), to, length),
            }
        }
    }

    /// For memory that is still 0.
    pub fn init(&self, bytes: &[u8]) {
        for (number, page) in bytes.chunks(PAGE).enumerate() {
            if page.iter().any(|byte| *byte != 0) {
                self.write(number * PAGE, page);
            }
        }
    }

    /// Maps the same memory once more.
    pub fn remap(&self) -> Result<Self> {
        Self::new(MapHandle::try_from(&self.map).doing("sharing a plugin's variables")?, self.bytes)
    }

    pub(super) fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.map.as_fd()
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`; no reference into it outlives `self`.
        unsafe {
            libc::munmap(self.base.as_ptr().cast(), self.bytes.max(1).next_multiple_of(PAGE))
        };
    }
}
