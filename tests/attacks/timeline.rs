//! What happened when, in words.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::Value;

/// An event of the guard.
pub struct Moment {
    pub at: Duration,
    pub process: String,
    pub sequence: Vec<String>,
    pub mismatches: u64,
    pub lfc: u64,
    pub held: Duration,
    pub action: String,
}

const SHOWN: usize = 16;
/// Of the calls before it.
const CALLS_SHOWN: usize = 4;

impl Moment {
    /// `before` nanoseconds of its run are not told.
    pub fn of(event: &Value, before: u64) -> Self {
        let number = |name: &str| event[name].as_u64().expect("a number");
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        let sequence = event["sequence"].as_array().expect("calls").iter().map(text).collect();
        Self {
            at: Duration::from_nanos(number("at_ns").saturating_sub(before)),
            process: format!("{} {}", text(&event["command"]), number("tid")),
            sequence,
            mismatches: number("mismatches"),
            lfc: number("lfc"),
            held: Duration::from_nanos(number("held_ns")),
            action: text(&event["action"]),
        }
    }
}

pub fn seconds(time: Duration) -> String {
    match time.as_secs_f64() {
        time if time < 0.1 => format!("{:.1} ms", time * 1e3),
        time if time < 1.0 => format!("{:.0} ms", time * 1e3),
        time => format!("{time:.1} s"),
    }
}

pub fn table(moments: &[Moment]) -> String {
    let mut text = String::new();
    for moment in moments.iter().take(SHOWN) {
        let Some((call, before)) = moment.sequence.split_last() else { continue };
        let before = &before[before.len().saturating_sub(CALLS_SHOWN)..];
        let held = if moment.held.is_zero() { String::new() } else { format!(" {}", seconds(moment.held)) };
        let _ = writeln!(
            text,
            "{:>8}  {}: {call} after {} (LFC {}): {}{held}",
            seconds(moment.at),
            moment.process,
            before.join(" "),
            moment.lfc,
            moment.action
        );
    }
    if moments.len() > SHOWN {
        let _ = writeln!(text, "          … and {} more", moments.len() - SHOWN);
    }
    text
}
