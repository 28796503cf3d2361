//! The report of a session, as JSON and as text.

mod document;
mod layout;
mod text;

pub use document::{InProgress, Report, SCHEMA, Toll};
pub use layout::{TextOptions, losses, more_rows};
pub use text::print;
