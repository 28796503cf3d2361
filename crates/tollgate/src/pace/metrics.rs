//! The metrics of pacing.

use super::pacing_report::{PacedType, PacingReport};
use crate::metrics::{family, label};

/// Writes the metrics of a daemon that paces.
pub fn pacing_metrics(out: &mut String, report: &PacingReport) {
    let mut of_types = |name: &str, kind: &str, help: &str, value: fn(&PacedType) -> f64| {
        let values = report.types.iter().map(|one| (label("type", &one.name), value(one)));
        family(out, name, kind, help, values);
    };
    of_types("pace_tasks_total", "counter", "Tasks that have ended.", |one| one.tasks as f64);
    of_types("pace_missed_total", "counter", "Tasks that missed their deadlines.", |one| {
        one.missed as f64
    });
    of_types("pace_cpu_seconds_total", "counter", "Processor time of tasks, in seconds.", |one| {
        one.cpu_s
    });
    of_types("pace_cycles_total", "counter", "Cycles of tasks.", |one| one.cycles);
    of_types(
        "pace_modelled_joules_total",
        "counter",
        "Energy of tasks beyond that of an idle processor, modelled from the power of the levels.",
        |one| one.modelled_joules,
    );
    of_types("pace_target", "gauge", "The share of tasks that should meet the deadline.", |one| {
        one.target
    });
    let domains = report.domains.iter().map(|domain| {
        (label("domain", &format!("policy{}", domain.number)), domain.changes as f64)
    });
    family(out, "pace_speed_changes_total", "counter", "Speeds that were set.", domains);
    if let Some(measured) = &report.hardware.measured_energy {
        let value = std::iter::once((label("source", &measured.source), measured.joules));
        family(
            out,
            "pace_measured_joules_total",
            "counter",
            "Measured energy of the processor packages, for all work.",
            value,
        );
    }
    let mut of_session = |name: &str, kind: &str, help: &str, value: f64| {
        family(out, name, kind, help, std::iter::once((String::new(), value)));
    };
    of_session(
        "pace_planning_cpu_seconds_total",
        "counter",
        "Processor time of Tollgate for schedules and estimators, in seconds.",
        report.planning_cpu_s,
    );
    of_session(
        "pace_replaced_types_total",
        "counter",
        "Types that made room for others, because there were too many.",
        report.replaced.types as f64,
    );
    of_session(
        "pace_replaced_tasks_total",
        "counter",
        "Tasks of types that made room for others.",
        report.replaced.tasks as f64,
    );
    of_session(
        "pace_unfinished_tasks",
        "gauge",
        "Tasks that have not ended.",
        report.unfinished as f64,
    );
    of_session(
        "pace_abandoned_tasks_total",
        "counter",
        "Tasks whose programs ended without ending them.",
        report.abandoned as f64,
    );
    if let Some(latency) = &report.latency_us {
        let help = "From the moment at which a task needed another speed until it was written.";
        let values = [("0.5", latency.median), ("0.99", latency.p99)];
        let values = values.map(|(share, us)| (label("quantile", share), us / 1e6));
        family(out, "pace_latency_seconds", "gauge", help, values.into_iter());
    }
    let lost = report.domains.iter().filter(|domain| domain.lost.is_some()).count();
    family(
        out,
        "pace_lost_domains",
        "gauge",
        "Frequency domains that are not paced any more.",
        std::iter::once((String::new(), lost as f64)),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::tests::assert_is_page;
    use crate::pace::hardware_counts::{HardwareCounts, MeasuredEnergy};
    use crate::pace::pacing_report::{Latency, ReplacedTypes};
    use crate::pace::trace_file::TraceType;

    #[test]
    fn each_type_is_a_sample() {
        let kind = TraceType { name: "game: frame".into(), deadline_ms: 20.0, target: 0.95 };
        let report = PacingReport {
            domains: Vec::new(),
            latency_us: Some(Latency { median: 20.0, p99: 50.0 }),
            hardware: HardwareCounts {
                cycle_counter: None,
                measured_energy: Some(MeasuredEnergy { joules: 9.0, source: "perf".into() }),
            },
            types: vec![PacedType { tasks: 7, modelled_joules: 0.5, ..PacedType::new(&kind) }],
            replaced: ReplacedTypes { types: 3, tasks: 4 },
            planning_cpu_s: 0.25,
            unfinished: 0,
            abandoned: 2,
        };
        let mut page = String::new();
        pacing_metrics(&mut page, &report);
        for line in [
            "tollgate_pace_tasks_total{type=\"game: frame\"} 7\n",
            "tollgate_pace_modelled_joules_total{type=\"game: frame\"} 0.5\n",
            "tollgate_pace_measured_joules_total{source=\"perf\"} 9\n",
            "tollgate_pace_planning_cpu_seconds_total 0.25\n",
            "tollgate_pace_replaced_types_total 3\n",
            "tollgate_pace_abandoned_tasks_total 2\n",
            "tollgate_pace_latency_seconds{quantile=\"0.99\"} 0.00005\n",
        ] {
            assert!(page.contains(line), "{page}");
        }
        assert_is_page(&page);
    }
}
