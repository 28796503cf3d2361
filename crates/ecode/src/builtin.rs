//! The builtin functions.

/// A function that the language provides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Builtin {
    Now,
    Pid,
    Tid,
    Uid,
    Gid,
    Cpu,
    Random,
    Comm,
    ReadUser,
    ReadUserText,
    Strlen,
    Strcmp,
    Strncmp,
    Memset,
    Memcpy,
    Memcmp,
    Has,
    Erase,
    Emit,
    Print,
    Packet8,
    Packet16,
    Packet32,
    CutShort,
}

impl Builtin {
    /// Whether the function writes a record for user space.
    pub fn has_record(self) -> bool {
        matches!(self, Self::Emit | Self::Print)
    }

    /// The number of bytes that the function reads from the packet, if it does.
    pub fn packet_bytes(self) -> Option<u8> {
        match self {
            Self::Packet8 => Some(1),
            Self::Packet16 => Some(2),
            Self::Packet32 => Some(4),
            _ => None,
        }
    }

    /// Whether the function is compiled as a loop over bytes, because it is not a helper of the
    /// kernel.
    pub fn is_byte_loop(self) -> bool {
        matches!(
            self,
            Self::Strlen
                | Self::Strcmp
                | Self::Strncmp
                | Self::Memset
                | Self::Memcpy
                | Self::Memcmp
        )
    }
}
