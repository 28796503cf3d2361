//! Finds the objects `_PSS` in ACPI tables: the speeds of a processor and their power.
//!
//! Only the form in which compilers write this object is read: a name with a package of packages of
//! constants. Source: ACPI specification 6.5, sections 8.4.5.2 (`_PSS`) and 20.2 (AML grammar).

const NAME_OP: u8 = 0x08;
const PACKAGE_OP: u8 = 0x12;

/// A performance state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PerformanceState {
    /// The speed.
    pub mhz: u64,
    /// The maximum power.
    pub milliwatts: u64,
}

/// The performance states of each `_PSS` in a table.
pub fn packages(table: &[u8]) -> Vec<Vec<PerformanceState>> {
    let pattern = [NAME_OP, b'_', b'P', b'S', b'S'];
    let starts = table.windows(pattern.len()).enumerate().filter(|(_, bytes)| *bytes == pattern);
    starts.filter_map(|(at, _)| states(table.get(at + pattern.len()..)?)).collect()
}

fn states(bytes: &[u8]) -> Option<Vec<PerformanceState>> {
    let (mut elements, count) = package(&mut &*bytes)?;
    let mut states = Vec::new();
    for _ in 0..count {
        let (mut fields, _) = package(&mut elements)?;
        let (mhz, milliwatts) = (integer(&mut fields)?, integer(&mut fields)?);
        states.push(PerformanceState { mhz, milliwatts });
    }
    (!states.is_empty()).then_some(states)
}

/// Takes a package from the bytes. Returns its elements' bytes and their number.
fn package<'table>(bytes: &mut &'table [u8]) -> Option<(&'table [u8], u8)> {
    if take(bytes, 1)? != [PACKAGE_OP] {
        return None;
    }
    // PkgLength: the two high bits of the first byte are the number of bytes that follow. The
    // length includes these bytes.
    let lead = take(bytes, 1)?[0];
    let more = usize::from(lead >> 6);
    let rest = take(bytes, more)?;
    let length = match more {
        0 => usize::from(lead & 0x3f),
        _ => {
            rest.iter().rev().fold(0, |length, byte| length << 8 | usize::from(*byte)) << 4
                | usize::from(lead & 0x0f)
        }
    };
    let content = take(bytes, length.checked_sub(1 + more)?)?;
    let (count, elements) = content.split_first()?;
    Some((elements, *count))
}

/// An integer, by its prefix (ACPI 6.5, 20.2.3): ZeroOp, OneOp, Byte, Word, DWord or QWord.
fn integer(bytes: &mut &[u8]) -> Option<u64> {
    let size = match take(bytes, 1)?[0] {
        0x00 => return Some(0),
        0x01 => return Some(1),
        0x0a => 1,
        0x0b => 2,
        0x0c => 4,
        0x0e => 8,
        _ => return None,
    };
    Some(take(bytes, size)?.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

fn take<'table>(bytes: &mut &'table [u8], count: usize) -> Option<&'table [u8]> {
    let (taken, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(taken)
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packed(count: u8, content: &[u8]) -> Vec<u8> {
        let length = content.len() + 2;
        let head = match length {
            ..0x40 => vec![length as u8],
            _ => vec![0x40 | ((length + 1) & 0x0f) as u8, ((length + 1) >> 4) as u8],
        };
        [&[PACKAGE_OP][..], &head, &[count], content].concat()
    }

    /// A table with one `_PSS`, as iasl compiles it.
    pub fn table(states: &[(u32, u32)]) -> Vec<u8> {
        let state = |(mhz, milliwatts): &(u32, u32)| {
            let dword = |value: u32| [&[0x0c][..], &value.to_le_bytes()].concat();
            let bytes = [dword(*mhz), dword(*milliwatts), vec![0x0a, 10, 0x0a, 10, 0x01, 0x01]];
            packed(6, &bytes.concat())
        };
        let content: Vec<u8> = states.iter().flat_map(state).collect();
        [&[0xff, NAME_OP][..], b"_PSS", &packed(states.len() as u8, &content), &[0xff]].concat()
    }

    #[test]
    fn states_of_a_table() {
        let five = [(3000, 30_000), (2400, 20_000), (1800, 12_000), (1200, 7000), (800, 4000)];
        let found = packages(&[table(&five), table(&five[..1])].concat());
        let pairs = |states: &Vec<PerformanceState>| -> Vec<_> {
            states.iter().map(|state| (state.mhz as u32, state.milliwatts as u32)).collect()
        };
        assert_eq!(
            found.iter().map(pairs).collect::<Vec<_>>(),
            [five.to_vec(), five[..1].to_vec()]
        );
    }

    #[test]
    fn truncated_or_other_objects_are_ignored() {
        let whole = table(&[(800, 4000)]);
        for length in 0..whole.len() - 1 {
            assert_eq!(packages(&whole[..length]), Vec::<Vec<_>>::new(), "{length} bytes");
        }
        assert!(packages(b"\x08_PSS\x14\x05").is_empty());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            packages(&[&[NAME_OP][..], b"_PSS", &[PACKAGE_OP], &bytes].concat());
        }
    }
}
