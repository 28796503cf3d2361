//! Liveness of virtual registers: where each one has a value that is still needed.

use crate::ir::{Inst, IrFunction, Register};

/// The range from a register's first write or read to its last one. The numbers count the steps and
/// ends of the blocks in their order.
#[derive(Debug, Clone, Copy)]
pub struct LiveInterval {
    pub register: Register,
    pub from: usize,
    pub to: usize,
    /// A call lies in the interval, or uses the register as an argument.
    pub crosses_call: bool,
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
pub fn live_in(function: &IrFunction) -> Vec<RegisterSet> {
    let mut live_in = vec![RegisterSet::new(function.registers); function.blocks.len()];
    let mut is_changed = true;
    while is_changed {
        is_changed = false;
        for (number, block) in function.blocks.iter().enumerate().rev() {
            let mut live = RegisterSet::new(function.registers);
            for next in block.end.successors() {
                live.union_with(&live_in[next]);
            }
            block.end.writes().into_iter().for_each(|register| live.remove(register));
            block.end.reads(|register| live.insert(register));
            for (step, _) in block.steps.iter().rev() {
                step.writes().into_iter().for_each(|register| live.remove(register));
                step.reads(|register| live.insert(register));
            }
            is_changed |= live_in[number].union_with(&live);
        }
    }
    live_in
}

/// The intervals of all registers that are read, sorted by their beginnings.
pub fn live_intervals(function: &IrFunction, live_in: &[RegisterSet]) -> Vec<LiveInterval> {
    let mut spans: Vec<Option<(usize, usize)>> = vec![None; function.registers];
    let mut calls = Vec::new();
    let mut at = 0;
    let mut touch = |register: Register, at: usize| {
        let span = spans[register].get_or_insert((at, at));
        *span = (span.0.min(at), span.1.max(at));
    };
    for (number, block) in function.blocks.iter().enumerate() {
        live_in[number].iter().for_each(|register| touch(register, at));
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
            live_in[next].iter().for_each(|register| touch(register, at + 1));
        }
        at += 2;
    }
    // In a function with loops and calls, use no caller-saved register: the verifier of v6.18 may
    // confuse its value before a call with the value that is needed after the call, and then gives
    // up ("backtracking call unexpected regs").
    let is_looped = function.has_loops() && function.has_calls();
    let of = |(register, span): (Register, Option<(usize, usize)>)| {
        // Skip a register that is written once and never read, such as an unused parameter: its
        // location could be the register in which the next parameter arrives.
        let (from, to) = span.filter(|(from, to)| from != to)?;
        let next = calls.partition_point(|call| *call < from);
        let crosses_call = is_looped || calls.get(next).is_some_and(|call| *call <= to);
        Some(LiveInterval { register, from, to, crosses_call })
    };
    let mut intervals: Vec<_> = spans.iter().copied().enumerate().filter_map(of).collect();
    intervals.sort_by_key(|interval| interval.from);
    intervals
}
