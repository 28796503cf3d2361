//! The three ABIs by which programs make system calls.

use std::fmt;

/// The ABI of a call, which determines the meaning of its number. The values are those of
/// `enum abi` in `bpf/wire/gate.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Abi {
    /// `syscall` from 64-bit code.
    X86_64 = 0,
    /// `int $0x80`, or `sysenter` and `syscall` from 32-bit code.
    I386 = 1,
    /// `syscall` with bit 30 of the number set: 32-bit pointers in 64-bit code. Numbers in this
    /// crate do not have that bit.
    X32 = 2,
}

impl Abi {
    /// All ABIs.
    pub const ALL: [Abi; 3] = [Abi::X86_64, Abi::I386, Abi::X32];

    /// The name that reports and JSON use.
    pub const fn as_str(self) -> &'static str {
        match self {
            Abi::X86_64 => "x86-64",
            Abi::I386 => "i386",
            Abi::X32 => "x32",
        }
    }
}

impl fmt::Display for Abi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
