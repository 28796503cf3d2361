//! The builtin functions.

/// A function that the language provides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Builtin {
    /// `now`: the time.
    Now,
    /// `pid`: the process ID.
    Pid,
    /// `tid`: the thread ID.
    Tid,
    /// `uid`: the user ID.
    Uid,
    /// `gid`: the group ID.
    Gid,
    /// `cpu`: the number of the processor.
    Cpu,
    /// `random`: a random number.
    Random,
    /// `comm`: copies the thread's name.
    Comm,
    /// `read_user`: copies bytes from the memory of the process.
    ReadUser,
    /// `read_user_text`: copies a text from the memory of the process.
    ReadUserText,
    /// `strlen`: the length of a text.
    Strlen,
    /// `strcmp`: compares two texts.
    Strcmp,
    /// `strncmp`: compares the beginnings of two texts.
    Strncmp,
    /// `memset`: sets bytes to a value.
    Memset,
    /// `memcpy`: copies bytes.
    Memcpy,
    /// `memcmp`: compares bytes.
    Memcmp,
    /// `has`: returns whether a map has a key.
    Has,
    /// `erase`: removes a key from a map.
    Erase,
    /// `emit`: writes a struct for user space.
    Emit,
    /// `print`: writes a text for user space.
    Print,
    /// `packet8`: a byte of the packet.
    Packet8,
    /// `packet16`: two bytes of the packet, as a number.
    Packet16,
    /// `packet32`: four bytes of the packet, as a number.
    Packet32,
    /// `cut_short`: returns whether a loop was cut short.
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

    /// Whether the compiler emits a loop over bytes for the function, because the kernel has no
    /// helper for it.
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
