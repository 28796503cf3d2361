//! A plugin's global variables, which are read and written while it runs.

use std::os::fd::{AsFd, AsRawFd as _};
use std::ptr;

use libbpf_rs::MapHandle;
use memmap2::{MmapOptions, MmapRaw};

use crate::error::{ErrorContext, Result};

/// The memory of a plugin's global variables, mapped until dropped.
pub struct Data {
    pub(super) map: MapHandle,
    memory: MmapRaw,
    bytes: usize,
}

/// The kernel allocates a page when it is first written.
const PAGE: usize = 4096;

impl Data {
    /// Maps `bytes` bytes of an array with one entry. Fails if the kernel refuses.
    pub fn new(map: MapHandle, bytes: usize) -> Result<Self> {
        let memory = MmapOptions::new()
            .len(bytes.max(1))
            .map_raw(map.as_fd().as_raw_fd())
            .doing("map a plugin's variables into memory")?;
        Ok(Self { map, memory, bytes })
    }

    /// Copies `length` bytes from offset `at` on. The plugin may write them at the same time.
    ///
    /// # Panics
    /// If there are fewer bytes.
    pub fn read(&self, at: usize, length: usize) -> Vec<u8> {
        assert!(at + length <= self.bytes, "{length} bytes at {at} of {}", self.bytes);
        let mut bytes = vec![0; length];
        // SAFETY: within the mapping, by the line above. The plugin may change the bytes meanwhile;
        // any bytes are valid.
        unsafe {
            ptr::copy_nonoverlapping(self.memory.as_ptr().add(at), bytes.as_mut_ptr(), length)
        };
        bytes
    }

    /// Writes bytes from offset `at` on. An aligned number is written as a whole.
    ///
    /// # Panics
    /// If there are fewer bytes.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.bytes, "{} bytes at {at} of {}", bytes.len(), self.bytes);
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

    /// Writes the initial values of all variables into memory that is still 0. Pages of zeros are
    /// skipped, so that they need no memory.
    pub fn init(&self, bytes: &[u8]) {
        for (number, page) in bytes.chunks(PAGE).enumerate() {
            if page.iter().any(|byte| *byte != 0) {
                self.write(number * PAGE, page);
            }
        }
    }

    /// Maps the same memory once more, for another plugin that shares the variables.
    pub fn remap(&self) -> Result<Self> {
        Self::new(MapHandle::try_from(&self.map).doing("sharing a plugin's variables")?, self.bytes)
    }

    pub(super) fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.map.as_fd()
    }
}
