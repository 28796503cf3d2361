//! What the places offer where plugins run. Which these are, and what they have on a machine, is said from outside.

use crate::types::Type;

/// A value that a handler can read by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    pub name: String,
    pub of: Type,
}

pub trait Hooks {
    /// The names of all hooks.
    fn names(&self) -> Vec<String>;

    /// The fields that all that was selected of a hook have in common, or a sentence on what cannot be, and on which of the selected
    /// words.
    fn fields(&self, hook: &str, selected: &[String]) -> Result<Vec<Field>, (Option<usize>, String)>;
}
