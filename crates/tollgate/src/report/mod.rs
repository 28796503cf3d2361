//! The report of a session, as JSON and as text.

mod document;
mod layout;
mod section;
mod text;

pub use document::{Header, Report, SCHEMA, Toll};
pub use layout::{TextOptions, losses, more_rows};
pub use section::{Section, field, fields};
pub use text::print;
#[cfg(test)]
pub use text::text;
