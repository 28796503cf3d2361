//! A plugin's variables, mapped: read and written while it runs.

use std::os::fd::{AsFd, AsRawFd as _};
use std::ptr;

use libbpf_rs::MapHandle;
use memmap2::{MmapOptions, MmapRaw};

use crate::error::{ErrorContext, Result};

/// Mapped until dropped.
pub struct Data {
    pub(super) map: MapHandle,
    memory: MmapRaw,
    bytes: usize,
}

/// Pages of zeros need no memory yet: they are not written.
const PAGE: usize = 4096;

impl Data {
    pub fn new(map: MapHandle, bytes: usize) -> Result<Self> {
        let memory = MmapOptions::new()
            .len(bytes.max(1))
            .map_raw(map.as_fd().as_raw_fd())
            .doing("map a plugin's variables into memory")?;
        Ok(Self { map, memory, bytes })
    }

    /// # Panics
    /// If there are fewer bytes.
    pub fn read(&self, at: usize, length: usize) -> Vec<u8> {
        assert!(at + length <= self.bytes, "{length} bytes at {at} of {}", self.bytes);
        let mut bytes = vec![0; length];
        // SAFETY: within the mapping, by the line above; the plugin may change it meanwhile, as it
        // may any byte.
        unsafe {
            ptr::copy_nonoverlapping(self.memory.as_ptr().add(at), bytes.as_mut_ptr(), length)
        };
        bytes
    }

    /// # Panics
    /// If there are fewer bytes.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.bytes, "{} bytes at {at} of {}", bytes.len(), self.bytes);
        // Aligned numbers are written as a whole.
        // SAFETY: within the mapping, by the line above.
        unsafe {
            let to = self.memory.as_mut_ptr().add(at);
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
