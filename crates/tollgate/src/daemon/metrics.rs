//! Counts for Prometheus, in its text format (version 0.0.4), by HTTP.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::thread;

use anyhow::{Result, anyhow};
use tiny_http::{Header, Response, Server};

use crate::guard::Status;
use crate::report::GuardedProgram;

const FORMAT: &str = "Content-Type: text/plain; version=0.0.4";

/// The page, which is made anew as often as the daemon looks after its programs.
pub type Page = Arc<Mutex<String>>;

/// Serves the page at /metrics, and says where.
pub fn serve(address: &str, page: Page) -> Result<String> {
    let server = Server::http(address).map_err(|error| anyhow!("cannot listen at {address}: {error}"))?;
    let place = format!("http://{}/metrics", server.server_addr());
    thread::spawn(move || {
        for request in server.incoming_requests() {
            let format: Header = FORMAT.parse().expect("a header");
            // Whoever asked may be gone.
            let _ = if request.url() == "/metrics" {
                let text = page.lock().map(|page| page.clone()).unwrap_or_default();
                request.respond(Response::from_string(text).with_header(format))
            } else {
                request.respond(Response::from_string("see /metrics\n").with_status_code(404))
            };
        }
    });
    Ok(place)
}

fn family(out: &mut String, name: &str, kind: &str, help: &str, values: impl Iterator<Item = (String, f64)>) {
    let _ = writeln!(out, "# HELP tollgate_{name} {help}\n# TYPE tollgate_{name} {kind}");
    for (labels, value) in values {
        let _ = writeln!(out, "tollgate_{name}{labels} {value}");
    }
}

fn label(name: &str, value: &str) -> String {
    labels(&[(name, value)])
}

fn labels(labels: &[(&str, &str)]) -> String {
    let one = |(name, value): &(&str, &str)| {
        let value = value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', "\\n");
        format!("{name}=\"{value}\"")
    };
    format!("{{{}}}", labels.iter().map(one).collect::<Vec<_>>().join(","))
}

/// Scopes of one program are told apart.
fn program_label(program: &GuardedProgram) -> String {
    let scope = program.scope.as_ref().map(|scope| ("scope", scope.as_str()));
    labels(&[("program", program.path.as_str())].into_iter().chain(scope).collect::<Vec<_>>())
}

pub fn page(status: &Status) -> String {
    let mut out = String::new();
    let one = |value: f64| std::iter::once((String::new(), value));
    family(&mut out, "guard_held_processes", "gauge", "Processes held now.", one(status.held.len() as f64));
    family(
        &mut out,
        "guard_off",
        "gauge",
        "Whether an operator has switched responses off.",
        one(f64::from(u8::from(status.is_off))),
    );
    for state in ["training", "frozen", "normal"] {
        let n = status.programs.iter().filter(|program| program.state == state).count();
        if state == "training" {
            family(&mut out, "guard_programs", "gauge", "Programs by state.", std::iter::empty());
        }
        let _ = writeln!(out, "tollgate_guard_programs{} {n}", label("state", state));
    }
    let mut of_programs = |name: &str, help: &str, value: fn(&GuardedProgram) -> f64| {
        let each = status.programs.iter().map(|program| (program_label(program), value(program)));
        family(&mut out, name, "counter", help, each);
    };
    of_programs("guard_calls_total", "Calls judged.", |program| program.calls as f64);
    of_programs("guard_anomalies_total", "Calls that were unusual.", |program| program.anomalies as f64);
    of_programs("guard_holds_total", "Holds that began.", |program| program.holds as f64);
    of_programs("guard_held_seconds_total", "Seconds that holds were to take.", |program| {
        program.held_ns as f64 / 1e9
    });
    of_programs("guard_kills_total", "Processes killed.", |program| program.killed as f64);
    of_programs("guard_refusals_total", "Calls of execve refused.", |program| program.refused as f64);
    let losses = status.losses.iter().map(|(reason, n)| (label("reason", reason), *n as f64));
    family(&mut out, "losses_total", "counter", "What could not be recorded, by reason.", losses);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        assert_eq!(label("program", "/a\"b\\c\nd"), r#"{program="/a\"b\\c\nd"}"#);
        let scoped = GuardedProgram {
            path: "/bin/sh".into(),
            scope: Some("unit:a.service".into()),
            ..GuardedProgram::default()
        };
        assert_eq!(program_label(&scoped), r#"{program="/bin/sh",scope="unit:a.service"}"#);
    }

    #[test]
    fn every_line_is_a_sample_or_a_comment() {
        let page = page(&Status::default());
        assert!(page.contains("tollgate_guard_programs{state=\"normal\"} 0\n"));
        for line in page.lines() {
            assert!(line.starts_with("# ") || line.starts_with("tollgate_"), "{line}");
        }
    }
}
