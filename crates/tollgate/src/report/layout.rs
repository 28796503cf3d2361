//! What the texts of all parts of a report have in common.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::format::{count, wrap};

/// How a text is laid out.
pub struct TextOptions {
    /// How many rows of each list are shown.
    pub top: usize,
    /// The width of the terminal, if it is written to one.
    pub columns: Option<usize>,
}

/// The lines of a text without the padding of columns at their ends, broken where they would exceed
/// the width.
pub fn laid_out(text: &str, columns: Option<usize>) -> String {
    let lines = text.lines().map(str::trim_end);
    let wrapped = lines.map(|line| match columns {
        Some(columns) => wrap(line, columns),
        None => line.to_owned(),
    });
    wrapped.map(|line| line + "\n").collect()
}

/// A line that lists losses; empty if there are none.
pub fn losses(losses: &BTreeMap<String, u64>) -> String {
    let losses: Vec<_> =
        losses.iter().map(|(reason, n)| format!("{reason}: {}", count(*n))).collect();
    if losses.is_empty() { String::new() } else { format!("LOSSES: {}\n", losses.join(", ")) }
}

/// Appends a line with the number of rows of a list that are not shown, if there are any.
pub fn more_rows(out: &mut String, all: usize, shown: usize, what: &str) {
    if all > shown {
        let _ = writeln!(
            out,
            "… {} of {all} {what} are not shown (--top {all} shows all)",
            all - shown
        );
    }
}
