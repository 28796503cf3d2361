//! The table of calls. On a terminal, it has only the columns for which there is room.

use std::fmt::Write as _;

use super::report::Call;
use crate::format::{count, duration};

/// A column besides the first one, which has the call's name.
struct Column {
    title: &'static str,
    /// Where there is no room for all columns, those with the smallest rank remain.
    rank: usize,
    /// The distance to the column before.
    gap: usize,
    cell: fn(&Call) -> String,
}

const COLUMNS: [Column; 11] = [
    Column { title: "count", rank: 0, gap: 1, cell: |call| count(call.count) },
    Column { title: "errors", rank: 3, gap: 1, cell: |call| number(errors(call)) },
    Column { title: "wall", rank: 1, gap: 1, cell: |call| time(call.wall_ns) },
    Column { title: "on CPU", rank: 4, gap: 1, cell: |call| time(call.cpu_ns) },
    Column { title: "blocked", rank: 2, gap: 1, cell: |call| time(call.blocked_ns) },
    Column { title: "waiting", rank: 6, gap: 1, cell: |call| time(call.runqueue_ns) },
    Column { title: "p50", rank: 8, gap: 2, cell: |call| quantile(call, call.p50_ns) },
    Column { title: "p95", rank: 9, gap: 1, cell: |call| quantile(call, call.p95_ns) },
    Column { title: "p99", rank: 7, gap: 1, cell: |call| quantile(call, call.p99_ns) },
    Column { title: "max", rank: 5, gap: 1, cell: |call| quantile(call, call.max_ns) },
    Column { title: "faults", rank: 10, gap: 1, cell: |call| number(faults(call)) },
];

/// The narrowest columns: a time has up to seven characters ("9.99 us").
const MIN_CELL_WIDTH: usize = 7;

/// The layout of a table.
pub struct CallTable {
    name_width: usize,
    /// The columns that are shown, with their widths.
    columns: Vec<(&'static Column, usize)>,
}

impl CallTable {
    /// A table for these calls, with the titles of its first column. `columns`: the width of the
    /// terminal, if it is written to one.
    pub fn new<'a>(
        titles: impl Iterator<Item = &'static str>,
        calls: impl Iterator<Item = &'a Call> + Clone,
        columns: Option<usize>,
    ) -> Self {
        let names = calls.clone().map(|call| name(call).len());
        let name_width = names.chain(titles.map(str::len)).max().unwrap_or_default();
        let width = |column: &Column| {
            let cells = calls.clone().map(|call| (column.cell)(call).chars().count());
            cells.chain([column.title.len(), MIN_CELL_WIDTH]).max().unwrap_or_default()
        };
        let mut all: Vec<_> = COLUMNS.iter().map(|column| (column, width(column))).collect();
        let is_too_wide = |shown: &[(&Column, usize)]| {
            let widths = shown.iter().map(|(column, width)| column.gap + width);
            columns.is_some_and(|columns| name_width + widths.sum::<usize>() > columns)
        };
        // Even on a very narrow terminal, a table without its first figure would be of no use.
        while is_too_wide(&all) && all.len() > 1 {
            let rank = all.iter().map(|(column, _)| column.rank).max();
            all.retain(|(column, _)| Some(column.rank) != rank);
        }
        Self { name_width, columns: all }
    }

    /// The names of the columns that have no room, in their order.
    pub fn left_out(&self) -> Vec<&'static str> {
        let is_shown = |title| self.columns.iter().any(|(column, _)| column.title == title);
        COLUMNS.iter().map(|column| column.title).filter(|title| !is_shown(*title)).collect()
    }

    /// Appends the line of titles. `first` is the title of the names.
    pub fn titles(&self, out: &mut String, first: &str) {
        self.line(out, first, |column| column.title.to_owned());
    }

    /// Appends the line of a call.
    pub fn call(&self, out: &mut String, call: &Call) {
        self.line(out, &name(call), |column| (column.cell)(call));
    }

    fn line(&self, out: &mut String, first: &str, cell: impl Fn(&Column) -> String) {
        let _ = write!(out, "{first:<0$}", self.name_width);
        for (column, width) in &self.columns {
            let _ = write!(out, "{:1$}{2:>3$}", "", column.gap, cell(column), width);
        }
        out.push('\n');
    }
}

fn name(call: &Call) -> String {
    match call.abi.as_str() {
        "x86-64" => call.name.clone(),
        abi => format!("{} ({abi})", call.name),
    }
}

fn errors(call: &Call) -> u64 {
    call.errors.values().sum()
}

fn faults(call: &Call) -> u64 {
    call.minor_faults + call.major_faults
}

/// A number, or nothing for 0.
fn number(n: u64) -> String {
    if n == 0 { String::new() } else { count(n) }
}

fn time(ns: u64) -> String {
    if ns == 0 { String::new() } else { duration(ns) }
}

/// A rejected call has a time only if its thread has waited for the decision.
fn quantile(call: &Call, ns: u64) -> String {
    let is_timed = call.count > call.denied || call.wall_ns > 0;
    if is_timed { duration(ns) } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &str) -> Call {
        Call { name: name.into(), abi: "x86-64".into(), count: 1_234_567, ..Call::default() }
    }

    fn titles(name: &str, columns: Option<usize>) -> String {
        let call = call(name);
        let table = CallTable::new(["call"].into_iter(), [&call].into_iter(), columns);
        let mut out = String::new();
        table.titles(&mut out, "call");
        table.call(&mut out, &call);
        let lengths: Vec<_> = out.lines().map(str::len).collect();
        assert_eq!(lengths[0], lengths[1], "{out}");
        assert!(columns.is_none_or(|columns| lengths[0] <= columns), "{out}");
        out.lines().next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn narrow_terminals_have_fewer_columns() {
        let all = "call count errors wall on CPU blocked waiting p50 p95 p99 max faults";
        assert_eq!(titles("read", None), all);
        assert_eq!(titles("read", Some(200)), all);
        let name = "clock_nanosleep_time64 (i386)";
        assert_eq!(titles(name, Some(80)), "call count errors wall on CPU blocked max");
        let most = "call count errors wall on CPU blocked waiting p50 p99 max";
        assert_eq!(titles("read", Some(80)), most);
        assert_eq!(titles("read", Some(30)), "call count wall blocked");
        assert_eq!(titles("read", Some(20)), "call count");
    }
}
