//! What a report consists of.

use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value};

use super::layout::TextOptions;

/// An extension's part of a report.
pub trait Section {
    /// The fields of the JSON document, in their order.
    fn fields(&self) -> serde_json::Result<Map<String, Value>>;

    /// Appends the text. `is_only`: the report has no other section.
    fn text(&self, out: &mut String, layout: &TextOptions, is_only: bool);

    /// How many calls the extension has seen; none: it does not count them.
    fn calls_seen(&self) -> Option<u64>;
}

impl fmt::Debug for dyn Section {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Section")
    }
}

/// One field with this name.
pub fn field(name: &str, value: impl Serialize) -> serde_json::Result<Map<String, Value>> {
    Ok(Map::from_iter([(name.to_owned(), serde_json::to_value(value)?)]))
}
