//! The guard's metrics.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::report::GuardedProgram;
use super::requests::Status;
use crate::metrics::{family, label, labels};

/// The labels of a program, which distinguish its scopes.
fn program_label(program: &GuardedProgram) -> String {
    let scope = program.scope.as_ref().map(|scope| ("scope", scope.as_str()));
    labels(&[("program", program.path.as_str())].into_iter().chain(scope).collect::<Vec<_>>())
}

/// Writes the metrics of a daemon's guard.
pub fn guard_metrics(out: &mut String, status: &Status) {
    let one = |value: f64| std::iter::once((String::new(), value));
    family(
        out,
        "guard_held_processes",
        "gauge",
        "Processes that are held now.",
        one(status.held.len() as f64),
    );
    family(
        out,
        "guard_off",
        "gauge",
        "Whether an operator has switched responses off.",
        one(f64::from(u8::from(status.is_off))),
    );
    family(
        out,
        "guard_foreign_continues_total",
        "counter",
        "SIGCONTs that other processes have sent to held ones.",
        one(status.foreign_continues as f64),
    );
    for state in ["training", "frozen", "normal"] {
        let n = status.programs.iter().filter(|program| program.state == state).count();
        if state == "training" {
            family(
                out,
                "guard_programs",
                "gauge",
                "Guarded programs, by the state of their baseline.",
                std::iter::empty(),
            );
        }
        let _ = writeln!(out, "tollgate_guard_programs{} {n}", label("state", state));
    }
    let mut of_programs = |name: &str, help: &str, value: fn(&GuardedProgram) -> f64| {
        // All versions of a program form one series.
        let mut each = BTreeMap::new();
        for program in &status.programs {
            *each.entry(program_label(program)).or_default() += value(program);
        }
        family(out, name, "counter", help, each.into_iter());
    };
    of_programs("guard_calls_total", "Calls learned from or tested.", |program| {
        program.calls as f64
    });
    of_programs("guard_anomalies_total", "Anomalous calls.", |program| program.anomalies as f64);
    of_programs("guard_holds_total", "Holds started.", |program| program.holds as f64);
    of_programs(
        "guard_held_seconds_total",
        "Requested time of all holds, in seconds.",
        |program| program.held_ns as f64 / 1e9,
    );
    of_programs(
        "guard_unheld_total",
        "Calls not held because --max-held processes were held already.",
        |program| program.unheld as f64,
    );
    of_programs("guard_kills_total", "Processes killed.", |program| program.killed as f64);
    of_programs("guard_refusals_total", "Calls of execve refused.", |program| {
        program.refused as f64
    });
    of_programs(
        "guard_retrained_total",
        "Returns of a normal baseline to training because of the anomaly limit.",
        |program| program.retrained as f64,
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::tests::assert_is_page;

    #[test]
    fn scopes_of_a_program_are_labels() {
        let scoped = GuardedProgram {
            path: "/bin/sh".into(),
            scope: Some("unit:a.service".into()),
            ..GuardedProgram::default()
        };
        assert_eq!(program_label(&scoped), r#"{program="/bin/sh",scope="unit:a.service"}"#);
    }

    #[test]
    fn versions_of_a_program_are_one_series() {
        let version =
            |calls| GuardedProgram { path: "/bin/sh".into(), calls, ..GuardedProgram::default() };
        let mut page = String::new();
        guard_metrics(
            &mut page,
            &Status { programs: vec![version(2), version(3)], ..Status::default() },
        );
        let calls: Vec<_> =
            page.lines().filter(|line| line.starts_with("tollgate_guard_calls_total")).collect();
        assert_eq!(calls, [r#"tollgate_guard_calls_total{program="/bin/sh"} 5"#]);
    }

    #[test]
    fn every_line_is_a_sample_or_a_comment() {
        let mut page = String::new();
        guard_metrics(&mut page, &Status::default());
        assert!(page.contains("tollgate_guard_programs{state=\"normal\"} 0\n"));
        assert_is_page(&page);
    }
}
