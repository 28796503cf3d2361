//! An extension's section of a report.

use serde::Serialize;
use serde_json::{Map, Value};

use super::layout::TextOptions;

/// An extension's section of a report.
pub trait Section {
    /// The fields of the JSON, in their order.
    fn fields(&self) -> serde_json::Result<Map<String, Value>>;

    /// What a reader has to know first: a line before all others except the losses.
    fn first_line(&self) -> Option<String> {
        None
    }

    /// Appends the text. `is_only` is true if the report has no other section.
    fn text(&self, out: &mut String, layout: &TextOptions, is_only: bool);

    /// How many calls the extension has seen, or `None` if it does not count them.
    fn calls_seen(&self) -> Option<u64>;
}

/// An object with one field.
pub fn field(name: &str, value: impl Serialize) -> serde_json::Result<Map<String, Value>> {
    Ok(Map::from_iter([(name.to_owned(), serde_json::to_value(value)?)]))
}

/// A structure as an object.
pub fn fields(structure: &impl Serialize) -> serde_json::Result<Map<String, Value>> {
    serde_json::from_value(serde_json::to_value(structure)?)
}
