//! The report of a session, as JSON and as text.

mod build;
mod document;
mod layout;
mod text;

pub use build::{SessionResult, document};
pub use document::{Call, InProgress, Report, SCHEMA, SlowCall, Toll};
pub use layout::{TextOptions, losses, more_rows};
pub use text::print;
