//! A printable timeline of an attack.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde_json::Value;

/// An event of the guard.
pub struct TimelineEvent {
    /// Nanoseconds after the start of the attack or of the server.
    pub at: i64,
    pub process: String,
    pub sequence: Vec<String>,
    pub lfc: u64,
    pub held: Duration,
    pub action: String,
}

/// How many of the preceding calls are shown.
const CALLS_SHOWN: usize = 4;

impl TimelineEvent {
    /// The timeline begins `before` nanoseconds after the run.
    pub fn of(event: &Value, before: i64) -> Self {
        let number = |name: &str| event[name].as_u64().expect("a number");
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        let sequence = event["sequence"].as_array().expect("calls").iter().map(text).collect();
        Self {
            at: number("at_ns") as i64 - before,
            process: format!("{} {}", text(&event["command"]), number("tid")),
            sequence,
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

/// Formats one line for each event that raises a process's LFC to a new maximum.
pub fn table(moments: &[TimelineEvent], shown: usize) -> String {
    let mut text = String::new();
    let mut most = BTreeMap::new();
    let rises = moments.iter().filter(|moment| {
        let most = most.entry(&moment.process).or_insert(0);
        moment.lfc > std::mem::replace(most, moment.lfc.max(*most))
    });
    let rises: Vec<_> = rises.collect();
    for moment in rises.iter().take(shown) {
        let Some((call, before)) = moment.sequence.split_last() else { continue };
        let before = &before[before.len().saturating_sub(CALLS_SHOWN)..];
        let held = if moment.held.is_zero() {
            String::new()
        } else {
            format!(" {}", seconds(moment.held))
        };
        let _ = writeln!(
            text,
            "{:>8}  {}: {call} after {} (LFC {}): {}{held}",
            seconds(Duration::from_nanos(moment.at.max(0) as u64)),
            moment.process,
            before.join(" "),
            moment.lfc,
            moment.action
        );
    }
    let others = moments.len() - rises.len().min(shown);
    if others > 0 {
        let _ = writeln!(text, "          and {others} others");
    }
    text
}
