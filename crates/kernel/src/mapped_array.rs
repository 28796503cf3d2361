//! A BPF array that user space has mapped: read and written in place, while the gate uses it.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::{self, NonNull};

use crate::error::{ErrorContext, Result};

/// `entries` values of type `T`, whose bytes may change at any time. `T` must be one of the plain
/// types of [`crate::wire`]: any bytes are a valid value of it.
pub struct MappedArray<T> {
    base: NonNull<u8>,
    bytes: usize,
    entries: u32,
    /// The kernel rounds an array's elements up to eight bytes.
    stride: usize,
    value: PhantomData<T>,
}

// SAFETY: the mapping is shared memory that outlives any thread; all access is volatile or atomic.
unsafe impl<T> Send for MappedArray<T> {}
// SAFETY: as above: nothing is ever borrowed from the mapping but atomics.
unsafe impl<T> Sync for MappedArray<T> {}

impl<T: Copy> MappedArray<T> {
    pub fn new(map: &impl AsFd, entries: u32) -> Result<Self> {
        let stride = size_of::<T>().next_multiple_of(8);
        // SAFETY: a plain query.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let bytes = (stride * entries as usize).next_multiple_of(page);
        // SAFETY: a new shared mapping of a map's descriptor at an address of the kernel's choice.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                map.as_fd().as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error()).doing("map the gate's state into memory");
        }
        let base = NonNull::new(base.cast()).expect("mmap does not return address 0");
        Ok(Self { base, bytes, entries, stride, value: PhantomData })
    }

    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// Address of entry `index`, for volatile or atomic access to its fields.
    ///
    /// # Panics
    /// If there is no such entry.
    pub fn entry(&self, index: u32) -> *mut T {
        assert!(index < self.entries, "entry {index} of {}", self.entries);
        // SAFETY: within the mapping, by the line above.
        unsafe { self.base.as_ptr().add(index as usize * self.stride).cast() }
    }

    /// A copy; fields that the gate writes meanwhile may be of different moments.
    pub fn read(&self, index: u32) -> T {
        // SAFETY: `entry` is in bounds and aligned to eight bytes; any bytes are a valid `T`.
        unsafe { ptr::read_volatile(self.entry(index)) }
    }

    /// Overwrites a whole entry that the gate does not write at this time.
    pub fn write(&self, index: u32, value: T) {
        // SAFETY: as for `read`.
        unsafe { ptr::write_volatile(self.entry(index), value) }
    }
}

/// The field of a mapped entry as an atomic.
macro_rules! atomic_field {
    ($mapping:expr, $index:expr, $field:ident) => {{
        let entry = $mapping.entry($index);
        // SAFETY: the field is an aligned u32 within the mapping, and both sides access it as a
        // whole.
        unsafe { std::sync::atomic::AtomicU32::from_ptr(std::ptr::addr_of_mut!((*entry).$field)) }
    }};
}
pub(crate) use atomic_field;

impl<T> Drop for MappedArray<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`; no reference into it outlives `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
