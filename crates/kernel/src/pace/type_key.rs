//! What distinguishes types of tasks in the gate.

use std::ffi::c_char;

use crate::wire;

/// A type of tasks, as the gate distinguishes them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TypeKey {
    /// The file name of the executable, cut as the gate cuts it.
    pub program: [c_char; wire::PACE_PROGRAM_LEN as usize],
    /// The program's own ID of the type; 0: a rule has inferred its tasks.
    pub type_id: u64,
    /// The number of the rule.
    pub rule: u16,
    /// One of [`wire::pace_descriptor`].
    pub descriptor: u16,
    /// Of a socket, the local port; of an input device, the event: type << 16 | code; or 0.
    pub detail: u32,
}

impl TypeKey {
    /// The type of a task that has ended.
    pub fn of_task(record: &wire::pace_record) -> Self {
        Self {
            program: record.program,
            type_id: record.type_id,
            rule: record.rule,
            descriptor: record.descriptor,
            detail: record.detail,
        }
    }

    pub(super) fn wire(&self) -> wire::pace_type_key {
        wire::pace_type_key {
            type_: self.type_id,
            detail: self.detail,
            rule: self.rule,
            descriptor: self.descriptor,
            program: self.program,
        }
    }
}
