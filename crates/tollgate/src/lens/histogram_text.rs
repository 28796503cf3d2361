//! The text of histograms.

use std::fmt::Write as _;

use super::call_table::shown_name;
use super::report::{Call, HistogramOctave};
use crate::format::{count, duration};
use crate::report::TextOptions;

/// The width of a text that is not for a terminal.
const DEFAULT_COLUMNS: usize = 80;
/// On a very narrow terminal, too, the longest bar has at least this length.
const MIN_BAR: usize = 8;

/// Appends the histograms of the calls that have one.
pub fn histograms(out: &mut String, calls: &[Call], layout: &TextOptions) {
    let columns = layout.columns.unwrap_or(DEFAULT_COLUMNS);
    for call in calls {
        if let Some(octaves) = &call.histogram {
            one(out, call, octaves, columns);
        }
    }
}

fn one(out: &mut String, call: &Call, octaves: &[HistogramOctave], columns: usize) {
    let name = shown_name(&call.name, &call.abi);
    let all = count(call.count);
    let timed: u64 = octaves.iter().map(|octave| octave.count).sum();
    let _ = match (call.untimed, call.count.saturating_sub(timed)) {
        (0, 0) => writeln!(out, "\nwall time of {all} calls of {name}"),
        (0, without) => writeln!(
            out,
            "\nwall time of {} calls of {name}; {} more have no time",
            count(timed),
            count(without)
        ),
        (untimed, _) => writeln!(
            out,
            "\nwall time of {all} calls of {name}; {} were not timed, so the numbers are estimates \
            (they add up to {})",
            count(untimed),
            count(timed)
        ),
    };
    let most = octaves.iter().map(|octave| octave.count).max().unwrap_or_default();
    let lines: Vec<_> =
        octaves.iter().map(|octave| (range(octave), count(octave.count), octave.count)).collect();
    let range_width = lines.iter().map(|(range, ..)| range.len()).max().unwrap_or_default();
    let count_width = lines.iter().map(|(_, count, _)| count.len()).max().unwrap_or_default();
    // Two spaces before each of the three columns.
    let room = columns.saturating_sub(range_width + count_width + 6).max(MIN_BAR);
    for (range, count, n) in lines {
        let bar = "#".repeat(bar_length(n, most, room));
        let line = format!("  {range:>range_width$}  {count:>count_width$}  {bar}");
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

fn range(octave: &HistogramOctave) -> String {
    match octave.to_ns {
        // The longest durations ("1.02 us") have seven characters.
        Some(to) => format!("{:>7} to {:>7}", duration(octave.from_ns), duration(to)),
        None => format!("{} or more", duration(octave.from_ns)),
    }
}

/// The length of a bar. A number other than 0 has a bar, however small it is.
fn bar_length(n: u64, most: u64, room: usize) -> usize {
    let exact = n as f64 / most.max(1) as f64 * room as f64;
    (exact.round() as usize).max(usize::from(n > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(counts: &[u64]) -> Call {
        let octave = |(at, count): (usize, &u64)| HistogramOctave {
            from_ns: 512 << at,
            to_ns: Some(1024 << at),
            count: *count,
        };
        Call {
            name: "read".into(),
            abi: "x86-64".into(),
            count: counts.iter().sum(),
            histogram: Some(counts.iter().enumerate().map(octave).collect()),
            ..Call::default()
        }
    }

    fn text(call: Call, columns: Option<usize>) -> String {
        let mut out = String::new();
        histograms(&mut out, &[call], &TextOptions { top: 20, columns });
        out
    }

    #[test]
    fn bars_fit_the_width() {
        let counts = [1_000_000, 500_000, 0, 1];
        assert_eq!(
            text(call(&counts), Some(60)),
            "
wall time of 1,500,001 calls of read
   512 ns to 1.02 us  1,000,000  ###########################
  1.02 us to 2.05 us    500,000  ##############
  2.05 us to 4.10 us          0
  4.10 us to 8.19 us          1  #
"
        );
        for (columns, width) in [(None, 80), (Some(80), 80), (Some(200), 200), (Some(20), 41)] {
            let text = text(call(&counts), columns);
            let longest = text.lines().map(str::len).max();
            assert_eq!(longest, Some(width), "{text}");
        }
    }

    #[test]
    fn the_last_octave_has_no_end() {
        let mut call = call(&[3]);
        let octave = HistogramOctave { from_ns: 1 << 36, to_ns: None, count: 3 };
        call.histogram = Some(vec![octave]);
        assert!(text(call, None).contains("\n  68.7 s or more  3  ###"));
    }

    #[test]
    fn calls_without_a_time_are_named() {
        let mut rejected = call(&[3]);
        (rejected.count, rejected.denied) = (5, 2);
        let text = |call| text(call, None);
        let head = "\nwall time of 3 calls of read; 2 more have no time\n";
        assert!(text(rejected.clone()).starts_with(head), "{}", text(rejected));
        let mut sampled = call(&[490, 6]);
        (sampled.count, sampled.untimed) = (500, 450);
        let head = "\nwall time of 500 calls of read; 450 were not timed, so the numbers are \
                    estimates (they add up to 496)\n";
        assert!(text(sampled.clone()).starts_with(head), "{}", text(sampled));
    }
}
