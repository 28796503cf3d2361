//! The counts of a plugin's faults at run time.

use ecode::Faults;
use serde::{Deserialize, Serialize};

use crate::format::number_of;

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
            (self.outside, "access", "outside an array"),
            (self.outside_packet, "read", "outside a packet"),
            (self.cut_short, "loop", "cut short"),
            (self.full, "entry", "lost because a map was full"),
            (self.lost, "record", "lost because the buffer was full"),
        ];
        let counts = counts.into_iter().filter(|(times, ..)| *times > 0);
        counts
            .map(|(times, one, how)| format!("{} {how}", number_of(times as usize, one)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::FaultCounts;

    #[test]
    fn nouns_agree_with_their_numbers() {
        let one = FaultCounts { outside: 1, outside_packet: 1, cut_short: 1, full: 1, lost: 1 };
        let two = FaultCounts { outside: 2, outside_packet: 2, cut_short: 2, full: 2, lost: 2 };
        let lines = |singular: bool| {
            let all = [
                ["1 access", "2 accesses", "outside an array"],
                ["1 read", "2 reads", "outside a packet"],
                ["1 loop", "2 loops", "cut short"],
                ["1 entry", "2 entries", "lost because a map was full"],
                ["1 record", "2 records", "lost because the buffer was full"],
            ];
            all.map(|[one, two, how]| format!("{} {how}", if singular { one } else { two }))
        };
        assert_eq!((one.lines(), two.lines()), (lines(true).into(), lines(false).into()));
    }
}
