//! Spill slots: frame slots for virtual registers that have no register of the kernel.

use crate::liveness::LiveInterval;

/// The spill slots of a frame, and the end of each slot's current use.
pub struct SpillSlots {
    pub frame_bytes: u32,
    free: Vec<(u32, usize)>,
}

impl SpillSlots {
    pub fn above_frame(frame_bytes: u32) -> Self {
        Self { frame_bytes: frame_bytes.next_multiple_of(8), free: Vec::new() }
    }

    /// Allocates a slot whose last use ends before the interval, or else a new slot. Of several
    /// such slots, the last one is taken, so that nested expressions reuse the same slots. The
    /// verifier distinguishes what each path left in a slot, so each further slot multiplies the
    /// number of states.
    pub fn alloc(&mut self, interval: &LiveInterval) -> u32 {
        if let Some((slot, free)) =
            self.free.iter_mut().rev().find(|(_, free)| *free < interval.from)
        {
            *free = interval.to;
            return *slot;
        }
        self.free.push((self.frame_bytes, interval.to));
        self.frame_bytes += 8;
        self.frame_bytes - 8
    }
}
