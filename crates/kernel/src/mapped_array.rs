//! BPF arrays that user space has mapped. It reads and writes them in place, while the gate uses
//! them.

use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd as _};
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU16, AtomicU32, AtomicU64};

use libbpf_rs::libbpf_sys::{BPF_F_MMAPABLE, bpf_map_create_opts};
use libbpf_rs::{MapHandle, MapType};
use memmap2::{MmapOptions, MmapRaw};
use zerocopy::{FromBytes, IntoBytes};

use crate::error::{ErrorContext, Result};

/// Makes a BPF array, which user space can map into memory.
pub(crate) fn new_mappable(
    name: &str,
    value_size: u32,
    entries: u32,
) -> libbpf_rs::Result<MapHandle> {
    let options = bpf_map_create_opts {
        sz: size_of::<bpf_map_create_opts>() as _,
        map_flags: BPF_F_MMAPABLE,
        ..Default::default()
    };
    let key_size = size_of::<u32>() as u32;
    MapHandle::create(MapType::Array, Some(name), key_size, value_size, entries, &options)
}

/// Mapped values of type `T`, whose bytes the kernel side may change at any time. So any bytes must
/// be a valid `T` (`FromBytes`). Padding is never written, so that all bytes of the mapping always
/// have a value.
pub struct MappedArray<T> {
    memory: MmapRaw,
    entries: u32,
    /// The kernel rounds an array's elements up to eight bytes.
    stride: usize,
    value: PhantomData<fn() -> T>,
}

impl<T: FromBytes> MappedArray<T> {
    /// Maps the first `entries` entries of a BPF array. Fails if the array is shorter or cannot be
    /// mapped.
    pub fn new(map: &impl AsFd, entries: u32) -> Result<Self> {
        let stride = size_of::<T>().next_multiple_of(8);
        let memory = MmapOptions::new()
            .len(stride * entries as usize)
            .map_raw(map.as_fd().as_raw_fd())
            .doing("map the gate's state into memory")?;
        Ok(Self { memory, entries, stride, value: PhantomData })
    }

    /// The number of mapped entries.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// # Panics
    /// If there is no such entry.
    fn entry(&self, index: u32) -> *mut T {
        assert!(index < self.entries, "entry {index} of {}", self.entries);
        // SAFETY: within the mapping, by the line above.
        unsafe { self.memory.as_mut_ptr().add(index as usize * self.stride).cast() }
    }

    /// A whole entry as a field, for [`field!`].
    pub(crate) fn whole(&self, index: u32) -> Field<'_, T> {
        Field { pointer: self.entry(index), mapping: PhantomData }
    }

    /// A copy of an entry. If the gate writes to it meanwhile, its fields may be of different
    /// moments.
    ///
    /// # Panics
    /// If there is no such entry.
    pub fn read(&self, index: u32) -> T {
        self.whole(index).read()
    }

    /// Overwrites a whole entry, to which the gate must not write at this time.
    ///
    /// # Panics
    /// If there is no such entry.
    pub fn write(&self, index: u32, value: T)
    where
        T: IntoBytes,
    {
        self.whole(index).write(value);
    }
}

/// A field of a mapped entry.
pub(crate) struct Field<'a, F> {
    /// Within the mapping, and aligned.
    pointer: *mut F,
    mapping: PhantomData<&'a MmapRaw>,
}

impl<F> Clone for Field<'_, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F> Copy for Field<'_, F> {}

impl<'a, F> Field<'a, F> {
    /// The part of the field to which `project` points.
    ///
    /// # Panics
    /// If `project` points to something else.
    pub fn part<P>(self, project: impl FnOnce(*mut F) -> *mut P) -> Field<'a, P> {
        let offset = project(self.pointer).addr().wrapping_sub(self.pointer.addr());
        self.at(offset)
    }

    /// The part of the field at an offset in bytes.
    ///
    /// # Panics
    /// If it is not within the field, or not aligned.
    pub fn at<P>(self, offset: usize) -> Field<'a, P> {
        let end = offset.checked_add(size_of::<P>());
        assert!(end.is_some_and(|end| end <= size_of::<F>()), "no field at offset {offset}");
        let pointer = self.pointer.wrapping_byte_add(offset).cast::<P>();
        assert!(pointer.is_aligned(), "no aligned field at offset {offset}");
        Field { pointer, mapping: PhantomData }
    }

    /// A copy of the field.
    pub fn read(self) -> F
    where
        F: FromBytes,
    {
        // SAFETY: within the mapping and aligned; any bytes are a valid value.
        unsafe { self.pointer.read_volatile() }
    }

    /// Stores a value. A number is stored as a whole.
    pub fn write(self, value: F)
    where
        F: IntoBytes,
    {
        // SAFETY: within the mapping and aligned, and all bytes of `value` have a value.
        unsafe { self.pointer.write_volatile(value) }
    }

    /// The field as an atomic, which both sides access as a whole.
    pub fn atomic(self) -> &'a F::Atomic
    where
        F: AtomicNumber,
    {
        // SAFETY: within the mapping, which outlives the reference, and aligned.
        unsafe { F::atomic(self.pointer) }
    }
}

impl<'a, E, const N: usize> Field<'a, [E; N]> {
    /// The elements of the field, which is an array.
    pub fn elements(self) -> impl Iterator<Item = Field<'a, E>> {
        (0..N).map(move |index| self.at(index * size_of::<E>()))
    }
}

/// A number with an atomic type of the same size and alignment.
pub(crate) trait AtomicNumber: Sized {
    type Atomic;

    /// # Safety
    /// `pointer` is valid and aligned for the lifetime of the result.
    unsafe fn atomic<'a>(pointer: *mut Self) -> &'a Self::Atomic;
}

macro_rules! atomic_number {
    ($($number:ty: $atomic:ty),*) => {$(
        impl AtomicNumber for $number {
            type Atomic = $atomic;

            unsafe fn atomic<'a>(pointer: *mut Self) -> &'a $atomic {
                // SAFETY: as promised.
                unsafe { <$atomic>::from_ptr(pointer) }
            }
        }
    )*};
}

atomic_number!(u8: AtomicU8, u16: AtomicU16, u32: AtomicU32, u64: AtomicU64, i32: AtomicI32);

/// The [`Field`] of an entry by its name: `field!(array, index, name)`.
macro_rules! field {
    ($array:expr, $index:expr, $($path:tt)+) => {
        // SAFETY: a pointer to an entry within the mapping, and only its address is used.
        $array.whole($index).part(|entry| unsafe { &raw mut (*entry).$($path)+ })
    };
}
pub(crate) use field;

/// The field of an entry as an atomic, by its name.
macro_rules! atomic_field {
    ($array:expr, $index:expr, $($path:tt)+) => {
        $crate::mapped_array::field!($array, $index, $($path)+).atomic()
    };
}
pub(crate) use atomic_field;

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::atomic::Ordering;

    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, FromBytes, IntoBytes, zerocopy::Immutable)]
    #[repr(C)]
    struct Entry {
        number: u32,
        halves: [u16; 2],
        words: [u64; 3],
    }

    fn array(entries: u32) -> (File, MappedArray<Entry>) {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(4096).expect("room");
        let array = MappedArray::new(&file, entries).expect("it can be mapped");
        (file, array)
    }

    #[test]
    fn fields_are_read_and_written_in_place() {
        let (_file, array) = array(3);
        field!(array, 1, number).write(7);
        field!(array, 1, halves[1]).write(9);
        atomic_field!(array, 1, words[2]).fetch_add(5, Ordering::SeqCst);
        assert_eq!(array.read(1), Entry { number: 7, halves: [0, 9], words: [0, 0, 5] });
        assert_eq!(array.read(0), array.read(2));
        let words = field!(array, 1, words).elements().map(|word| word.read());
        assert_eq!(words.collect::<Vec<_>>(), [0, 0, 5]);
        assert_eq!(field!(array, 1, halves).at::<u32>(0).read(), 9 << 16);
    }

    #[test]
    #[should_panic = "entry 3 of 3"]
    fn entries_are_bounded() {
        let (_file, array) = array(3);
        array.read(3);
    }

    #[test]
    #[should_panic = "no field at offset"]
    fn a_field_is_within_its_entry() {
        let (_file, array) = array(3);
        array.whole(0).part(|entry| entry.wrapping_add(1).cast::<u8>());
    }

    #[test]
    #[should_panic = "no aligned field"]
    fn a_field_is_aligned() {
        let (_file, array) = array(3);
        field!(array, 0, halves).at::<u16>(1);
    }
}
