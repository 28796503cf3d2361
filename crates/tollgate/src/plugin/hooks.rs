//! The hooks that there are on this machine.

use ecode::{Field, Hooks};

pub struct Machine;

/// On demand.
pub const CALL: &str = "call";

impl Hooks for Machine {
    fn names(&self) -> Vec<String> {
        vec![CALL.into()]
    }

    fn fields(&self, _: &str, selected: &[String]) -> Result<Vec<Field>, (Option<usize>, String)> {
        match selected {
            [] => Ok(Vec::new()),
            _ => Err((Some(0), format!("`{CALL}` has no events to select"))),
        }
    }
}
