//! The layout of global variables in the memory that user space maps, and of the control memory.

use std::collections::HashMap;

use crate::typed::Program;

/// Offsets in the control memory: a constant 0, and the counts of faults (`Faults`).
pub const ZERO: u32 = 0;
pub const OUTSIDE: u32 = 8;
pub const CUT_SHORT: u32 = 16;
pub const FULL: u32 = 24;
pub const LOST: u32 = 32;
pub const OUTSIDE_PACKET: u32 = 40;
/// The value of `CUT_SHORT` when the plugin was last called on demand.
pub const CUT_SHORT_BEFORE: u32 = 48;
/// Not 0 once the plugin was swapped or unloaded. User space sets it, for clients that have the
/// plugin open.
pub const RETIRED: u32 = 56;
pub const CONTROL_BYTES: u32 = 64;

/// The number of loops that may be cut short, each after a quarter of a second
/// (BPF_MAX_TIMED_LOOPS, include/linux/bpf.h). After this number, loops in called functions do not
/// run, and user space unlinks the plugin from its hooks.
pub const MAX_CUT_SHORT: u64 = 8;

#[derive(Debug)]
pub struct DataLayout {
    /// The offset of each global variable.
    pub offsets: Vec<u32>,
    /// The offset of the program's strings, each with its NUL, after the variables.
    pub strings: u32,
    /// The number and the offset of each string.
    strings_at: HashMap<Vec<u8>, (u64, u32)>,
    pub bytes: u32,
}

impl DataLayout {
    pub fn new(program: &Program) -> Self {
        let mut bytes = 0;
        let offset = |global: &crate::typed::Global| {
            let offset = bytes;
            // Align each variable so that it can be accessed by words.
            bytes += (global.ty.size() as u32).next_multiple_of(8);
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

    /// The initial content of the memory.
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
