//! Reads the TOML files that users write, such as rule files and files of levels. All problems of a
//! file are reported, each with its position and, where possible, with help. Pure, no I/O.

#![warn(missing_docs)]
#![forbid(unsafe_code)]

mod problem;
mod reader;

pub use problem::{Problem, Problems};
pub use reader::{At, TableReader};

use toml::Spanned;
pub use toml::de::DeTable;

/// Parses a document.
///
/// # Errors
/// Returns the syntax errors of the document.
pub fn parse(text: &str) -> Result<Spanned<DeTable<'_>>, Problems> {
    let (document, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        return Ok(document);
    }
    let problem = |error: &toml::de::Error| {
        Problem::new(error.span().unwrap_or(0..0), error.message()).sanitize()
    };
    Err(errors.iter().map(problem).collect())
}
