//! How much of the machine's memory a plugin's maps may take.

use ecode::MapShape;

use crate::error::{Error, Result};

/// The size of struct htab_elem (v6.18 kernel/bpf/hashtab.c). After it come the key and the value,
/// each rounded up to 8 bytes.
const ENTRY_BYTES: u64 = 48;
/// The size of struct bucket, in the same file. There are as many buckets as entries, rounded up to
/// a power of two.
const BUCKET_BYTES: u64 = 16;
const MIB: u64 = 1 << 20;

/// Fails if the maps need more than half of the available memory. The kernel allocates all entries
/// at once, and reclaims what it needs from other processes.
pub fn fits<'a>(maps: impl Iterator<Item = &'a MapShape>) -> Result<()> {
    let needed: u64 = maps.map(bytes).sum();
    // No file is read if there are no new maps.
    if needed == 0 {
        return Ok(());
    }
    match available() {
        Some(available) if needed > available / 2 => {
            Err(Error::TooMuchMemory { needed: needed / MIB, available: available / MIB })
        }
        _ => Ok(()),
    }
}

fn bytes(map: &MapShape) -> u64 {
    let entries = u64::from(map.entries);
    let words = |bytes: u32| u64::from(bytes.next_multiple_of(8));
    entries * (ENTRY_BYTES + words(map.key_bytes) + words(map.value_bytes))
        + entries.next_power_of_two() * BUCKET_BYTES
}

/// The memory that is available without swapping, in bytes (MemAvailable of proc_meminfo(5)).
fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(entries: u32) -> MapShape {
        MapShape { name: "m".into(), key_bytes: 4, value_bytes: 8, entries }
    }

    #[test]
    fn map_memory_is_summed() {
        assert_eq!(bytes(&map(1000)), 1000 * 64 + 1024 * 16);
        assert!(fits([map(1000)].iter()).is_ok());
        let many = vec![map(1 << 24); 100_000];
        assert!(matches!(fits(many.iter()), Err(Error::TooMuchMemory { .. })));
    }
}
