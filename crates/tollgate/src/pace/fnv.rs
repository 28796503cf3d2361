//! The hash function of Fowler, Noll and Vo (FNV-1a, 64 bits): the same for each build and machine.

/// The hash of a text.
pub fn fnv_1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
