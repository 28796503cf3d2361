//! Calls a program's first handler once, in the kernel.

use ecode::{Object, Program};
use kernel::plugin::LoadedPlugin;

use super::final_state::FinalState;

/// Returns the low 32 bits of the handler's result, and the state that the handler leaves.
pub fn run(text: &str, program: &Program, object: &Object, arguments: &[u64]) -> (i32, FinalState) {
    let plugin = LoadedPlugin::load(object).unwrap_or_else(|error| panic!("{text}\n{error}"));
    let result = plugin.call(0, arguments).expect("it is called");
    let data = plugin.data().read(0, object.data.len());
    let faults = plugin.faults().expect("they are there");
    let maps =
        (0..object.maps.len()).map(|map| plugin.entries(map).expect("it is there")).collect();
    let records = plugin.records().expect("they are there");
    (result, FinalState::by_what_is_compiled(program, data, faults, maps, &records))
}
