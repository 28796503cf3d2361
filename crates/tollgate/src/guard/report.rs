//! The guard's part of a report.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::fitted_table::{FittedTable, TableColumn};
use crate::format::{count, duration, number_of, printable};
use crate::report::{Section, TextOptions, field, more_rows};

/// What the guard of a session did.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct GuardReport {
    /// learn, watch or enforce
    pub mode: String,
    /// How enforce responds, and at which point of a call.
    pub response: String,
    pub programs: Vec<GuardedProgram>,
    /// Anomalies, and calls to which the guard responded, in order.
    pub events: Vec<GuardEvent>,
    /// Number of events that are not listed because there were too many.
    pub events_left_out: u64,
    /// Programs that ended before their files could be opened; what they did is not stored.
    pub unidentified: u64,
    /// Signals SIGCONT that other processes have sent to held ones.
    #[serde(default)]
    pub foreign_continues: u64,
}

/// A program, and what it did in this session.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct GuardedProgram {
    pub path: String,
    /// Why the program is not identified by the content of its file: "not hashed yet", "longer than
    /// 1 GiB", or "not readable". What it does is learned, neither tested nor stored.
    #[serde(default)]
    pub not_identified: Option<String>,
    /// The SHA-256 digest of the program's file. Null if the file could not be hashed, or if the
    /// stored baseline cannot be used.
    pub digest: Option<String>,
    /// The scope of the program's baseline. Null if only the content counts.
    #[serde(default)]
    pub scope: Option<String>,
    pub state: String,
    /// Calls that were trained or tested in this run, including the early ones.
    pub calls: u64,
    /// The calls that the program made before its baseline was loaded. They were trained, but not
    /// tested.
    pub early_calls: u64,
    pub pairs: usize,
    pub windows: usize,
    /// Windows that did not fit. A program with such windows rarely becomes normal.
    pub unlearned: u64,
    pub anomalies: u64,
    /// The highest LFC, which is the number of anomalies among a thread's latest 128 calls.
    pub max_lfc: u32,
    pub holds: u64,
    /// The sum of the requested times. A hold may be shorter, because it ends with the run.
    pub held_ns: u64,
    pub killed: u64,
    /// Execves that were refused (deny).
    #[serde(default)]
    pub refused: u64,
    /// Calls that were not held because --max-held processes were held already.
    #[serde(default)]
    pub unheld: u64,
    /// The anomalies of its baseline that count towards the anomaly limit.
    #[serde(default)]
    pub counted_anomalies: u64,
    /// How often its baseline returned to training because of the anomaly limit.
    #[serde(default)]
    pub retrained: u64,
    /// The kernel memory of its profile.
    pub bytes: u64,
}

/// An anomalous or denounced call, or a call to which the guard responded.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GuardEvent {
    /// RFC 3339, by the machine's clock.
    pub time: String,
    /// Nanoseconds after the run began.
    pub at_ns: u64,
    /// The systemd unit that the process belongs to.
    pub unit: Option<String>,
    /// The start of the ID of the process's container.
    pub container: Option<String>,
    pub pid: u32,
    pub tid: u32,
    pub program: String,
    #[serde(default)]
    pub scope: Option<String>,
    pub command: String,
    /// The path of the file that the process executed. It differs from `program` for a copy. Null
    /// if it is not known.
    #[serde(default)]
    pub executable: Option<String>,
    /// The real user ID.
    #[serde(default)]
    pub uid: u32,
    /// The name in /etc/passwd.
    #[serde(default)]
    pub user: Option<String>,
    /// Null if the parent is in another PID namespace.
    #[serde(default)]
    pub parent_pid: Option<u32>,
    #[serde(default)]
    pub parent_command: String,
    pub call: String,
    /// The calls up to this one, the oldest first.
    pub sequence: Vec<String>,
    /// The calls that normally follow the previous call.
    pub expected: Vec<String>,
    pub mismatches: u16,
    /// A plugin has denounced the call.
    #[serde(default)]
    pub is_denounced: bool,
    pub lfc: u8,
    /// observe, delay, deny, stop or kill
    pub action: String,
    /// Why the response was weaker than configured, or may have been: "never held", "not
    /// identified yet", "too many are held", "requested to end", "the call has no end" or "its
    /// tracer decides".
    pub restraint: Option<String>,
    /// Because of this anomaly, the program's baseline returned to training.
    #[serde(default)]
    pub retrains: bool,
    /// Where the response takes effect: before, before-ip, end or next. Null if there was no
    /// response.
    #[serde(default)]
    pub effect: Option<String>,
    pub held_ns: u64,
    /// The time from the call until Tollgate received the event.
    pub late_ns: u64,
}

impl GuardEvent {
    /// An event as a self-contained line.
    pub fn line(&self) -> String {
        let location = self.location();
        let copy = self.executable.as_ref().filter(|executable| **executable != self.program);
        let copy = copy.map_or(String::new(), |executable| format!(", executed as {executable}"));
        let user = self.user.clone().unwrap_or_else(|| self.uid.to_string());
        let parent = self.parent_pid.map_or(String::new(), |pid| format!(" {pid}"));
        printable(&format!(
            "{} {} ({}{copy}) of {user}, child of {}{parent}{location}: {}",
            self.command,
            self.pid,
            with_scope(&self.program, self.scope.as_deref()),
            self.parent_command,
            self.call_and_action()
        ))
    }

    /// The same without the user and the parent, so that a screen has room for the call.
    pub fn short_line(&self) -> String {
        let program = with_scope(&self.program, self.scope.as_deref());
        let location = self.location();
        let what = self.call_and_action();
        printable(&format!("{} {} ({program}){location}: {what}", self.command, self.pid))
    }

    fn location(&self) -> String {
        self.unit.iter().chain(&self.container).map(|name| format!(" in {name}")).collect()
    }

    /// The call, the calls before it, and what the guard did.
    fn call_and_action(&self) -> String {
        // The window is empty at first, after a release, and in a signal handler.
        let after = match self.sequence.as_slice() {
            [] | [_] => String::new(),
            [before @ .., _] => format!(" after {}", before.join(" ")),
        };
        let denounced = if self.is_denounced { ", denounced by a plugin" } else { "" };
        format!("{}{after} (LFC {}{denounced}): {}", self.call, self.lfc, self.action_text())
    }

    /// What the guard did, with the time and the reason.
    pub fn action_text(&self) -> String {
        let held = if self.held_ns > 0 {
            format!(" for {}", duration(self.held_ns))
        } else {
            String::new()
        };
        let restraint =
            self.restraint.as_ref().map_or(String::new(), |reason| format!(" ({reason})"));
        let effect = match self.effect.as_deref() {
            Some("before") => ", before it takes effect",
            Some("before-ip") => ", before it takes effect over IP, otherwise at its end",
            Some("next") => ", at the thread's next call",
            Some(_) if self.action == "kill" => ", before it returns",
            Some(_) => ", at its end",
            None => "",
        };
        let retrains = if self.retrains { "; its program is in training again" } else { "" };
        format!("{}{held}{effect}{restraint}{retrains}", self.action)
    }

    /// The calls expected in place of this one; at most `most` of them are listed.
    pub fn expected_text(&self, most: usize) -> Option<String> {
        if self.mismatches == 0 || self.expected.is_empty() {
            return None;
        }
        if let [.., before, _] = self.sequence.as_slice()
            && self.expected.contains(&self.call)
        {
            return Some(format!("normal after {before}, but not after all the calls before it"));
        }
        let shown = self.expected.iter().take(most).cloned().collect::<Vec<_>>().join(", ");
        let more = self.expected.len().saturating_sub(most);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        Some(format!("normal here: {shown}{more}"))
    }
}

/// The time of holds; a hold that only an operator ends has none.
pub fn held_for(holds: u64, ns: u64) -> String {
    if holds > 0 && ns == 0 { "until released".into() } else { duration(ns) }
}

/// A program with its scope, for display.
pub fn with_scope(program: &str, scope: Option<&str>) -> String {
    printable(&scope.map_or_else(|| program.to_owned(), |scope| format!("{program} [{scope}]")))
}

impl GuardedProgram {
    /// States that the program is not identified, and why, if so.
    pub fn not_identified_text(&self) -> Option<String> {
        self.not_identified.as_ref().map(|why| {
            format!("its file is not identified ({why}), so it is neither tested nor stored")
        })
    }

    /// The path and the scope, for display.
    pub fn title(&self) -> String {
        with_scope(&self.path, self.scope.as_deref())
    }

    /// The heading of a table whose column of calls has this width.
    fn heading(calls: usize) -> String {
        format!(
            "{:<40} {:>9} {:>calls$} {:>9} {:>8} {:>8} {:>6} {:>10}",
            "program", "state", "calls", "anomalies", "most/128", "holds", "killed", "held"
        )
    }

    /// A row of the table whose column of calls has this width.
    fn row(&self, calls: usize) -> String {
        format!(
            "{:<40} {:>9} {:>calls$} {:>9} {:>8} {:>8} {:>6} {:>10}",
            self.title(),
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

/// The columns besides the program, for a terminal that has no room for all of them.
const COLUMNS: [TableColumn<GuardedProgram>; 7] = [
    TableColumn { title: "state", rank: 1, gap: 1, cell: |it| it.state.clone() },
    TableColumn { title: "calls", rank: 3, gap: 1, cell: |it| count(it.calls) },
    TableColumn { title: "anomalies", rank: 0, gap: 1, cell: |it| count(it.anomalies) },
    TableColumn { title: "most/128", rank: 5, gap: 1, cell: |it| it.max_lfc.to_string() },
    TableColumn { title: "holds", rank: 2, gap: 1, cell: |it| count(it.holds) },
    TableColumn { title: "killed", rank: 6, gap: 1, cell: |it| it.killed.to_string() },
    TableColumn { title: "held", rank: 4, gap: 1, cell: |it| held_for(it.holds, it.held_ns) },
];

/// The table of programs. It has fixed widths, or on a narrower terminal those that it needs.
pub struct GuardedPrograms {
    calls_width: usize,
    fitted: Option<FittedTable<GuardedProgram>>,
}

impl GuardedPrograms {
    /// A table whose column of calls has this width. `columns`: the width of the terminal, if it is
    /// written to one.
    pub fn new(programs: &[GuardedProgram], calls_width: usize, columns: Option<usize>) -> Self {
        let rows = programs.iter().map(|program| program.row(calls_width).chars().count());
        let width = rows.chain([GuardedProgram::heading(calls_width).len()]).max();
        let is_too_wide = columns.is_some_and(|columns| width > Some(columns));
        let fitted = is_too_wide.then(|| {
            let titles = ["program"].into_iter();
            FittedTable::new(&COLUMNS, GuardedProgram::title, titles, programs.iter(), columns)
        });
        Self { calls_width, fitted }
    }

    /// The heading, without a newline.
    pub fn heading(&self) -> String {
        self.line(GuardedProgram::heading, |table, out| table.titles(out, "program"))
    }

    /// A program's row, without a newline.
    pub fn row(&self, program: &GuardedProgram) -> String {
        self.line(|calls| program.row(calls), |table, out| table.row(out, program))
    }

    /// A line that names the columns that have no room, without a newline; empty if there are none.
    pub fn left_out(&self) -> String {
        self.line(|_| String::new(), |table, out| table.left_out(out))
    }

    fn line(
        &self,
        fixed: impl FnOnce(usize) -> String,
        fitted: impl FnOnce(&FittedTable<GuardedProgram>, &mut String),
    ) -> String {
        let Some(table) = &self.fitted else { return fixed(self.calls_width) };
        let mut out = String::new();
        fitted(table, &mut out);
        out.trim_end().to_owned()
    }
}

const CALLS_WIDTH: usize = 12;
const INDENTATION: &str = "  ";
const EXPECTED_SHOWN: usize = 5;

impl Section for GuardReport {
    fn fields(&self) -> serde_json::Result<Map<String, Value>> {
        field("guard", self)
    }

    fn text(&self, out: &mut String, layout: &TextOptions, _is_only: bool) {
        guard_text(out, self, layout);
    }

    fn calls_seen(&self) -> Option<u64> {
        Some(self.programs.iter().map(|program| program.calls).sum())
    }
}

fn guard_text(out: &mut String, guard: &GuardReport, layout: &TextOptions) {
    let sum = |part: fn(&GuardedProgram) -> u64| guard.programs.iter().map(part).sum::<u64>();
    let (holds, held_ns) = (sum(|program| program.holds), sum(|program| program.held_ns));
    let _ = writeln!(
        out,
        "\nguard ({}): {} made {} calls, {} of them anomalous; {}{}",
        guard.mode,
        number_of(guard.programs.len(), "program"),
        count(sum(|program| program.calls)),
        count(sum(|program| program.anomalies)),
        number_of(holds as usize, "hold"),
        match (holds, held_ns) {
            (0, _) => String::new(),
            (_, 0) => " until released".into(),
            (_, held_ns) => format!(" of {}", duration(held_ns)),
        },
    );
    if guard.mode == "enforce" {
        let _ = writeln!(out, "  response: {}", guard.response);
    }
    let shown = &guard.programs[..guard.programs.len().min(layout.top)];
    let columns = layout.columns.map(|columns| columns.saturating_sub(INDENTATION.len()));
    let table = GuardedPrograms::new(shown, CALLS_WIDTH, columns);
    let _ = writeln!(out, "\n{INDENTATION}{}", table.heading());
    for program in shown {
        let _ = writeln!(out, "{INDENTATION}{}", table.row(program));
        if let Some(line) = program.not_identified_text() {
            let _ = writeln!(out, "    {line}");
        }
        if program.unlearned > 0 {
            let _ = writeln!(
                out,
                "    its profile has no room for all windows, so it may never become normal"
            );
        }
        if program.unheld > 0 {
            let unheld = number_of(program.unheld as usize, "call");
            let _ = writeln!(
                out,
                "    {unheld} not held, because --max-held processes were held already"
            );
        }
        if program.retrained > 0 {
            let _ = writeln!(out, "    {RETRAINED}");
        }
        if program.early_calls > 0 && program.state == "normal" {
            let early = count(program.early_calls);
            let _ = writeln!(
                out,
                "    {early} calls were made before its baseline was loaded, and were not tested"
            );
        }
    }
    let left_out = table.left_out();
    if !left_out.is_empty() {
        let _ = writeln!(out, "{INDENTATION}{left_out}");
    }
    more_rows(out, guard.programs.len(), layout.top, "programs");
    events(out, guard, layout);
    if let Some(continues) = continues_text(guard.foreign_continues) {
        let _ = writeln!(out, "note: {continues}");
    }
    if let Some(ended) = unidentified_text(guard.unidentified) {
        let _ = writeln!(out, "note: {ended}");
    }
}

/// States that a program is not tested any more.
pub const RETRAINED: &str =
    "returned to training, and was not tested after that: too many anomalies have counted";

/// States that programs have ended too soon, if any have.
pub fn unidentified_text(unidentified: u64) -> Option<String> {
    (unidentified > 0).then(|| {
        let ended = number_of(unidentified as usize, "program");
        format!("{ended} ended before being identified; their calls are not stored")
    })
}

/// States that others have continued held processes, if they have.
pub fn continues_text(foreign_continues: u64) -> Option<String> {
    (foreign_continues > 0).then(|| {
        let times = number_of(foreign_continues as usize, "time");
        format!("others continued held processes {times}; each time, these may make some calls")
    })
}

fn events(out: &mut String, guard: &GuardReport, layout: &TextOptions) {
    if guard.events.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n  anomalies and responses:");
    for event in guard.events.iter().take(layout.top) {
        let _ = writeln!(
            out,
            "  {:>10}  {} {}: {}",
            duration(event.at_ns),
            printable(&event.command),
            event.tid,
            event.call_and_action(),
        );
        if let Some(expected) = event.expected_text(EXPECTED_SHOWN) {
            let _ = writeln!(out, "              {expected}");
        }
    }
    let hidden = guard.events.len().saturating_sub(layout.top) as u64 + guard.events_left_out;
    if hidden > 0 {
        let _ = writeln!(out, "  … and {} more", count(hidden));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(sequence: &[&str], action: &str, held_ns: u64) -> GuardEvent {
        GuardEvent {
            time: String::new(),
            at_ns: 0,
            unit: None,
            container: None,
            pid: 1,
            tid: 1,
            program: "/bin/x".into(),
            scope: None,
            command: "x".into(),
            executable: Some("/bin/x".into()),
            uid: 1001,
            user: Some("ann".into()),
            parent_pid: Some(7),
            parent_command: "sh".into(),
            call: "getppid".into(),
            sequence: sequence.iter().map(ToString::to_string).collect(),
            expected: Vec::new(),
            mismatches: 1,
            is_denounced: false,
            lfc: 1,
            action: action.into(),
            restraint: None,
            retrains: false,
            effect: Some("end".into()),
            held_ns,
            late_ns: 0,
        }
    }

    #[test]
    fn narrow_terminals_have_fewer_columns() {
        let program =
            GuardedProgram { path: "/usr/bin/program".into(), ..GuardedProgram::default() };
        let programs = [program];
        let lines = |columns| {
            let table = GuardedPrograms::new(&programs, 14, columns);
            [table.heading(), table.row(&programs[0]), table.left_out()]
        };
        let wide = lines(None);
        assert_eq!((&wide, wide[0].len(), wide[2].as_str()), (&lines(Some(111)), 111, ""));
        for columns in [80, 40] {
            let narrow = lines(Some(columns));
            assert!(narrow[..2].iter().all(|line| line.len() <= columns), "{narrow:#?}");
            assert!(narrow[0].contains("anomalies"), "{narrow:#?}");
        }
        assert!(lines(Some(40))[2].contains("no room for"));
    }

    #[test]
    fn lines_say_what_was_done() {
        let line = |event: GuardEvent| event.line();
        assert_eq!(
            event(&["read", "getppid"], "observe", 0).short_line(),
            "x 1 (/bin/x): getppid after read (LFC 1): observe, at its end"
        );
        assert_eq!(
            line(event(&["read", "write", "getppid"], "delay", 80_000_000)),
            "x 1 (/bin/x) of ann, child of sh 7: getppid after read write (LFC 1): delay for \
             80.0 ms, at its end"
        );
        for alone in [&["getppid"][..], &[]] {
            assert_eq!(
                line(event(alone, "kill", 0)),
                "x 1 (/bin/x) of ann, child of sh 7: getppid (LFC 1): kill, before it returns"
            );
        }
        let copy = GuardEvent {
            executable: Some("/tmp/y".into()),
            user: None,
            parent_pid: None,
            ..event(&[], "observe", 0)
        };
        assert_eq!(
            line(GuardEvent { effect: None, ..copy }),
            "x 1 (/bin/x, executed as /tmp/y) of 1001, child of sh: getppid (LFC 1): observe"
        );
        let summary = |holds, held_ns| {
            let program = GuardedProgram { holds, held_ns, ..GuardedProgram::default() };
            let report = GuardReport { programs: vec![program], ..GuardReport::default() };
            let mut text = String::new();
            guard_text(&mut text, &report, &TextOptions { top: 1, columns: None });
            let first = text.trim_start().lines().next().expect("a line");
            first.rsplit("; ").next().map(str::to_owned)
        };
        assert_eq!(summary(0, 0).as_deref(), Some("0 holds"));
        assert_eq!(summary(1, 0).as_deref(), Some("1 hold until released"));
        assert_eq!(summary(2, 400_000_000).as_deref(), Some("2 holds of 400 ms"));
        let restraint = Some("its tracer decides".to_owned());
        assert_eq!(
            line(GuardEvent { restraint, ..event(&[], "delay", 0) }),
            "x 1 (/bin/x) of ann, child of sh 7: getppid (LFC 1): delay, at its end (its tracer \
             decides)"
        );
    }
}
