//! Records from a session's ring buffer.

use zerocopy::FromBytes;

use crate::wire;

/// Every record begins with its type.
fn decode<T: FromBytes>(bytes: &[u8], record_type: u32) -> Option<T> {
    let (tag, _) = u32::read_from_prefix(bytes).ok()?;
    let (record, _) = T::read_from_prefix(bytes).ok()?;
    (tag == record_type).then_some(record)
}

pub fn group_done(bytes: &[u8]) -> Option<wire::row_done> {
    decode(bytes, wire::RECORD_ROW_DONE)
}

pub fn slow_call(bytes: &[u8]) -> Option<wire::slow_call> {
    decode(bytes, wire::RECORD_SLOW_CALL)
}

pub fn guard_program(bytes: &[u8]) -> Option<wire::guard_program_record> {
    decode(bytes, wire::RECORD_GUARD_PROGRAM)
}

pub fn guard_event(bytes: &[u8]) -> Option<wire::guard_event> {
    decode(bytes, wire::RECORD_GUARD_EVENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_distinguished_by_type() {
        let mut bytes = [0u8; 12];
        bytes[0] = 1;
        bytes[8] = 9;
        assert_eq!(group_done(&bytes).map(|done| done.row), Some(9));
        assert!(slow_call(&bytes).is_none());
        assert!(group_done(&bytes[..8]).is_none());
        assert!(group_done(&[]).is_none());
    }
}
