//! Reads ring buffers, and decodes the records of a session.

use std::cell::RefCell;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::time::Duration;

use libbpf_rs::{MapCore, RingBuffer, RingBufferBuilder};
use zerocopy::FromBytes;

use crate::error::{ErrorContext as _, Result};
use crate::wire;

/// A reader of a ring buffer, in the thread that created it.
pub struct RingReader {
    ring: RingBuffer<'static>,
    inbox: Rc<RefCell<Vec<Vec<u8>>>>,
}

impl RingReader {
    /// Opens a ring buffer. An error names `doing` as what was attempted.
    pub fn new(map: &dyn MapCore, doing: &'static str) -> Result<Self> {
        let inbox: Rc<RefCell<Vec<Vec<u8>>>> = Rc::default();
        let buffer = Rc::clone(&inbox);
        let mut builder = RingBufferBuilder::new();
        let take = move |bytes: &[u8]| {
            buffer.borrow_mut().push(bytes.to_vec());
            0
        };
        builder.add(map, take).doing(doing)?;
        Ok(Self { ring: builder.build().doing(doing)?, inbox })
    }

    /// A descriptor that is readable when there is a record.
    pub fn descriptor(&self) -> RawFd {
        self.ring.epoll_fd()
    }

    /// The records that were not read yet.
    pub fn read(&self) -> Result<Vec<Vec<u8>>> {
        self.ring.consume().doing("reading a ring buffer")?;
        Ok(self.inbox.take())
    }

    /// Waits for a record, but no longer than `longest`. Returns the records that were not read
    /// yet.
    pub fn wait(&self, longest: Duration) -> Vec<Vec<u8>> {
        // The only error is an interruption by a signal.
        let _ = self.ring.poll(longest);
        self.inbox.take()
    }
}

/// The record, if it has this type ([`wire::record_type`]), which is its first field.
pub fn decode<T: FromBytes>(bytes: &[u8], record_type: u32) -> Option<T> {
    let (tag, _) = u32::read_from_prefix(bytes).ok()?;
    let (record, _) = T::read_from_prefix(bytes).ok()?;
    (tag == record_type).then_some(record)
}

/// The record of a row that has ended, if `bytes` are one.
pub fn row_done(bytes: &[u8]) -> Option<wire::row_done> {
    decode(bytes, wire::RECORD_ROW_DONE)
}

/// The record of a process that has entered a control group of the session, if `bytes` are one.
pub fn cgroup_entered(bytes: &[u8]) -> Option<wire::cgroup_entered> {
    decode(bytes, wire::RECORD_CGROUP_ENTERED)
}

/// The record of a slow call, if `bytes` are one.
pub fn slow_call(bytes: &[u8]) -> Option<wire::slow_call> {
    decode(bytes, wire::RECORD_SLOW_CALL)
}

/// The record of a program that has got a profile, if `bytes` are one.
pub fn guard_program(bytes: &[u8]) -> Option<wire::guard_program_record> {
    decode(bytes, wire::RECORD_GUARD_PROGRAM)
}

/// The record of a sampled blocked interval, if `bytes` are one.
pub fn flame_sleep(bytes: &[u8]) -> Option<wire::flame_sleep> {
    decode(bytes, wire::RECORD_FLAME_SLEEP)
}

/// The record of a sample for a flame graph, if `bytes` are one.
pub fn flame_sample(bytes: &[u8]) -> Option<wire::flame_sample> {
    decode(bytes, wire::RECORD_FLAME_SAMPLE)
}

/// The record of a guard event, if `bytes` are one.
pub fn guard_event(bytes: &[u8]) -> Option<wire::guard_event> {
    decode(bytes, wire::RECORD_GUARD_EVENT)
}

/// The record of a type that a program has named, if `bytes` are one.
pub fn pace_type(bytes: &[u8]) -> Option<wire::pace_type_record> {
    decode(bytes, wire::RECORD_PACE_TYPE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_distinguished_by_type() {
        let mut bytes = [0u8; 12];
        bytes[0] = 1;
        bytes[8] = 9;
        assert_eq!(row_done(&bytes).map(|done| done.row), Some(9));
        assert!(slow_call(&bytes).is_none());
        assert!(row_done(&bytes[..8]).is_none());
        assert!(row_done(&[]).is_none());
    }
}
