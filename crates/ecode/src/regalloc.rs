//! Register allocation by linear scan (Poletto and Sarkar, 1999): assigns each virtual register a
//! register of the kernel or a slot of the frame.

use crate::ir::IrFunction;
use crate::liveness::{LiveInterval, RegisterSet, live_in, live_intervals};
use crate::outline::SharedRegisters;
use crate::spill_slots::SpillSlots;

/// Registers that calls preserve. The last one is reserved for operands in a function with loops,
/// and for the outer frame in a loop body.
const CALLEE_SAVED: [u8; 4] = [FIRST_CALLEE_SAVED, 7, 8, LAST_CALLEE_SAVED];
pub const FIRST_CALLEE_SAVED: u8 = 6;
pub const LAST_CALLEE_SAVED: u8 = 9;
/// Registers that calls overwrite, and that hold the arguments.
const CALLER_SAVED: [u8; 4] = [2, 3, 4, 5];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StorageLocation {
    Register(u8),
    /// A slot of eight bytes, by its offset from the beginning of the frame.
    Frame(u32),
    /// A slot in the frame that a function shares with its loop bodies.
    Shared(u32),
    /// The register is never read.
    None,
}

pub struct Allocation {
    pub locations: Vec<StorageLocation>,
    /// The size of the frame with the spill slots.
    pub frame_bytes: u32,
    /// The registers that are live at the beginning of each block.
    pub live_in: Vec<RegisterSet>,
}

/// Allocates the registers of a function. Registers in `shared` have their slots already.
pub fn allocate(function: &IrFunction, shared: &SharedRegisters) -> Allocation {
    let live_in = live_in(function);
    let has_last = !function.has_loops() && !function.is_loop_body;
    let own = &CALLEE_SAVED[..CALLEE_SAVED.len() - usize::from(!has_last)];
    let mut locations = vec![StorageLocation::None; function.registers];
    shared.each().for_each(|(register, slot)| locations[register] = StorageLocation::Shared(slot));
    // The intervals that occupy a register at this point.
    let mut active: Vec<(LiveInterval, u8)> = Vec::new();
    let mut slots = SpillSlots::above_frame(function.frame_bytes);
    for interval in live_intervals(function, &live_in) {
        if matches!(locations[interval.register], StorageLocation::Shared(_)) {
            continue;
        }
        active.retain(|(other, _)| other.to >= interval.from);
        let is_free = |register: &u8| active.iter().all(|(_, taken)| taken != register);
        let caller_saved = CALLER_SAVED.iter().filter(|_| !interval.crosses_call);
        if let Some(register) = caller_saved.chain(own).copied().find(is_free) {
            locations[interval.register] = StorageLocation::Register(register);
            active.push((interval, register));
            continue;
        }
        // Spill the interval that ends last.
        let fits = |(other, register): &(LiveInterval, u8)| {
            other.to > interval.to && (!interval.crosses_call || CALLEE_SAVED.contains(register))
        };
        let longest =
            (0..active.len()).filter(|at| fits(&active[*at])).max_by_key(|at| active[*at].0.to);
        let loser = match longest {
            Some(at) => {
                let (other, register) = active[at];
                active[at] = (interval, register);
                locations[interval.register] = StorageLocation::Register(register);
                other
            }
            None => interval,
        };
        locations[loser.register] = StorageLocation::Frame(slots.alloc(&loser));
    }
    Allocation { locations, frame_bytes: slots.frame_bytes, live_in }
}
