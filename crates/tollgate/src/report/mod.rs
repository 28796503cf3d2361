//! The report of a session, as JSON and as text.

mod layout;
mod section;
mod session_report;
mod text;

pub use layout::{TextOptions, laid_out, losses, more_rows};
pub use section::{Section, field, fields};
pub use session_report::{Header, Report, SCHEMA, Toll};
pub use text::print;
#[cfg(test)]
pub use text::text;
