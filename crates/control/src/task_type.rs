//! The numbers by which programs name their types of tasks (docs/pace.md).

/// The hash function of Fowler, Noll and Vo (FNV-1a, 64 bits): the same for each build and machine.
pub fn fnv_1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The number of a type of tasks. It is never 0, because 0 stands for no type.
pub fn task_type_id(name: &[u8]) -> u64 {
    fnv_1a(name).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the authors' test vectors.
    #[test]
    fn hash_is_fnv_1a() {
        assert_eq!(task_type_id(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(task_type_id(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
