//! The state after a run of a program, in the same form for the interpreter and compiled programs.

use ecode::Faults;
use ecode::interpreter::ProgramState;
use ecode::records::{HEADER_BYTES, Record};
use ecode::{Object, Program};

use super::common::Same;

#[derive(Debug, PartialEq, Eq)]
pub struct FinalState {
    /// The bytes of all global variables and of the program's strings.
    data: Vec<u8>,
    faults: Faults,
    maps: Vec<Entries>,
    printed: Vec<String>,
    emitted: Vec<Vec<u8>>,
}

/// Keys and values.
pub type Entries = Vec<(Vec<u8>, Vec<u8>)>;

impl FinalState {
    pub fn by_the_interpreter(object: &Object, state: &ProgramState, runtime: &Same) -> Self {
        let mut data = object.data.clone();
        for (bytes, at) in state.globals.iter().zip(&object.offsets) {
            data[*at as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        Self {
            data,
            faults: state.faults,
            maps: sorted(state.maps.iter().map(|map| map.clone().into_iter().collect()).collect()),
            printed: runtime.printed.clone(),
            emitted: runtime.emitted.clone(),
        }
    }

    pub fn by_what_is_compiled(
        program: &Program,
        data: Vec<u8>,
        faults: Faults,
        maps: Vec<Entries>,
        records: &[Vec<u8>],
    ) -> Self {
        let mut left =
            Self { data, faults, maps: sorted(maps), printed: Vec::new(), emitted: Vec::new() };
        for bytes in records {
            let (record, _) = Record::read(program, bytes).expect("it is the program's");
            match record {
                Record::Printed(text) => {
                    left.printed.push(String::from_utf8_lossy(&text).into_owned())
                }
                Record::Emitted { .. } => {
                    left.emitted.push(bytes[HEADER_BYTES as usize..].to_vec())
                }
            }
        }
        left
    }
}

fn sorted(mut maps: Vec<Entries>) -> Vec<Entries> {
    maps.iter_mut().for_each(|entries| entries.sort());
    maps
}
