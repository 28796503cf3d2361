//! The section of the report of pacing: the tasks by their types, and how their speeds were set.

use std::fmt::Write as _;
use std::time::Duration;

use ::pace::Level;
use kernel::pace::actuator::Actuator;
use kernel::pace::cpufreq::FrequencyDomain;
use kernel::pace::{GateSchedule, MAX_TYPES};
use kernel::wire;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::hardware_counts::HardwareCounts;
use super::report_format::{
    ReportedInterval, interval, milliseconds, or_dash, significant, write_unended,
};
use super::speed_thread::SpeedStats;
use super::trace_file::TraceType;
use crate::format::{count, number_of, printable};
use crate::report::{Section, TextOptions, fields, more_rows};

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PacingReport {
    pub domains: Vec<PacedDomain>,
    /// From the moment at which a task needed another speed until it was written. Null if no speed
    /// was set.
    pub latency_us: Option<Latency>,
    #[serde(flatten)]
    pub hardware: HardwareCounts,
    /// The processor time of Tollgate for schedules and for the choice of estimators.
    pub planning_cpu_s: f64,
    /// The type with the most tasks first.
    pub types: Vec<PacedType>,
    #[serde(flatten)]
    pub replaced: ReplacedTypes,
    /// Tasks that had not ended at the end of the session.
    pub unfinished: usize,
    /// Tasks whose programs ended without ending them.
    pub abandoned: usize,
}

/// Types that are not kept any more, because there were too many.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplacedTypes {
    /// How often a type made room for another one.
    #[serde(rename = "replaced_types")]
    pub types: u64,
    /// The tasks of these types, which are not among those of the types that are kept.
    #[serde(rename = "replaced_tasks")]
    pub tasks: u64,
}

impl ReplacedTypes {
    fn write_text(self, out: &mut String) {
        if self.types > 0 {
            let _ = writeln!(
                out,
                "{} made room for newer ones, because at most {} are kept; their {} are not in the \
                table",
                number_of(self.types as usize, "type"),
                count(MAX_TYPES as u64),
                number_of(self.tasks as usize, "task")
            );
        }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Latency {
    pub median: f64,
    pub p99: f64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PacedDomain {
    /// The number in the name of the folder `policyN`.
    pub number: u32,
    pub cpus: Vec<u32>,
    /// How the speed is set: `setspeed`, `bounds`, `preference` or `clamp`.
    pub actuator: String,
    /// How often the speed was set.
    pub changes: u64,
    /// Why Tollgate does not set it any more. Null while it does.
    pub lost: Option<String>,
}

impl PacedDomain {
    pub fn new(domain: &FrequencyDomain, actuator: Actuator) -> Self {
        let FrequencyDomain { number, cpus, .. } = domain.clone();
        Self { number, cpus, actuator: actuator.name().to_owned(), changes: 0, lost: None }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PacedType {
    pub name: String,
    pub deadline_ms: f64,
    pub target: f64,
    pub tasks: u64,
    pub missed: u64,
    pub missed_share: Option<ReportedInterval>,
    /// The processor time of all tasks.
    pub cpu_s: f64,
    /// Their cycles divided by their processor time.
    pub mean_mhz: Option<f64>,
    /// The schedule of the next task. Null with too few tasks, which run at the fastest speed.
    pub schedule: Option<Vec<ReportedStep>>,
    pub cycles: f64,
    /// The energy beyond that of an idle processor, modelled from the power of the levels.
    pub modelled_joules: f64,
    /// What the fastest level would have needed for the same cycles, by the same model.
    pub fastest_modelled_joules: f64,
}

impl PacedType {
    pub fn new(one: &TraceType) -> Self {
        Self {
            name: one.name.clone(),
            deadline_ms: one.deadline_ms,
            target: one.target,
            tasks: 0,
            missed: 0,
            missed_share: None,
            cpu_s: 0.0,
            mean_mhz: None,
            schedule: None,
            cycles: 0.0,
            modelled_joules: 0.0,
            fastest_modelled_joules: 0.0,
        }
    }

    /// Adds a task that has ended.
    pub fn add(&mut self, record: &wire::pace_record) {
        let deadline = match record.deadline_ns {
            0 => self.deadline_ms / 1e3,
            ns => ns as f64 / 1e9,
        };
        let took = record.end_ns.saturating_sub(record.begin_ns) as f64 / 1e9;
        self.tasks += 1;
        self.missed += u64::from(took > deadline);
        self.cpu_s += record.cpu_ns as f64 / 1e9;
        self.cycles += record.cycles as f64;
        self.modelled_joules += record.energy_pj as f64 / 1e12;
    }

    /// `cycle_j` is the energy of a cycle at the fastest level.
    fn finish(&mut self, cycle_j: f64) {
        self.fastest_modelled_joules = self.cycles * cycle_j;
        self.missed_share = ReportedInterval::of_share(self.missed, self.tasks);
        self.mean_mhz = (self.cpu_s > 0.0).then(|| self.cycles / self.cpu_s / 1e6);
    }
}

/// A step of a schedule.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ReportedStep {
    /// The cycles that the task has done when the step begins.
    pub from_cycles: u64,
    pub mhz: f64,
}

impl ReportedStep {
    pub fn of_schedule(schedule: &GateSchedule) -> Vec<Self> {
        let steps = schedule.steps.iter();
        steps.map(|step| Self { from_cycles: step.cycles, mhz: step.khz as f64 / 1e3 }).collect()
    }
}

/// The input of [`PacingReport::new`].
pub struct PacedSession<'a> {
    pub domains: Vec<PacedDomain>,
    pub stats: &'a SpeedStats,
    pub types: Vec<PacedType>,
    pub replaced: ReplacedTypes,
    pub fastest: Level,
    pub idle_watts: f64,
    pub hardware: HardwareCounts,
    pub planning: Duration,
    pub unfinished: usize,
    pub abandoned: usize,
}

impl PacingReport {
    pub fn new(session: PacedSession<'_>) -> Self {
        let PacedSession { mut domains, stats, mut types, .. } = session;
        for (domain, changes) in domains.iter_mut().zip(&stats.changes) {
            domain.changes = *changes;
            let lost = stats.lost.iter().find(|(number, _)| *number == domain.number);
            domain.lost = lost.map(|(_, reason)| reason.clone());
        }
        let cycle_j = (session.fastest.watts - session.idle_watts) / session.fastest.hz;
        types.iter_mut().for_each(|one| one.finish(cycle_j));
        types.sort_by_key(|one| std::cmp::Reverse(one.tasks));
        let latency_us = stats.latency().map(|(median, p99)| Latency {
            median: median.as_secs_f64() * 1e6,
            p99: p99.as_secs_f64() * 1e6,
        });
        Self {
            domains,
            latency_us,
            hardware: session.hardware,
            planning_cpu_s: session.planning.as_secs_f64(),
            types,
            replaced: session.replaced,
            unfinished: session.unfinished,
            abandoned: session.abandoned,
        }
    }

    /// Appends the text. At most `top` types are shown.
    pub fn write_text(&self, out: &mut String, top: usize) {
        let changes: u64 = self.domains.iter().map(|domain| domain.changes).sum();
        let _ = write!(
            out,
            "pacing: {} in {}",
            number_of(changes as usize, "speed change"),
            number_of(self.domains.len(), "frequency domain")
        );
        if let Some(latency) = &self.latency_us {
            let _ = write!(
                out,
                ", latency: median {} µs, 99 % {} µs",
                significant(latency.median),
                significant(latency.p99)
            );
        }
        out.push('\n');
        self.hardware.write_text(out);
        if self.planning_cpu_s > 0.0 {
            let _ = writeln!(
                out,
                "planning used {} s of processor time",
                significant(self.planning_cpu_s)
            );
        }
        for domain in &self.domains {
            if let Some(reason) = &domain.lost {
                let _ = writeln!(out, "policy{} is not paced any more: {reason}", domain.number);
            }
        }
        write_unended(out, self.unfinished, self.abandoned);
        if self.types.is_empty() {
            let _ = writeln!(out, "no task ended");
            return;
        }
        let _ = writeln!(
            out,
            "\n{:>8} {:>9} {:>7} {:>20} {:>9} {:>6} {:>10} {:>5}  type",
            "tasks", "deadline", "target", "% missed", "CPU s", "MHz", "modelled J", "%"
        );
        for one in self.types.iter().take(top) {
            let _ = writeln!(
                out,
                "{:>8} {:>9} {:>7} {:>20} {:>9} {:>6} {:>10} {:>5}  {}",
                count(one.tasks),
                milliseconds(one.deadline_ms),
                one.target,
                or_dash(one.missed_share, interval),
                significant(one.cpu_s),
                or_dash(one.mean_mhz, |mhz| format!("{mhz:.0}")),
                significant(one.modelled_joules),
                percent(one.modelled_joules, one.fastest_modelled_joules),
                printable(&one.name)
            );
        }
        more_rows(out, self.types.len(), top, "types");
        self.replaced.write_text(out);
        let _ = writeln!(
            out,
            "The deadline is in milliseconds; MHz is the mean speed at which the tasks ran. Their \
            energy (J)\nis modelled from the power of the levels; % is its share of what the \
            fastest level would have\nneeded."
        );
    }
}

/// A share in percent, or "-".
fn percent(part: f64, whole: f64) -> String {
    if whole > 0.0 { format!("{:.1}", part / whole * 100.0) } else { "-".to_owned() }
}

impl Section for PacingReport {
    fn fields(&self) -> serde_json::Result<Map<String, Value>> {
        let mut map = Map::new();
        map.insert("pacing".into(), Value::Object(fields(self)?));
        Ok(map)
    }

    fn text(&self, out: &mut String, layout: &TextOptions, _is_only: bool) {
        out.push('\n');
        self.write_text(out, layout.top);
    }

    fn calls_seen(&self) -> Option<u64> {
        None
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros as _;

    use super::*;
    use crate::pace::hardware_counts::MeasuredEnergy;

    #[test]
    fn text_has_the_speeds_the_tasks_and_their_energy() {
        let kind = TraceType { name: "game: frame".into(), deadline_ms: 28.6, target: 0.95 };
        let rare = TraceType { name: "game: load".into(), ..kind.clone() };
        let mut frames = PacedType::new(&kind);
        for took_ms in [20, 28, 29, 20] {
            frames.add(&wire::pace_record {
                begin_ns: 1_000_000,
                end_ns: (1 + took_ms) * 1_000_000,
                cpu_ns: 10_000_000,
                cycles: 12_000_000,
                energy_pj: 3_000_000_000,
                ..wire::pace_record::new_zeroed()
            });
        }
        let domain = |number| PacedDomain {
            number,
            cpus: vec![number],
            actuator: "setspeed".into(),
            changes: 0,
            lost: None,
        };
        let mut stats = SpeedStats::default();
        stats.changes.extend([1200, 3]);
        stats.lost.push((4, "it went offline".into()));
        let mut report = PacingReport::new(PacedSession {
            domains: vec![domain(0), domain(4)],
            stats: &stats,
            types: vec![PacedType::new(&rare), frames],
            replaced: ReplacedTypes { types: 1, tasks: 2 },
            fastest: Level { hz: 3e9, watts: 9.5 },
            idle_watts: 0.5,
            hardware: HardwareCounts {
                cycle_counter: Some("cpu-cycles".into()),
                measured_energy: Some(MeasuredEnergy { joules: 9.0, source: "perf".into() }),
            },
            planning: Duration::from_millis(250),
            unfinished: 1,
            abandoned: 3,
        });
        report.latency_us = Some(Latency { median: 20.0, p99: 50.0 });
        let mut text = String::new();
        report.write_text(&mut text, 1);
        // 12 mJ, and 48 million cycles of 3 nJ.
        let expected = "\
pacing: 1,203 speed changes in 2 frequency domains, latency: median 20.0 µs, 99 % 50.0 µs
the cycles of tasks are counted by cpu-cycles
the processors used 9.00 J for all work (measured by perf)
planning used 0.250 s of processor time
policy4 is not paced any more: it went offline
unfinished tasks: 1
tasks that their programs did not end: 3

   tasks  deadline  target             % missed     CPU s    MHz modelled J     %  type
       4      28.6    0.95     25.0 [0.6, 80.6]    0.0400   1200     0.0120   8.3  game: frame
… 1 of 2 types are not shown (--top 2 shows all)
1 type made room for newer ones, because at most 4,000 are kept; their 2 tasks are not in the table
The deadline is in milliseconds; MHz is the mean speed at which the tasks ran. Their energy (J)
is modelled from the power of the levels; % is its share of what the fastest level would have
needed.
";
        assert_eq!(text, expected);
    }
}
