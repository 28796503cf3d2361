//! The counts of a plugin's faults at run time.

use ecode::Faults;
use serde::{Deserialize, Serialize};

use crate::format::count;

/// The counts by kind (docs/ecode.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultCounts {
    pub outside: u64,
    pub outside_packet: u64,
    pub cut_short: u64,
    pub full: u64,
    pub lost: u64,
}

impl From<Faults> for FaultCounts {
    fn from(faults: Faults) -> Self {
        let Faults { outside, outside_packet, cut_short, full, lost } = faults;
        Self { outside, outside_packet, cut_short, full, lost }
    }
}

impl FaultCounts {
    pub fn since(self, before: Self) -> Self {
        Self {
            outside: self.outside - before.outside,
            outside_packet: self.outside_packet - before.outside_packet,
            cut_short: self.cut_short - before.cut_short,
            full: self.full - before.full,
            lost: self.lost - before.lost,
        }
    }

    pub fn lines(self) -> Vec<String> {
        let counts = [
            (self.outside, "accesses outside an array"),
            (self.outside_packet, "reads outside a packet"),
            (self.cut_short, "loops cut short"),
            (self.full, "entries lost because a map was full"),
            (self.lost, "records lost because the buffer was full"),
        ];
        let counts = counts.into_iter().filter(|(times, _)| *times > 0);
        counts.map(|(times, what)| format!("{} {what}", count(times))).collect()
    }
}
