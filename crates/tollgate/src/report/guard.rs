//! What the guard saw, as a part of the document.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::Layout;
use crate::format::{count, duration, number_of, printable};

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Guard {
    /// learn, watch or enforce
    pub mode: String,
    /// What enforce does, and where that takes effect.
    pub response: String,
    pub programs: Vec<GuardedProgram>,
    /// Anomalies, and calls at which something was done, in order.
    pub events: Vec<Event>,
    /// Events that are not listed, as there were too many.
    pub events_left_out: u64,
    /// Programs that ended before their file could be looked at: what they did is not stored.
    pub unidentified: u64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct GuardedProgram {
    pub path: String,
    /// SHA-256 of its content; none: it ended before it could be read.
    pub digest: Option<String>,
    /// What its baseline is of besides the content; none: nothing.
    #[serde(default)]
    pub scope: Option<String>,
    pub state: String,
    /// Judged in this run, the early ones included.
    pub calls: u64,
    /// Of them, made before its baseline was there: learned, but not tested.
    pub early_calls: u64,
    pub pairs: usize,
    pub windows: usize,
    /// Windows for which there is no room: such a program does not become normal.
    pub unlearned: u64,
    pub anomalies: u64,
    /// The most anomalies among 128 calls.
    pub max_lfc: u32,
    pub holds: u64,
    /// The sum of what was asked for; a hold ends early with the run.
    pub held_ns: u64,
    pub killed: u64,
    /// Of execves, with deny.
    #[serde(default)]
    pub refused: u64,
    /// Calls that were to be held, but as many processes were as may be.
    #[serde(default)]
    pub unheld: u64,
    /// Kernel memory of its profile.
    pub bytes: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Event {
    /// RFC 3339, by the machine's clock.
    pub time: String,
    /// Nanoseconds after the run began.
    pub at_ns: u64,
    /// The systemd unit that it belongs to.
    pub unit: Option<String>,
    /// The start of its container's number.
    pub container: Option<String>,
    pub pid: u32,
    pub tid: u32,
    pub program: String,
    #[serde(default)]
    pub scope: Option<String>,
    pub command: String,
    pub call: String,
    /// With the call, the oldest first.
    pub sequence: Vec<String>,
    /// What normally follows the call before it.
    pub expected: Vec<String>,
    pub mismatches: u16,
    /// A plugin says that it is an anomaly.
    #[serde(default)]
    pub is_denounced: bool,
    pub lfc: u8,
    /// observe, delay, deny, stop or kill
    pub action: String,
    /// Why less was done than the response says: "never held" or "too many are held".
    pub restraint: Option<String>,
    /// Where that takes effect: before, before-ip, end or next; none: nothing was done.
    #[serde(default)]
    pub effect: Option<String>,
    pub held_ns: u64,
    /// From the call to when Tollgate took the event in.
    pub late_ns: u64,
}

impl Event {
    pub fn what_was_done(&self) -> String {
        let held = if self.held_ns > 0 { format!(" for {}", duration(self.held_ns)) } else { String::new() };
        let restraint = self.restraint.as_ref().map_or(String::new(), |why| format!(" ({why})"));
        let effect = match self.effect.as_deref() {
            Some("before") => ", before it",
            Some("before-ip") => ", before it over IP, else at its end",
            Some("next") => ", at the next call",
            Some(_) => ", at its end",
            None => "",
        };
        format!("{}{held}{effect}{restraint}", self.action)
    }

    /// In the call's place, of which at most so many are listed.
    pub fn usual(&self, most: usize) -> Option<String> {
        if self.is_denounced && self.mismatches == 0 {
            return Some("a plugin says that this is unusual".into());
        }
        if self.mismatches == 0 || self.expected.is_empty() {
            return None;
        }
        if let [.., before, _] = self.sequence.as_slice()
            && self.expected.contains(&self.call)
        {
            return Some(format!("usual after {before}, but not after all the calls before it"));
        }
        let shown = self.expected.iter().take(most).cloned().collect::<Vec<_>>().join(", ");
        let more = self.expected.len().saturating_sub(most);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        Some(format!("usual there: {shown}{more}"))
    }
}

/// A hold that ends only when somebody says so has no time.
pub fn held_for(holds: u64, ns: u64) -> String {
    if holds > 0 && ns == 0 { "no end".into() } else { duration(ns) }
}

/// A program with its scope, as people read it.
pub fn scoped(program: &str, scope: Option<&str>) -> String {
    scope.map_or_else(|| program.to_owned(), |scope| format!("{program} [{scope}]"))
}

impl GuardedProgram {
    pub fn title(&self) -> String {
        scoped(&self.path, self.scope.as_deref())
    }

    /// Of a table with so many places for the calls.
    pub fn heading(calls: usize) -> String {
        format!(
            "{:<40} {:>9} {:>calls$} {:>8} {:>8} {:>8} {:>6} {:>10}",
            "program", "state", "calls", "unusual", "most/128", "holds", "killed", "held"
        )
    }

    pub fn row(&self, calls: usize) -> String {
        format!(
            "{:<40} {:>9} {:>calls$} {:>8} {:>8} {:>8} {:>6} {:>10}",
            printable(&self.title()),
            self.state,
            count(self.calls),
            count(self.anomalies),
            self.max_lfc,
            count(self.holds),
            self.killed,
            held_for(self.holds, self.held_ns)
        )
    }
}

const CALLS_WIDTH: usize = 12;
const EXPECTED_SHOWN: usize = 5;

pub fn text(out: &mut String, guard: &Guard, layout: &Layout) {
    let sum = |part: fn(&GuardedProgram) -> u64| guard.programs.iter().map(part).sum::<u64>();
    let (holds, held_ns) = (sum(|program| program.holds), sum(|program| program.held_ns));
    let _ = writeln!(
        out,
        "\nguard ({}): {} made {} calls, {} of them unusual; {}{}",
        guard.mode,
        number_of(guard.programs.len(), "program"),
        count(sum(|program| program.calls)),
        count(sum(|program| program.anomalies)),
        number_of(holds as usize, "hold"),
        if holds == 0 { String::new() } else { format!(" of {}", held_for(holds, held_ns)) },
    );
    if guard.mode == "enforce" {
        let _ = writeln!(out, "  response: {}", guard.response);
    }
    let _ = writeln!(out, "\n  {}", GuardedProgram::heading(CALLS_WIDTH));
    for program in guard.programs.iter().take(layout.top) {
        let _ = writeln!(out, "  {}", program.row(CALLS_WIDTH));
        if program.unlearned > 0 {
            let _ =
                writeln!(out, "    has more windows than there is room for, so it does not become normal");
        }
        if program.unheld > 0 {
            let unheld = number_of(program.unheld as usize, "call");
            let _ = writeln!(out, "    {unheld} not held: as many processes were as --held-most allows");
        }
        if program.early_calls > 0 && program.state == "normal" {
            let early = count(program.early_calls);
            let _ =
                writeln!(out, "    {early} calls were made before its baseline was there, and not tested");
        }
    }
    super::text::more(out, guard.programs.len(), layout.top, "programs");
    events(out, guard, layout);
    if guard.unidentified > 0 {
        let ended = number_of(guard.unidentified as usize, "program");
        let _ =
            writeln!(out, "note: {ended} ended before they could be identified; what they did is not stored");
    }
}

fn events(out: &mut String, guard: &Guard, layout: &Layout) {
    if guard.events.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n  unusual calls, and what was done:");
    for event in guard.events.iter().take(layout.top) {
        let before = &event.sequence[..event.sequence.len().saturating_sub(1)];
        let _ = writeln!(
            out,
            "  {:>10}  {} {}: {} after {} (LFC {}): {}",
            duration(event.at_ns),
            printable(&event.command),
            event.tid,
            event.call,
            before.join(" "),
            event.lfc,
            event.what_was_done(),
        );
        if let Some(usual) = event.usual(EXPECTED_SHOWN) {
            let _ = writeln!(out, "              {usual}");
        }
    }
    let hidden = guard.events.len().saturating_sub(layout.top) as u64 + guard.events_left_out;
    if hidden > 0 {
        let _ = writeln!(out, "  … and {} more", count(hidden));
    }
}
