//! The columns of `lens top`.

use super::level::TopLevel;
use super::rows::TopRow;
use crate::fitted_table::TableColumn;
use crate::format::{bytes, count, duration, percent_of_time};

/// The key that sorts by the names.
pub const NAME_KEY: char = 'n';

/// The key of a column, and the value by which it sorts.
type ColumnSort = (char, fn(&TopRow) -> f64);

/// The columns of a level, with a key for each, which is a letter of its title, and the value by
/// which it sorts.
pub struct TopColumns {
    pub columns: &'static [TableColumn<TopRow>],
    sorts: &'static [ColumnSort],
    /// The key of the column that sorts if the level has not the one that the user has chosen.
    pub default_sort: char,
}

pub fn columns_of(level: TopLevel) -> TopColumns {
    match level {
        TopLevel::Site => {
            TopColumns { columns: &SITE_COLUMNS, sorts: &SITE_SORTS, default_sort: 'b' }
        }
        TopLevel::File => {
            TopColumns { columns: &FILE_COLUMNS, sorts: &FILE_SORTS, default_sort: 'w' }
        }
        _ => TopColumns { columns: &COLUMNS, sorts: &SORTS, default_sort: 'o' },
    }
}

impl TopColumns {
    pub fn value(&self, key: char) -> Option<fn(&TopRow) -> f64> {
        self.sorts.iter().find(|(of, _)| *of == key).map(|(_, value)| *value)
    }

    /// The keys of all columns, beginning with that of the names.
    pub fn keys(&self) -> Vec<char> {
        [NAME_KEY].into_iter().chain(self.sorts.iter().map(|(key, _)| *key)).collect()
    }

    pub fn title(&self, key: char) -> &'static str {
        let at = self.sorts.iter().position(|(of, _)| *of == key);
        at.map_or("name", |at| self.columns[at].title)
    }
}

const COLUMNS: [TableColumn<TopRow>; 13] = [
    TableColumn { title: "calls/s", rank: 0, gap: 1, cell: |row| rate(row.calls) },
    TableColumn { title: "errors/s", rank: 5, gap: 1, cell: |row| rate(row.errors) },
    TableColumn { title: "wall %", rank: 2, gap: 1, cell: |row| percent(row.wall_ns) },
    TableColumn { title: "on CPU %", rank: 1, gap: 1, cell: |row| percent(row.cpu_ns) },
    TableColumn { title: "blocked %", rank: 3, gap: 1, cell: |row| percent(row.blocked_ns) },
    TableColumn { title: "in waits %", rank: 4, gap: 1, cell: |row| percent(row.in_waits_ns) },
    TableColumn { title: "waiting %", rank: 7, gap: 1, cell: |row| percent(row.runqueue_ns) },
    TableColumn { title: "p50", rank: 10, gap: 2, cell: |row| time(row.p50_ns) },
    TableColumn { title: "p95", rank: 11, gap: 1, cell: |row| time(row.p95_ns) },
    TableColumn { title: "p99", rank: 8, gap: 1, cell: |row| time(row.p99_ns) },
    TableColumn { title: "max", rank: 6, gap: 1, cell: |row| time(row.max_ns) },
    TableColumn { title: "faults/s", rank: 12, gap: 1, cell: |row| rate(row.faults) },
    TableColumn { title: "mostly blocked in", rank: 9, gap: 2, cell: |row| row.blocked_in.clone() },
];

const SORTS: [ColumnSort; 12] = [
    ('c', |row| row.calls),
    ('e', |row| row.errors),
    ('w', |row| row.wall_ns),
    ('o', |row| row.cpu_ns),
    ('b', |row| row.blocked_ns),
    ('i', |row| row.in_waits_ns),
    ('t', |row| row.runqueue_ns),
    ('5', |row| row.p50_ns as f64),
    ('9', |row| row.p95_ns as f64),
    ('p', |row| row.p99_ns as f64),
    ('m', |row| row.max_ns as f64),
    ('f', |row| row.faults),
];

const SITE_COLUMNS: [TableColumn<TopRow>; 2] = [
    TableColumn { title: "sleeps/s", rank: 1, gap: 1, cell: |row| rate(row.calls) },
    TableColumn { title: "blocked %", rank: 0, gap: 1, cell: |row| percent(row.blocked_ns) },
];

const SITE_SORTS: [ColumnSort; 2] = [('s', |row| row.calls), ('b', |row| row.blocked_ns)];

const FILE_COLUMNS: [TableColumn<TopRow>; 6] = [
    TableColumn { title: "calls/s", rank: 2, gap: 1, cell: |row| rate(row.calls) },
    TableColumn { title: "errors/s", rank: 5, gap: 1, cell: |row| rate(row.errors) },
    TableColumn { title: "wall %", rank: 0, gap: 1, cell: |row| percent(row.wall_ns) },
    TableColumn { title: "blocked %", rank: 1, gap: 1, cell: |row| percent(row.blocked_ns) },
    TableColumn { title: "read/s", rank: 3, gap: 1, cell: |row| size(row.read_bytes) },
    TableColumn { title: "written/s", rank: 4, gap: 1, cell: |row| size(row.written_bytes) },
];

const FILE_SORTS: [ColumnSort; 6] = [
    ('c', |row| row.calls),
    ('e', |row| row.errors),
    ('w', |row| row.wall_ns),
    ('b', |row| row.blocked_ns),
    ('a', |row| row.read_bytes),
    ('t', |row| row.written_bytes),
];

/// A number per second, or nothing for 0.
fn rate(value: f64) -> String {
    match value {
        0.0 => String::new(),
        ..9.95 => format!("{value:.1}"),
        _ => count(value.round() as u64),
    }
}

fn size(value: f64) -> String {
    if value == 0.0 { String::new() } else { bytes(value.round() as u64) }
}

fn percent(ns: f64) -> String {
    if ns == 0.0 { String::new() } else { percent_of_time(ns) }
}

fn time(ns: u64) -> String {
    if ns == 0 { String::new() } else { duration(ns) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_letters_of_their_columns() {
        for level in [TopLevel::Call, TopLevel::Site, TopLevel::File] {
            let columns = columns_of(level);
            let keys = columns.keys();
            for (at, key) in keys.iter().enumerate() {
                assert!(!keys[..at].contains(key) && !"qr<>".contains(*key), "{key}");
                assert!(columns.title(*key).contains(*key), "{key}");
            }
            assert!(columns.value(columns.default_sort).is_some());
        }
    }
}
