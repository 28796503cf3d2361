//! Where global variables are in the memory that user space maps, and what the control memory beside it has.

use std::collections::HashMap;

use crate::interpret::Faults;
use crate::program::Program;

/// Bytes of the control memory: a 0 that nobody changes, and how often what happened (`interpret::Faults`).
pub const ZERO: u32 = 0;
pub const OUTSIDE: u32 = 8;
pub const CUT_SHORT: u32 = 16;
pub const FULL: u32 = 24;
pub const LOST: u32 = 32;
pub const OUTSIDE_PACKET: u32 = 40;
/// `CUT_SHORT` when the plugin was last called on demand.
pub const CUT_SHORT_BEFORE: u32 = 48;
pub const CONTROL_BYTES: u32 = 56;

/// Loops that may be cut short, a quarter of a second each (BPF_MAX_TIMED_LOOPS, include/linux/bpf.h): after that, those of functions
/// that are called have no more rounds, and user space takes the plugin out of its hooks.
pub const MOST_CUT_SHORT: u64 = 8;

impl Faults {
    /// As the control memory has them.
    pub fn of(control: &[u8]) -> Self {
        let count =
            |at: u32| u64::from_le_bytes(control[at as usize..][..8].try_into().expect("eight bytes"));
        Self {
            outside: count(OUTSIDE),
            outside_packet: count(OUTSIDE_PACKET),
            cut_short: count(CUT_SHORT),
            full: count(FULL),
            lost: count(LOST),
        }
    }
}

#[derive(Debug)]
pub struct Layout {
    /// Of each global variable.
    pub offsets: Vec<u32>,
    /// Behind them are all strings of the program, each with its NUL.
    pub strings: u32,
    /// The number of each, and where it is.
    strings_at: HashMap<Vec<u8>, (u64, u32)>,
    pub bytes: u32,
}

impl Layout {
    pub fn new(program: &Program) -> Self {
        let mut bytes = 0;
        let offset = |global: &crate::program::Global| {
            let offset = bytes;
            // Each may be read and written by words.
            bytes += (global.of.size() as u32).next_multiple_of(8);
            offset
        };
        let offsets = program.globals.iter().map(offset).collect();
        let strings = bytes;
        let mut strings_at = HashMap::new();
        for (number, string) in program.strings.iter().enumerate() {
            strings_at.insert(string.clone(), (number as u64, bytes));
            bytes += string.len() as u32 + 1;
        }
        Self { offsets, strings, strings_at, bytes: bytes.next_multiple_of(8) }
    }

    pub fn string(&self, string: &[u8]) -> u32 {
        self.strings_at[string].1
    }

    pub fn number_of(&self, string: &[u8]) -> u64 {
        self.strings_at[string].0
    }

    /// What the memory has at the beginning.
    pub fn initial(&self, program: &Program) -> Vec<u8> {
        let mut initial = vec![0; self.bytes as usize];
        for (global, offset) in program.globals.iter().zip(&self.offsets) {
            initial[*offset as usize..][..global.initial.len()].copy_from_slice(&global.initial);
        }
        for (string, (_, at)) in &self.strings_at {
            initial[*at as usize..][..string.len()].copy_from_slice(string);
        }
        initial
    }
}
