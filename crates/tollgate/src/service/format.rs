//! Formats usage in the texts about services.

use super::requests::MigrationReport;
use crate::format::{duration, number_of, printable};

/// A service's name, indented by its depth in the tree.
pub fn indented(depth: usize, name: &str) -> String {
    format!("{:width$}{}", "", printable(name), width = 2 * depth)
}

/// The cost of migrations, if there were any.
pub fn migrations(migrations: &MigrationReport) -> String {
    let mut parts = Vec::new();
    if migrations.moved > 0 {
        parts.push(format!(
            "{} between control groups: {} on average, {} at most",
            number_of(migrations.moved as usize, "migration"),
            duration(migrations.total_ns / migrations.moved),
            duration(migrations.longest_ns)
        ));
    }
    for (value, what) in [(migrations.put_off, "put off"), (migrations.failed, "failed")] {
        if value > 0 {
            parts.push(format!("{} {what}", number_of(value as usize, "migration")));
        }
    }
    if parts.is_empty() { String::new() } else { format!("\n{}\n", parts.join("; ")) }
}
