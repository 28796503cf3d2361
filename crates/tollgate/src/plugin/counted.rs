//! What went otherwise than it was written, and how often.

use ecode::interpret::Faults;
use serde::{Deserialize, Serialize};

use crate::format::number_of;

/// docs/ecode.md describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    pub outside: u64,
    pub outside_packet: u64,
    pub cut_short: u64,
    pub full: u64,
    pub lost: u64,
}

impl From<Faults> for Counted {
    fn from(faults: Faults) -> Self {
        let Faults { outside, outside_packet, cut_short, full, lost } = faults;
        Self { outside, outside_packet, cut_short, full, lost }
    }
}

impl Counted {
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
        let told = [
            (self.outside, "an element outside of its array"),
            (self.outside_packet, "bytes outside of their packet"),
            (self.cut_short, "a loop that was cut short"),
            (self.full, "an entry for which a map had no room"),
            (self.lost, "a record for which there was no room"),
        ];
        let told = told.into_iter().filter(|(times, _)| *times > 0);
        told.map(|(times, what)| format!("{}: {what}", number_of(times as usize, "time"))).collect()
    }
}
