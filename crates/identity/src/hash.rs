//! The hash of names, as the kernel side computes it.

/// 2^64 divided by the golden ratio (Knuth, The Art of Computer Programming 3, 6.4).
pub const GOLDEN_64: u64 = 0x9e37_79b9_7f4a_7c15;

/// Adds a word to a hash.
pub const fn word(hash: u64, word: u64) -> u64 {
    (hash ^ (hash >> 32) ^ word).wrapping_mul(GOLDEN_64)
}

/// The hash of a buffer of whole words, in the byte order of this machine. An incomplete word at
/// the end does not count.
pub fn buffer(bytes: &[u8]) -> u64 {
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().fold(0, |hash, bytes| word(hash, u64::from_ne_bytes(*bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel side has the same constant (`HASH_VECTOR`), and compares its own hash with it.
    const HASH_VECTOR: u64 = 0xee09_2c1c_927a_a8e0;

    #[test]
    fn the_kernel_side_has_the_same_hash() {
        let words = [1, 2, 0xdead_beef_cafe_f00d];
        assert_eq!(words.into_iter().fold(0, word), HASH_VECTOR);
        let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_ne_bytes).collect();
        assert_eq!(buffer(&bytes), HASH_VECTOR);
        assert_eq!(buffer(&[]), 0);
    }
}
