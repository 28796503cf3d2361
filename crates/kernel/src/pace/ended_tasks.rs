//! The records of the tasks that have ended, which user space reads in the gate's memory.

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::atomic::Ordering;

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};

use crate::cpus;
use crate::error::{ErrorContext as _, Result};
use crate::gate::Gate;
use crate::mapped_array::{MappedArray, atomic_field, field, new_mappable};
use crate::wire;

/// The map of all sessions' buffers.
const MAP: &str = "pace_ended_tasks";

/// The buffers of a session, by processor.
pub struct EndedTasks {
    buffers: MappedArray<wire::pace_ended>,
}

/// Makes the buffers of a session. All have the same shape, which the gate must know when it is
/// loaded.
pub(super) fn new_buffers() -> Result<MapHandle> {
    let bytes = size_of::<wire::pace_ended>() * cpus::possible();
    new_mappable("tollgate_ended", bytes as u32, 1)
        .doing("making room for tasks with deadlines that end")
}

impl EndedTasks {
    /// Gives a session buffers, which it keeps until [`release`]. Without them, its tasks end
    /// without records.
    pub fn new(gate: &Gate, session: u32) -> Result<Self> {
        let map = new_buffers()?;
        let descriptor = map.as_fd().as_raw_fd().to_ne_bytes();
        gate.maps
            .get(MAP)
            .update(&session.to_ne_bytes(), &descriptor, MapFlags::ANY)
            .doing("giving a session room for tasks with deadlines that end")?;
        Ok(Self { buffers: MappedArray::new(&map, cpus::possible() as u32)? })
    }

    /// The records that were not read yet, in the order in which the tasks have ended.
    pub fn read(&self) -> Vec<wire::pace_record> {
        let mut records = Vec::new();
        for processor in 0..self.buffers.entries() {
            let taken = atomic_field!(self.buffers, processor, taken);
            let added = atomic_field!(self.buffers, processor, added).load(Ordering::Acquire);
            let all = field!(self.buffers, processor, records);
            for number in taken.load(Ordering::Relaxed)..added {
                let index = number % u64::from(wire::PACE_ENDED_TASKS);
                let record = all.at(index as usize * size_of::<wire::pace_record>());
                records.push(record.read());
            }
            // The gate may use the room of these records from now on.
            taken.store(added, Ordering::Release);
        }
        records.sort_by_key(|record: &wire::pace_record| record.end_ns);
        records
    }
}

/// Takes the buffers away from a session.
pub(super) fn release(gate: &Gate, session: u32) {
    // It fails if the session has none.
    let _ = gate.maps.get(MAP).delete(&session.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros as _;

    use super::*;

    fn ended(processors: u32) -> EndedTasks {
        let file = tempfile::tempfile().expect("a file");
        let bytes = size_of::<wire::pace_ended>() * processors as usize;
        file.set_len(bytes as u64).expect("room");
        EndedTasks { buffers: MappedArray::new(&file, processors).expect("it can be mapped") }
    }

    /// Adds a record as the gate does. Returns false if there is no room.
    fn add(to: &EndedTasks, processor: u32, end_ns: u64) -> bool {
        let added = atomic_field!(to.buffers, processor, added);
        let number = added.load(Ordering::Relaxed);
        let room = u64::from(wire::PACE_ENDED_TASKS);
        if number - field!(to.buffers, processor, taken).read() == room {
            return false;
        }
        let mut record = wire::pace_record::new_zeroed();
        record.end_ns = end_ns;
        let at = (number % room) as usize * size_of::<wire::pace_record>();
        field!(to.buffers, processor, records).at(at).write(record);
        added.store(number + 1, Ordering::Release);
        true
    }

    fn times(of: &EndedTasks) -> Vec<u64> {
        of.read().iter().map(|record| record.end_ns).collect()
    }

    #[test]
    fn records_of_all_processors_are_in_order() {
        let ended = ended(2);
        for (processor, ns) in [(0, 1), (1, 2), (0, 4), (1, 3)] {
            assert!(add(&ended, processor, ns));
        }
        assert_eq!(times(&ended), [1, 2, 3, 4]);
        assert_eq!(times(&ended), []);
    }

    #[test]
    fn a_record_is_read_once_when_the_buffer_wraps() {
        let ended = ended(1);
        let room = u64::from(wire::PACE_ENDED_TASKS);
        // 3 and `room` have no common divisor, so each round begins at another place.
        for round in 0..room {
            let expected = Vec::from_iter(3 * round..3 * round + 3);
            expected.iter().for_each(|ns| assert!(add(&ended, 0, *ns)));
            assert_eq!(times(&ended), expected);
        }
    }

    #[test]
    fn a_full_buffer_can_be_read_and_used_again() {
        let ended = ended(1);
        let room = u64::from(wire::PACE_ENDED_TASKS);
        (0..room).for_each(|ns| assert!(add(&ended, 0, ns)));
        assert!(!add(&ended, 0, room));
        assert_eq!(times(&ended), Vec::from_iter(0..room));
        assert!(add(&ended, 0, room));
        assert_eq!(times(&ended), [room]);
    }
}
