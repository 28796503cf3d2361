//! The text of the calls by file.

use std::fmt::Write as _;

use super::call_table::shown_name;
use super::report::{CallOnFile, FileCalls};
use crate::format::{bytes, count, duration, number_of, printable};
use crate::report::{TextOptions, more_rows};

/// Calls with less than this share of a file's time are only in the JSON.
const CALL_SHARE_MIN: f64 = 0.01;
const CALLS_SHOWN: usize = 4;

/// The names are last, because paths are long.
const TITLES: [&str; 6] = ["calls", "errors", "wall", "blocked", "read", "written"];

/// Appends the table of files.
pub fn file_table(out: &mut String, files: &[FileCalls], layout: &TextOptions) {
    if files.is_empty() {
        return;
    }
    let shown = &files[..files.len().min(layout.top)];
    let rows: Vec<_> = shown.iter().map(cells).collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].len());
        cells.chain([TITLES[column].len()]).max().unwrap_or_default()
    };
    let widths: Vec<_> = (0..TITLES.len()).map(width).collect();
    let line = |out: &mut String, cells: &[String], name: &str| {
        for (cell, width) in cells.iter().zip(&widths) {
            let _ = write!(out, "{cell:>width$} ");
        }
        let _ = writeln!(out, " {name}");
    };
    let _ = writeln!(out, "\n{}", headline(files));
    line(out, &TITLES.map(str::to_owned), "file");
    for (file, cells) in shown.iter().zip(&rows) {
        let more = if file.files > 1 {
            format!(" ({} of them)", count(file.files))
        } else {
            String::new()
        };
        line(out, cells, &format!("{}{more}", printable(&file.name)));
        let _ = writeln!(out, "    {}", calls(file));
    }
    more_rows(out, files.len(), layout.top, "files");
}

/// The sums, in which a call by two descriptors counts once.
fn headline(files: &[FileCalls]) -> String {
    let sum = |part: fn(&FileCalls) -> u64| files.iter().map(part).sum::<u64>();
    format!(
        "{} calls on {} took {}, read {} and wrote {}",
        count(sum(|file| file.calls.saturating_sub(file.shared_calls))),
        number_of(sum(|file| file.files) as usize, "file"),
        duration(sum(|file| file.wall_ns.saturating_sub(file.shared_wall_ns))),
        bytes(sum(|file| file.read_bytes)),
        bytes(sum(|file| file.written_bytes)),
    )
}

fn cells(file: &FileCalls) -> [String; TITLES.len()] {
    let unless_zero = |value: u64, text: fn(u64) -> String| {
        if value == 0 { String::new() } else { text(value) }
    };
    [
        count(file.calls),
        unless_zero(file.errors, count),
        duration(file.wall_ns),
        unless_zero(file.blocked_ns, duration),
        unless_zero(file.read_bytes, bytes),
        unless_zero(file.written_bytes, bytes),
    ]
}

/// The calls that took most of the time.
fn calls(file: &FileCalls) -> String {
    let least = file.wall_ns as f64 * CALL_SHARE_MIN;
    let one = |call: &CallOnFile| {
        format!(
            "{} {} ({})",
            shown_name(&call.name, &call.abi),
            count(call.count),
            duration(call.wall_ns)
        )
    };
    let shown: Vec<_> = file
        .by_call
        .iter()
        .take(CALLS_SHOWN)
        .filter(|call| call.wall_ns as f64 >= least)
        .map(one)
        .collect();
    let of_shown: u64 = file.by_call.iter().take(shown.len()).map(|call| call.count).sum();
    // A call that has just ended may not be in all sums yet.
    match file.calls.saturating_sub(of_shown) {
        0 => shown.join(", "),
        others => format!("{}, others {}", shown.join(", "), count(others)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &str, count: u64, wall_ns: u64) -> CallOnFile {
        CallOnFile { name: name.into(), abi: "x86-64".into(), count, wall_ns }
    }

    #[test]
    fn rows_have_the_names_last() {
        let cold = FileCalls {
            name: "/data/cold\u{1b}".into(),
            files: 1,
            calls: 1026,
            errors: 1,
            wall_ns: 912_000_000,
            blocked_ns: 900_000_000,
            read_bytes: 268_435_456,
            by_call: vec![call("read", 1024, 911_000_000), call("close", 1, 900)],
            ..FileCalls::default()
        };
        let socket = FileCalls {
            name: "unix /s".into(),
            files: 2,
            calls: 3,
            wall_ns: 5_000,
            written_bytes: 100,
            shared_calls: 1,
            shared_wall_ns: 2_000,
            by_call: vec![call("splice", 3, 5_000)],
            ..FileCalls::default()
        };
        let mut out = String::new();
        let files = [cold.clone(), socket, cold];
        file_table(&mut out, &files, &TextOptions { top: 2, columns: None });
        let expected = "
2,054 calls on 4 files took 1.82 s, read 512 MiB and wrote 100 B
calls errors    wall blocked    read written  file
1,026      1  912 ms  900 ms 256 MiB          /data/cold\\x1b
    read 1,024 (911 ms), others 2
    3        5.00 us                   100 B  unix /s (2 of them)
    splice 3 (5.00 us)
… 1 of 3 files are not shown (--top 3 shows all)
";
        assert_eq!(out, expected);
    }
}
