//! Formats usage in the texts about services.

use super::requests::MigrationReport;
use crate::format::{duration, number_of, printable};

/// A service's name, indented by its depth in the tree.
pub fn indented(depth: usize, name: &str) -> String {
    format!("{:width$}{}", "", printable(name), width = 2 * depth)
}

/// Bytes in units of 1024, with three digits.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes} B"),
        _ if value < 9.995 => format!("{value:.2} {}", UNITS[unit]),
        _ if value < 99.95 => format!("{value:.1} {}", UNITS[unit]),
        _ => format!("{value:.0} {}", UNITS[unit]),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_three_digits() {
        let cases = [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "0.98 KiB"),
            (10_240, "10.0 KiB"),
            (1 << 30, "1.00 GiB"),
        ];
        for (value, text) in cases {
            assert_eq!(bytes(value), text);
        }
    }
}
