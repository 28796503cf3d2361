//! The kinds of arguments.

use crate::Abi;

/// The directory descriptor that means the current directory.
pub const AT_FDCWD: i32 = -100;

/// The kind of an argument, which determines how to print it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ArgumentKind {
    /// The call has no such argument.
    None,
    /// A number of 32 bits.
    Int,
    /// A number as wide as a register, such as a size or an offset.
    Long,
    /// Flags, an address, half of a 64-bit offset, or a value that only the call can interpret.
    Hex,
    /// Permission bits, printed in octal.
    Mode,
    /// A file descriptor, or a negative number for none.
    Fd,
    /// A file descriptor that a path is relative to, or [`AT_FDCWD`].
    DirFd,
    /// The address of a NUL-terminated string that names a file, a device to mount or a message
    /// queue. May be NULL.
    Path,
}

impl ArgumentKind {
    /// The value that the kernel takes from a register. For a `DirFd`, it takes -100 from both
    /// `0xffffff9c` and `0xffffffffffffff9c`, as compilers emit either. `Hex` and `Path` lose only
    /// the bits that the ABI does not have.
    pub const fn value(self, abi: Abi, register: u64) -> i64 {
        match (self, abi) {
            (ArgumentKind::None, _) => 0,
            (ArgumentKind::Int | ArgumentKind::Fd | ArgumentKind::DirFd, _)
            | (ArgumentKind::Long, Abi::I386) => register as i32 as i64,
            (ArgumentKind::Mode, _) => register as u16 as i64,
            (ArgumentKind::Hex | ArgumentKind::Path, Abi::I386) => register as u32 as i64,
            (ArgumentKind::Long | ArgumentKind::Hex | ArgumentKind::Path, _) => register as i64,
        }
    }
}

/// The name of a call and the kinds of its arguments.
pub type CallSignature = (&'static str, &'static [ArgumentKind]);
