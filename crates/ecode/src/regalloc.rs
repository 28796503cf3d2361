//! Register allocation by linear scan (Poletto and Sarkar, 1999): assigns each virtual register a
//! register of the kernel or a slot of the frame.

use crate::ir::{Inst, IrFunction, Register};
use crate::outline::SharedRegisters;

/// Registers that calls preserve. The last one is reserved in a function with loops, for operands,
/// and in a loop body, for the outer frame.
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
    Kept(u32),
    /// The register is never read.
    None,
}

#[derive(Debug, Clone, Copy)]
pub struct LiveInterval {
    pub register: Register,
    pub from: usize,
    pub to: usize,
    /// A call lies in the interval, or uses the register as an argument.
    crosses_call: bool,
}

/// A set of virtual registers, with one bit for each.
#[derive(Clone, PartialEq)]
pub struct RegisterSet(Vec<u64>);

impl RegisterSet {
    pub fn new(registers: usize) -> Self {
        Self(vec![0; registers.div_ceil(64)])
    }

    pub fn insert(&mut self, register: Register) {
        self.0[register / 64] |= 1 << (register % 64);
    }

    fn remove(&mut self, register: Register) {
        self.0[register / 64] &= !(1 << (register % 64));
    }

    pub fn union_with(&mut self, other: &Self) -> bool {
        let mut is_new = false;
        for (word, more) in self.0.iter_mut().zip(&other.0) {
            is_new |= *more & !*word != 0;
            *word |= more;
        }
        is_new
    }

    pub fn contains(&self, register: Register) -> bool {
        self.0[register / 64] >> (register % 64) & 1 != 0
    }

    pub fn iter(&self) -> impl Iterator<Item = Register> {
        let words = self.0.iter().enumerate().filter(|(_, word)| **word != 0);
        words.flat_map(|(at, word)| {
            (0..64).filter(move |bit| word >> bit & 1 != 0).map(move |bit| at * 64 + bit)
        })
    }
}

/// The registers that are live at the beginning of each block.
pub fn needed(function: &IrFunction) -> Vec<RegisterSet> {
    let mut needed = vec![RegisterSet::new(function.registers); function.blocks.len()];
    let mut is_changed = true;
    while is_changed {
        is_changed = false;
        for (number, block) in function.blocks.iter().enumerate().rev() {
            let mut live = RegisterSet::new(function.registers);
            for next in block.end.successors() {
                live.union_with(&needed[next]);
            }
            block.end.writes().into_iter().for_each(|register| live.remove(register));
            block.end.reads(|register| live.insert(register));
            for (step, _) in block.steps.iter().rev() {
                step.writes().into_iter().for_each(|register| live.remove(register));
                step.reads(|register| live.insert(register));
            }
            is_changed |= needed[number].union_with(&live);
        }
    }
    needed
}

pub fn live_intervals(function: &IrFunction, needed: &[RegisterSet]) -> Vec<LiveInterval> {
    let mut spans: Vec<Option<(usize, usize)>> = vec![None; function.registers];
    let mut calls = Vec::new();
    let mut at = 0;
    let mut touch = |register: Register, at: usize| {
        let span = spans[register].get_or_insert((at, at));
        *span = (span.0.min(at), span.1.max(at));
    };
    for (number, block) in function.blocks.iter().enumerate() {
        needed[number].iter().for_each(|register| touch(register, at));
        for (step, _) in &block.steps {
            at += 2;
            // Parameters arrive in the argument registers of calls.
            if step.is_call() || matches!(step, Inst::Argument { .. }) {
                calls.push(at);
            }
            step.reads(|register| touch(register, at));
            // The result is written after the operands are read.
            step.writes().into_iter().for_each(|register| touch(register, at + 1));
        }
        at += 2;
        block.end.reads(|register| touch(register, at));
        block.end.writes().into_iter().for_each(|register| touch(register, at + 1));
        for next in block.end.successors() {
            needed[next].iter().for_each(|register| touch(register, at + 1));
        }
        at += 2;
    }
    // In a function with loops and calls, use no caller-saved register: the verifier of v6.18 may
    // confuse its value before a call with the one that is needed after it, and gives up
    // ("backtracking call unexpected regs").
    let is_looped = function.has_loops() && function.has_calls();
    let of = |(register, span): (Register, Option<(usize, usize)>)| {
        // Skip a register that is written once and never read, such as an unused parameter: its
        // location could be the register in which the next parameter arrives.
        let (from, to) = span.filter(|(from, to)| from != to)?;
        let next = calls.partition_point(|call| *call < from);
        let meets_call = is_looped || calls.get(next).is_some_and(|call| *call <= to);
        Some(LiveInterval { register, from, to, crosses_call: meets_call })
    };
    let mut intervals: Vec<_> = spans.iter().copied().enumerate().filter_map(of).collect();
    intervals.sort_by_key(|interval| interval.from);
    intervals
}

/// The spill slots of a frame, and the end of each slot's current use.
pub struct SpillSlots {
    pub frame_bytes: u32,
    free: Vec<(u32, usize)>,
}

impl SpillSlots {
    pub fn above_frame(frame_bytes: u32) -> Self {
        Self { frame_bytes: frame_bytes.next_multiple_of(8), free: Vec::new() }
    }

    /// Allocates a slot that is free since before the interval. The last such slot is taken, so
    /// that nested expressions reuse the same slots: the verifier distinguishes what each path left
    /// in a slot, and the number of its states multiplies with each slot.
    pub fn alloc(&mut self, interval: &LiveInterval) -> u32 {
        if let Some((place, free)) =
            self.free.iter_mut().rev().find(|(_, free)| *free < interval.from)
        {
            *free = interval.to;
            return *place;
        }
        self.free.push((self.frame_bytes, interval.to));
        self.frame_bytes += 8;
        self.frame_bytes - 8
    }
}

pub struct Allocation {
    pub locations: Vec<StorageLocation>,
    /// The size of the frame with the spill slots.
    pub frame_bytes: u32,
    /// The registers that are live at the beginning of each block.
    pub live_in: Vec<RegisterSet>,
}

/// Allocates the registers of a function. Those in `kept` have their slots already.
pub fn allocate(function: &IrFunction, kept: &SharedRegisters) -> Allocation {
    let needed = needed(function);
    let has_last = !function.has_loops() && !function.is_loop_body;
    let own = &CALLEE_SAVED[..CALLEE_SAVED.len() - usize::from(!has_last)];
    let mut homes = vec![StorageLocation::None; function.registers];
    kept.each().for_each(|(register, place)| homes[register] = StorageLocation::Kept(place));
    // The intervals that have a register now.
    let mut active: Vec<(LiveInterval, u8)> = Vec::new();
    let mut places = SpillSlots::above_frame(function.frame_bytes);
    for interval in live_intervals(function, &needed) {
        if matches!(homes[interval.register], StorageLocation::Kept(_)) {
            continue;
        }
        active.retain(|(other, _)| other.to >= interval.from);
        let is_free = |register: &u8| active.iter().all(|(_, taken)| taken != register);
        let lost = CALLER_SAVED.iter().filter(|_| !interval.crosses_call);
        if let Some(register) = lost.chain(own).copied().find(is_free) {
            homes[interval.register] = StorageLocation::Register(register);
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
                homes[interval.register] = StorageLocation::Register(register);
                other
            }
            None => interval,
        };
        homes[loser.register] = StorageLocation::Frame(places.alloc(&loser));
    }
    Allocation { locations: homes, frame_bytes: places.frame_bytes, live_in: needed }
}
