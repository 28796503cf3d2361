//! Faults of a program at run time.

use crate::data_layout::{CUT_SHORT, FULL, LOST, OUTSIDE, OUTSIDE_PACKET};

/// How often each fault occurred.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Faults {
    /// Accesses to elements outside of their arrays.
    pub outside: u64,
    /// Reads outside of the packet.
    pub outside_packet: u64,
    /// Loops that were cut short.
    pub cut_short: u64,
    /// Entries for which a map had no room.
    pub full: u64,
    /// Records that were lost because the kernel's buffer was full.
    pub lost: u64,
}

impl Faults {
    /// Reads the counts of faults from the control memory.
    pub fn of(control: &[u8]) -> Self {
        let count = |at: u32| {
            u64::from_le_bytes(control[at as usize..][..8].try_into().expect("eight bytes"))
        };
        Self {
            outside: count(OUTSIDE),
            outside_packet: count(OUTSIDE_PACKET),
            cut_short: count(CUT_SHORT),
            full: count(FULL),
            lost: count(LOST),
        }
    }
}
