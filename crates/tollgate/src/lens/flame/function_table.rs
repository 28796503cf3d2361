//! Where functions begin, from the sorted table in `.eh_frame_hdr`. Stripped files have it, too.

/// The version, and the encodings of the pointer to `.eh_frame`, the number of entries, and the
/// entries: what all linkers write (Linux Standard Base 5.0, "The .eh_frame_hdr section").
const HEADER: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
const COUNT: usize = 8;
const ENTRIES: usize = 12;
/// The beginning of a function, as its distance from the section, and that of its entry.
const ENTRY_LEN: usize = 8;

/// The beginning of the function with this address, if the section, which is at `section`, has an
/// entry before it. `table`: the section.
pub fn function_start(table: &[u8], section: u64, address: u64) -> Option<u64> {
    if !table.starts_with(&HEADER) {
        return None;
    }
    let count = u32::from_le_bytes(*table.get(COUNT..)?.first_chunk()?) as usize;
    let (entries, _) = table.get(ENTRIES..)?.as_chunks::<ENTRY_LEN>();
    let entries = &entries[..count.min(entries.len())];
    let begin = |entry: &[u8; ENTRY_LEN]| {
        let distance = i32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]);
        section.wrapping_add_signed(distance.into())
    };
    let after = entries.partition_point(|entry| begin(entry) <= address);
    Some(begin(entries.get(after.checked_sub(1)?)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_before_the_address_is_found() {
        let mut table = HEADER.to_vec();
        table.extend([0; 4]);
        table.extend(2u32.to_le_bytes());
        for begin in [-0x1000i32, -0x800] {
            table.extend(begin.to_le_bytes());
            table.extend([0; 4]);
        }
        let find = |address| function_start(&table, 0x5000, address);
        assert_eq!(find(0x3fff), None);
        assert_eq!(find(0x4000), Some(0x4000));
        assert_eq!(find(0x47ff), Some(0x4000));
        assert_eq!(find(0x4801), Some(0x4800));
        assert_eq!(function_start(&table[..11], 0x5000, 0x4000), None);
        assert_eq!(function_start(b"other encodings", 0x5000, 0x4000), None);
    }
}
