//! The table of calls.

use super::report::{Call, IO_URING};
use crate::fitted_table::{FittedTable, TableColumn};
use crate::format::{count, duration, printable};

const COLUMNS: [TableColumn<Call>; 11] = [
    TableColumn { title: "count", rank: 0, gap: 1, cell: |call| count(call.count) },
    TableColumn { title: "errors", rank: 3, gap: 1, cell: |call| number(errors(call)) },
    TableColumn { title: "wall", rank: 1, gap: 1, cell: |call| time(call.wall_ns) },
    TableColumn { title: "on CPU", rank: 4, gap: 1, cell: |call| time(call.cpu_ns) },
    TableColumn { title: "blocked", rank: 2, gap: 1, cell: |call| time(call.blocked_ns) },
    TableColumn { title: "waiting", rank: 6, gap: 1, cell: |call| time(call.runqueue_ns) },
    TableColumn { title: "p50", rank: 8, gap: 2, cell: |call| quantile(call, call.p50_ns) },
    TableColumn { title: "p95", rank: 9, gap: 1, cell: |call| quantile(call, call.p95_ns) },
    TableColumn { title: "p99", rank: 7, gap: 1, cell: |call| quantile(call, call.p99_ns) },
    TableColumn { title: "max", rank: 5, gap: 1, cell: |call| quantile(call, call.max_ns) },
    TableColumn { title: "faults", rank: 10, gap: 1, cell: |call| number(faults(call)) },
];

/// A table for these calls, with the titles of its first column. `columns`: the width of the
/// terminal, if it is written to one.
pub fn call_table<'a>(
    titles: impl Iterator<Item = &'static str>,
    calls: impl Iterator<Item = &'a Call> + Clone,
    columns: Option<usize>,
) -> FittedTable<Call> {
    FittedTable::new(&COLUMNS, |call| shown_name(&call.name, &call.abi), titles, calls, columns)
}

/// The name of a call, which may be from a file, with its ABI if that is not the usual one; or the
/// name of an operation of io_uring.
pub fn shown_name(name: &str, abi: &str) -> String {
    match abi {
        "x86-64" => printable(name),
        IO_URING => printable(&format!("{IO_URING}: {name}")),
        abi => printable(&format!("{name} ({abi})")),
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
        let table = call_table(["call"].into_iter(), [&call].into_iter(), columns);
        let mut out = String::new();
        table.titles(&mut out, "call");
        table.row(&mut out, &call);
        let lengths: Vec<_> = out.lines().map(str::len).collect();
        assert_eq!(lengths[0], lengths[1], "{out}");
        assert!(columns.is_none_or(|columns| lengths[0] <= columns), "{out}");
        out.lines().next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn operations_have_a_name_space() {
        assert_eq!(shown_name("read", "x32"), "read (x32)");
        assert_eq!(shown_name("READ", IO_URING), "io_uring: READ");
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
