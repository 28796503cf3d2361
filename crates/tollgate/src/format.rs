//! Formats numbers and texts for display.

use std::borrow::Cow;
use std::path::Path;
use std::time::Duration;

/// A duration with three significant digits: "0 ns", "612 ns", "4.21 us", "1.30 s".
pub fn duration(ns: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")];
    for (unit, name) in UNITS {
        // A value that rounds up to the next unit is shown in that unit.
        if ns as f64 >= unit as f64 * 0.9995 {
            return format!("{} {name}", three_digits(ns as f64 / unit as f64));
        }
    }
    format!("{ns} ns")
}

fn three_digits(value: f64) -> String {
    if value >= 99.95 {
        format!("{value:.0}")
    } else if value >= 9.995 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

/// A long time: "12 s", "5 min", "26 h", "3 days".
pub fn span(seconds: u64) -> String {
    const HOUR: u64 = 60 * 60;
    const DAY: u64 = 24 * HOUR;
    match seconds {
        ..60 => format!("{seconds} s"),
        60..HOUR => format!("{} min", seconds / 60),
        HOUR.. if seconds < 2 * DAY => format!("{} h", seconds / HOUR),
        _ => format!("{} days", count(seconds / DAY)),
    }
}

/// A time as a user has given it, with one unit: "300 ms", "90 min", "1 h", "7 d".
pub fn given_time(time: Duration) -> String {
    const UNITS: [(u128, &str); 6] = [
        (86_400_000_000_000, "d"),
        (3_600_000_000_000, "h"),
        (60_000_000_000, "min"),
        (1_000_000_000, "s"),
        (1_000_000, "ms"),
        (1_000, "us"),
    ];
    let ns = time.as_nanos();
    match UNITS.iter().find(|(unit, _)| ns > 0 && ns.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{} {name}", ns / unit),
        None => format!("{time:?}"),
    }
}

/// A time per second in percent of one thread or one processor: "100.0".
pub fn percent_of_time(ns_per_second: f64) -> String {
    format!("{:.1}", ns_per_second / 1e7)
}

/// "1,234,567"
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// "36 %", or "<1 %" for a part that would round to nothing.
pub fn share(part: u64, whole: u64) -> String {
    if whole == 0 || part == 0 {
        return "0 %".into();
    }
    let percent = part as f64 * 100.0 / whole as f64;
    if percent < 0.5 { "<1 %".into() } else { format!("{percent:.0} %") }
}

/// Whether a character controls a terminal or the layout around it: Unicode line ends, directions
/// and invisible characters.
pub fn is_terminal_control(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
        )
}

/// Escapes the characters of [`is_terminal_control`] as in a shell's $'…', so that a name cannot
/// control the terminal.
pub fn printable(text: &str) -> String {
    let one = |c: char| match c {
        '\n' => "\\n".to_owned(),
        '\t' => "\\t".to_owned(),
        c if !is_terminal_control(c) => c.to_string(),
        c if c.is_ascii() => format!("\\x{:02x}", u32::from(c)),
        c => format!("\\u{:04x}", u32::from(c)),
    };
    text.chars().map(one).collect()
}

/// A path in a sentence.
pub fn shown_path(path: &Path) -> String {
    match path.as_os_str().is_empty() {
        true => "''".into(),
        false => printable(&path.to_string_lossy()),
    }
}

/// Escapes the characters of [`is_terminal_control`], except line ends and tabs, in a text of
/// several lines. They are escaped as in JSON, so that a JSON document keeps its meaning.
pub fn without_controls(text: &str) -> Cow<'_, str> {
    let is_escaped = |c: char| is_terminal_control(c) && c != '\n' && c != '\t';
    if !text.contains(is_escaped) {
        return text.into();
    }
    let one = |c: char| match is_escaped(c) {
        true => format!("\\u{:04x}", u32::from(c)),
        false => c.to_string(),
    };
    text.chars().map(one).collect::<String>().into()
}

/// A command line that a shell would parse into the same words.
pub fn command_line(words: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%^".contains(c);
    let quoted = |word: &String| {
        if word.chars().any(is_terminal_control) {
            format!("$'{}'", printable(&word.replace('\\', "\\\\").replace('\'', "\\'")))
        } else if !word.is_empty() && word.chars().all(plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', "'\\''"))
        }
    };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// A command line, cut off where it would fill the screen.
pub fn short_command_line(words: &[String]) -> String {
    const MAX_TITLE_LEN: usize = 200;
    let line = command_line(words);
    match line.char_indices().nth(MAX_TITLE_LEN) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// A line that is broken between words where it would exceed the width. Further lines are indented
/// more than the first one.
pub fn wrap(line: &str, width: usize) -> String {
    const INDENT: usize = 4;
    const UNITS: [&str; 5] = ["ns", "us", "ms", "s", "%"];
    // A number stays with its unit.
    let is_unit = |word: &str| UNITS.contains(&word.trim_matches(|c: char| " ,;)]".contains(c)));
    let indent = line.len() - line.trim_start().len();
    let (mut wrapped, mut used) = (" ".repeat(indent), indent);
    for word in line.trim_start().split_inclusive(' ') {
        let length = word.trim_end().chars().count();
        if used + length > width && used > indent + INDENT && !is_unit(word) {
            wrapped.truncate(wrapped.trim_end().len());
            wrapped += "\n";
            wrapped += &" ".repeat(indent + INDENT);
            used = indent + INDENT;
        }
        wrapped += word;
        used += word.chars().count();
    }
    wrapped
}

/// "1 thread", "2 threads"
pub fn number_of(n: usize, one: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{} {}", count(n as u64), plural(one)) }
}

/// A line with the number of omitted rows; empty if there are none.
pub fn and_more(all: usize, top: usize, one: &str) -> String {
    match all.saturating_sub(top) {
        0 => String::new(),
        more => format!("and {} (--top)\n", number_of(more, &format!("more {one}"))),
    }
}

fn plural(word: &str) -> String {
    match word.strip_suffix('y') {
        Some(start) if !start.ends_with(['a', 'e', 'o', 'u']) => format!("{start}ies"),
        _ if word.ends_with('s') => format!("{word}es"),
        _ => format!("{word}s"),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_between_words() {
        assert_eq!(wrap("  one two three", 80), "  one two three");
        assert_eq!(wrap("  one two three four", 12), "  one two\n      three\n      four");
        assert_eq!(wrap("it took 3.54 ms, not more", 14), "it took 3.54 ms,\n    not more");
        assert_eq!(wrap("averylongword and", 5), "averylongword\n    and");
        assert_eq!(wrap("", 5), "");
    }

    #[test]
    fn durations_have_three_digits() {
        let cases = [
            (0, "0 ns"),
            (612, "612 ns"),
            (999, "999 ns"),
            (1_000, "1.00 us"),
            (4_206, "4.21 us"),
            (99_949, "99.9 us"),
            (99_950, "100 us"),
            (999_499, "999 us"),
            (999_500, "1.00 ms"),
            (1_300_000_000, "1.30 s"),
            (7_200_000_000_000, "7200 s"),
        ];
        for (ns, text) in cases {
            assert_eq!(duration(ns), text);
        }
    }

    #[test]
    fn spans_have_one_unit() {
        let spans = [0, 59, 60, 3_599, 3_600, 172_799, 172_800, 86_400_000].map(span);
        assert_eq!(
            spans,
            ["0 s", "59 s", "1 min", "59 min", "1 h", "47 h", "2 days", "1,000 days"]
        );
    }

    #[test]
    fn given_times_have_one_unit() {
        let of_ms = |ms| given_time(Duration::from_millis(ms));
        assert_eq!([300, 1500, 2000].map(of_ms), ["300 ms", "1500 ms", "2 s"]);
        let of_seconds = |seconds| given_time(Duration::from_secs(seconds));
        let times = [90, 60, 5400, 3600, 86_400, 604_800].map(of_seconds);
        assert_eq!(times, ["90 s", "1 min", "90 min", "1 h", "1 d", "7 d"]);
        assert_eq!(given_time(Duration::from_nanos(1)), "1ns");
        assert_eq!(given_time(Duration::ZERO), "0ns");
    }

    #[test]
    fn counts_are_grouped() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_234_567), "1,234,567");
    }

    #[test]
    fn small_shares_are_shown() {
        assert_eq!(share(0, 10), "0 %");
        assert_eq!(share(1, 1000), "<1 %");
        assert_eq!(share(1, 3), "33 %");
        assert_eq!(share(3, 0), "0 %");
    }

    #[test]
    fn long_titles_are_cut() {
        assert_eq!(short_command_line(&["é".repeat(300)]).chars().count(), 201);
        assert_eq!(short_command_line(&["true".into()]), "true");
    }

    #[test]
    fn numbers_have_their_plural() {
        assert_eq!(number_of(1, "process"), "1 process");
        assert_eq!(number_of(2, "process"), "2 processes");
        assert_eq!(number_of(1234, "thread"), "1,234 threads");
        assert_eq!(number_of(2, "reply"), "2 replies");
        assert_eq!(number_of(2, "key"), "2 keys");
    }

    #[test]
    fn texts_do_not_control_the_terminal() {
        assert_eq!(printable("a\u{1b}[2J\nb"), r"a\x1b[2J\nb");
        assert_eq!(shown_path(Path::new("/tmp/a\u{9b}2J\nb")), r"/tmp/a\u009b2J\nb");
        assert_eq!(shown_path(Path::new("")), "''");
        assert_eq!(without_controls("a\tb\nc"), "a\tb\nc");
        assert_eq!(without_controls("a\u{1b}[2J\u{202e}\rb\n"), "a\\u001b[2J\\u202e\\u000db\n");
    }

    #[test]
    fn command_lines_can_be_pasted() {
        let words = ["sh", "-c", "echo it's"].map(String::from);
        assert_eq!(command_line(&words), "sh -c 'echo it'\\''s'");
        assert_eq!(command_line(&["a\u{1b}[31m\n'b".into()]), r"$'a\x1b[31m\n\'b'");
        assert_eq!(command_line(&["a\u{202e}b\u{85}é".into()]), r"$'a\u202eb\u0085é'");
    }

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
