//! The section of the report of a watch: the tasks as they were observed, which deadlines each
//! policy would have met, and how much energy it would have used.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Map, Value};

use super::hardware_counts::HardwareCounts;
use super::recorder::Recorded;
use super::report_format::{
    ReportedInterval, interval, milliseconds, or_dash, quantile, significant, write_unended,
};
use super::simulate_report::{SimulateReport, simulation_text};
use crate::format::{count, number_of, printable};
use crate::report::{Section, TextOptions, fields, more_rows};

#[derive(Serialize)]
pub struct WatchReport {
    /// How many speeds are worthwhile here.
    pub summary: String,
    #[serde(flatten)]
    pub observed: ObservedTasks,
    #[serde(flatten)]
    pub hardware: HardwareCounts,
    /// Null with too few tasks.
    pub simulation: Option<SimulateReport>,
}

/// The tasks as they were observed.
#[derive(Serialize)]
pub struct ObservedTasks {
    /// The type with the most tasks first.
    pub types: Vec<ObservedType>,
    /// Tasks that had not ended at the end of the watch.
    pub unfinished: usize,
    /// Tasks whose programs ended without ending them.
    pub abandoned: usize,
}

#[derive(Serialize)]
pub struct ObservedType {
    pub name: String,
    pub deadline_ms: f64,
    pub target: f64,
    pub tasks: usize,
    /// The time from the beginning to the end of a task.
    pub took_ms: Quantiles,
    /// The processor time of a task.
    pub cpu_ms: Quantiles,
    pub missed: u64,
    pub missed_share: Option<ReportedInterval>,
}

#[derive(Serialize)]
pub struct Quantiles {
    pub median: f64,
    pub p95: f64,
    pub p99: f64,
    pub max: f64,
}

impl Quantiles {
    /// The quantiles of values, of which there is at least one.
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let [median, p95, p99, max] =
            [0.5, 0.95, 0.99, 1.0].map(|share| quantile(&values, share).expect("a value"));
        Self { median, p95, p99, max }
    }
}

impl ObservedTasks {
    pub fn of(recorded: &Recorded) -> Self {
        let types = recorded.types.iter().zip(recorded.by_type()).map(|(one, own)| {
            let missed = own.iter().filter(|one| one.took > one.task.deadline).count() as u64;
            ObservedType {
                name: one.name.clone(),
                deadline_ms: one.deadline_ms,
                target: one.target,
                tasks: own.len(),
                took_ms: Quantiles::of(own.iter().map(|one| one.took * 1e3).collect()),
                cpu_ms: Quantiles::of(own.iter().map(|one| one.cpu * 1e3).collect()),
                missed,
                missed_share: ReportedInterval::of_share(missed, own.len() as u64),
            }
        });
        let mut types: Vec<_> = types.collect();
        types.sort_by_key(|one| std::cmp::Reverse(one.tasks));
        Self { types, unfinished: recorded.unfinished, abandoned: recorded.abandoned }
    }
}

impl Section for WatchReport {
    fn fields(&self) -> serde_json::Result<Map<String, Value>> {
        let mut map = Map::new();
        map.insert("pace".into(), Value::Object(fields(self)?));
        Ok(map)
    }

    fn first_line(&self) -> Option<String> {
        Some(format!("pace: {}", self.summary))
    }

    fn text(&self, out: &mut String, layout: &TextOptions, _is_only: bool) {
        out.push('\n');
        self.observed_text(out, layout);
        if let Some(simulation) = &self.simulation {
            out.push('\n');
            *out += &simulation_text(simulation, layout.top);
        }
    }

    fn calls_seen(&self) -> Option<u64> {
        None
    }
}

impl WatchReport {
    fn observed_text(&self, out: &mut String, layout: &TextOptions) {
        let tasks: usize = self.observed.types.iter().map(|one| one.tasks).sum();
        let _ = writeln!(
            out,
            "{} of {}",
            number_of(tasks, "task"),
            number_of(self.observed.types.len(), "type")
        );
        write_unended(out, self.observed.unfinished, self.observed.abandoned);
        self.hardware.write_text(out);
        if tasks == 0 {
            return;
        }
        let _ = writeln!(
            out,
            "\n{:>8} {:>9} {:>9} {:>9} {:>9} {:>9} {:>20}  type",
            "tasks", "deadline", "median", "95 %", "maximum", "CPU", "% missed"
        );
        for one in self.observed.types.iter().take(layout.top) {
            let _ = writeln!(
                out,
                "{:>8} {:>9} {:>9} {:>9} {:>9} {:>9} {:>20}  {}",
                count(one.tasks as u64),
                milliseconds(one.deadline_ms),
                significant(one.took_ms.median),
                significant(one.took_ms.p95),
                significant(one.took_ms.max),
                significant(one.cpu_ms.median),
                or_dash(one.missed_share, interval),
                printable(&one.name)
            );
        }
        more_rows(out, self.observed.types.len(), layout.top, "types");
        let _ = writeln!(
            out,
            "All times are in milliseconds; CPU is the median of a task's processor time."
        );
    }
}
