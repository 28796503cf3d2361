//! Which of the kernel's registers, or which place in memory, each register has: linear scan (Poletto and Sarkar, 1999).

use crate::ir::{Function, Register, Step};
use crate::outline::Kept;

/// Kept over calls. The last one is for operands where a function has loops, and for the frame where it is a round of one.
const KEPT: [u8; 4] = [FIRST_KEPT, 7, 8, LAST_KEPT];
pub const FIRST_KEPT: u8 = 6;
pub const LAST_KEPT: u8 = 9;
/// Lost over calls, and where their arguments go.
const LOST: [u8; 4] = [2, 3, 4, 5];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Home {
    Register(u8),
    /// Eight bytes of the frame, from its beginning.
    Frame(u32),
    /// The same of the function whose loops are functions of their own, and in these.
    Kept(u32),
    /// Nobody asks for it.
    None,
}

#[derive(Debug, Clone, Copy)]
pub struct Interval {
    pub register: Register,
    pub from: usize,
    pub to: usize,
    /// A call lies within it, or takes it.
    meets_call: bool,
}

/// One bit for each register.
#[derive(Clone, PartialEq)]
pub struct Set(Vec<u64>);

impl Set {
    pub fn new(registers: usize) -> Self {
        Self(vec![0; registers.div_ceil(64)])
    }

    pub fn add(&mut self, register: Register) {
        self.0[register / 64] |= 1 << (register % 64);
    }

    fn remove(&mut self, register: Register) {
        self.0[register / 64] &= !(1 << (register % 64));
    }

    pub fn add_all(&mut self, other: &Self) -> bool {
        let mut is_new = false;
        for (word, more) in self.0.iter_mut().zip(&other.0) {
            is_new |= *more & !*word != 0;
            *word |= more;
        }
        is_new
    }

    pub fn has(&self, register: Register) -> bool {
        self.0[register / 64] >> (register % 64) & 1 != 0
    }

    pub fn each(&self) -> impl Iterator<Item = Register> {
        let words = self.0.iter().enumerate().filter(|(_, word)| **word != 0);
        words.flat_map(|(at, word)| {
            (0..64).filter(move |bit| word >> bit & 1 != 0).map(move |bit| at * 64 + bit)
        })
    }
}

/// Which registers are needed at the beginning of each block.
pub fn needed(function: &Function) -> Vec<Set> {
    let mut needed = vec![Set::new(function.registers); function.blocks.len()];
    let mut is_changed = true;
    while is_changed {
        is_changed = false;
        for (number, block) in function.blocks.iter().enumerate().rev() {
            let mut live = Set::new(function.registers);
            for next in block.end.leads_to() {
                live.add_all(&needed[next]);
            }
            block.end.writes().into_iter().for_each(|register| live.remove(register));
            block.end.reads(|register| live.add(register));
            for (step, _) in block.steps.iter().rev() {
                step.writes().into_iter().for_each(|register| live.remove(register));
                step.reads(|register| live.add(register));
            }
            is_changed |= needed[number].add_all(&live);
        }
    }
    needed
}

pub fn intervals(function: &Function, needed: &[Set]) -> Vec<Interval> {
    let mut spans: Vec<Option<(usize, usize)>> = vec![None; function.registers];
    let mut calls = Vec::new();
    let mut at = 0;
    let mut touch = |register: Register, at: usize| {
        let span = spans[register].get_or_insert((at, at));
        *span = (span.0.min(at), span.1.max(at));
    };
    for (number, block) in function.blocks.iter().enumerate() {
        needed[number].each().for_each(|register| touch(register, at));
        for (step, _) in &block.steps {
            at += 2;
            // What comes in is in those that calls take.
            if step.is_call() || matches!(step, Step::Argument { .. }) {
                calls.push(at);
            }
            step.reads(|register| touch(register, at));
            // After what it reads is over.
            step.writes().into_iter().for_each(|register| touch(register, at + 1));
        }
        at += 2;
        block.end.reads(|register| touch(register, at));
        block.end.writes().into_iter().for_each(|register| touch(register, at + 1));
        for next in block.end.leads_to() {
            needed[next].each().for_each(|register| touch(register, at + 1));
        }
        at += 2;
    }
    // Where both are, the verifier of v6.18 may take what such a register had before a call for what is needed after it, and
    // gives up ("backtracking call unexpected regs").
    let is_looped = function.has_loops() && function.has_calls();
    let of = |(register, span): (Register, Option<(usize, usize)>)| {
        // Written once, and never read: a parameter, say, whose home would be where the next one comes in.
        let (from, to) = span.filter(|(from, to)| from != to)?;
        let next = calls.partition_point(|call| *call < from);
        let meets_call = is_looped || calls.get(next).is_some_and(|call| *call <= to);
        Some(Interval { register, from, to, meets_call })
    };
    let mut intervals: Vec<_> = spans.iter().copied().enumerate().filter_map(of).collect();
    intervals.sort_by_key(|interval| interval.from);
    intervals
}

/// Places of the frame, and the moments from which on they are free.
pub struct Places {
    pub frame_bytes: u32,
    free: Vec<(u32, usize)>,
}

impl Places {
    pub fn from(frame_bytes: u32) -> Self {
        Self { frame_bytes: frame_bytes.next_multiple_of(8), free: Vec::new() }
    }

    /// One that has been free since the interval's beginning. The last one, so that expressions within each other use the same ones
    /// again: the verifier tells apart what one way has left in any place and another has not, times all places.
    pub fn take(&mut self, interval: &Interval) -> u32 {
        if let Some((place, free)) = self.free.iter_mut().rev().find(|(_, free)| *free < interval.from) {
            *free = interval.to;
            return *place;
        }
        self.free.push((self.frame_bytes, interval.to));
        self.frame_bytes += 8;
        self.frame_bytes - 8
    }
}

pub struct Allocated {
    pub homes: Vec<Home>,
    /// With the places of those that have no register.
    pub frame_bytes: u32,
    /// Which are needed at the beginning of each block.
    pub needed: Vec<Set>,
}

/// `kept`: those that have their places already.
pub fn allocate(function: &Function, kept: &Kept) -> Allocated {
    let needed = needed(function);
    let has_last = !function.has_loops() && !function.is_round;
    let own = &KEPT[..KEPT.len() - usize::from(!has_last)];
    let mut homes = vec![Home::None; function.registers];
    kept.each().for_each(|(register, place)| homes[register] = Home::Kept(place));
    // Those that have a register now.
    let mut active: Vec<(Interval, u8)> = Vec::new();
    let mut places = Places::from(function.frame_bytes);
    for interval in intervals(function, &needed) {
        if matches!(homes[interval.register], Home::Kept(_)) {
            continue;
        }
        active.retain(|(other, _)| other.to >= interval.from);
        let is_free = |register: &u8| active.iter().all(|(_, taken)| taken != register);
        let lost = LOST.iter().filter(|_| !interval.meets_call);
        if let Some(register) = lost.chain(own).copied().find(is_free) {
            homes[interval.register] = Home::Register(register);
            active.push((interval, register));
            continue;
        }
        // Whoever needs it for longest gives it up.
        let fits = |(other, register): &(Interval, u8)| {
            other.to > interval.to && (!interval.meets_call || KEPT.contains(register))
        };
        let longest = (0..active.len()).filter(|at| fits(&active[*at])).max_by_key(|at| active[*at].0.to);
        let loser = match longest {
            Some(at) => {
                let (other, register) = active[at];
                active[at] = (interval, register);
                homes[interval.register] = Home::Register(register);
                other
            }
            None => interval,
        };
        homes[loser.register] = Home::Frame(places.take(&loser));
    }
    Allocated { homes, frame_bytes: places.frame_bytes, needed }
}
