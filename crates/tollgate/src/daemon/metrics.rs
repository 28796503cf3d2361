//! Metrics for Prometheus, in its text format (version 0.0.4), over HTTP.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::guard::{GuardedProgram, Status};
use crate::service::{ServiceReport, ServiceRow};

const FORMAT: &str = "text/plain; version=0.0.4";
const MAX_REQUEST_LEN: usize = 8 << 10;
/// Any process may connect. Connections are served one after the other, so that together they use
/// only one of the daemon's open files, and each may take this long.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(1);

/// The page, which the daemon renders anew at each refresh.
pub type Page = Arc<Mutex<String>>;

/// Serves the page at /metrics, and returns the address.
pub fn serve(address: &str, page: Page) -> Result<String> {
    let listener =
        TcpListener::bind(address).with_context(|| format!("cannot listen at {address}"))?;
    let place = format!("http://{}/metrics", listener.local_addr()?);
    thread::spawn(move || {
        loop {
            match listener.accept() {
                // The client may have disconnected.
                Ok((stream, _)) => drop(answer(stream, &page)),
                // It may succeed later.
                Err(_) => thread::sleep(CONNECTION_TIMEOUT),
            }
        }
    });
    Ok(place)
}

fn answer(mut stream: TcpStream, page: &Page) -> io::Result<()> {
    let end = Instant::now() + CONNECTION_TIMEOUT;
    let left = || match end.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::Error::from(io::ErrorKind::TimedOut)),
        left => Ok(Some(left)),
    };
    let (mut request, mut bytes) = (Vec::new(), [0; 1024]);
    while !request.ends_with(b"\r\n\r\n") && request.len() < MAX_REQUEST_LEN {
        stream.set_read_timeout(left()?)?;
        match stream.read(&mut bytes)? {
            0 => break,
            read => request.extend_from_slice(&bytes[..read]),
        }
    }
    let path = request.split(|byte| byte.is_ascii_whitespace()).nth(1).unwrap_or_default();
    let (status, text) = match path {
        b"/metrics" => ("200 OK", page.lock().map(|page| page.clone()).unwrap_or_default()),
        _ => ("404 Not Found", "see /metrics\n".into()),
    };
    let response = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {FORMAT}\r\nContent-Length: {}\r\nConnection: \
        close\r\n\r\n{text}",
        text.len()
    );
    let mut rest = response.as_bytes();
    while !rest.is_empty() {
        stream.set_write_timeout(left()?)?;
        rest = &rest[stream.write(rest)?..];
    }
    Ok(())
}

fn family(
    out: &mut String,
    name: &str,
    kind: &str,
    help: &str,
    values: impl Iterator<Item = (String, f64)>,
) {
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

/// The labels of a program, which distinguish its scopes.
fn program_label(program: &GuardedProgram) -> String {
    let scope = program.scope.as_ref().map(|scope| ("scope", scope.as_str()));
    labels(&[("program", program.path.as_str())].into_iter().chain(scope).collect::<Vec<_>>())
}

pub fn guard(out: &mut String, status: &Status) {
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
    of_programs("guard_calls_total", "Calls judged.", |program| program.calls as f64);
    of_programs("guard_anomalies_total", "Calls that were unusual.", |program| {
        program.anomalies as f64
    });
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
}

pub fn losses(out: &mut String, losses: &BTreeMap<String, u64>) {
    let losses = losses.iter().map(|(reason, n)| (label("reason", reason), *n as f64));
    family(out, "losses_total", "counter", "Losses, by reason.", losses);
}

pub fn services(out: &mut String, report: &ServiceReport) {
    let mut of_services = |name: &str, kind: &str, help: &str, value: fn(&ServiceRow) -> f64| {
        let rows = report.services.iter().map(|row| (label("service", &row.name), value(row)));
        family(out, &format!("service_{name}"), kind, help, rows);
    };
    of_services(
        "processes",
        "gauge",
        "Processes with a thread that works for the service.",
        |row| row.processes as f64,
    );
    of_services("threads", "gauge", "Threads that work for the service.", |row| row.threads as f64);
    of_services("cpu_seconds_total", "counter", "Time on a processor, in seconds.", |row| {
        row.used.cpu_ns as f64 / 1e9
    });
    of_services(
        "wait_seconds_total",
        "counter",
        "Time waiting for a processor, in seconds.",
        |row| row.used.wait_ns as f64 / 1e9,
    );
    of_services("blocked_seconds_total", "counter", "Time blocked, in seconds.", |row| {
        row.used.blocked_ns as f64 / 1e9
    });
    of_services("calls_total", "counter", "System calls.", |row| row.used.calls as f64);
    of_services("minor_faults_total", "counter", "Minor page faults.", |row| {
        row.used.minor_faults as f64
    });
    of_services("major_faults_total", "counter", "Major page faults.", |row| {
        row.used.major_faults as f64
    });
    of_services("received_bytes_total", "counter", "Bytes received over sockets.", |row| {
        row.used.received_bytes as f64
    });
    of_services("sent_bytes_total", "counter", "Bytes sent over sockets.", |row| {
        row.used.sent_bytes as f64
    });
    of_services(
        "overlaps_total",
        "counter",
        "Replies to other services sent by threads that worked for this service by then.",
        |row| row.used.overlaps as f64,
    );
    of_services(
        "read_bytes_total",
        "counter",
        "Bytes read by read(2) and similar calls, from any file.",
        |row| row.used.read_bytes as f64,
    );
    of_services(
        "written_bytes_total",
        "counter",
        "Bytes written by write(2) and similar calls, to any file.",
        |row| row.used.written_bytes as f64,
    );
    of_services("storage_read_bytes_total", "counter", "Bytes read from storage.", |row| {
        row.used.storage_read_bytes as f64
    });
    of_services("storage_written_bytes_total", "counter", "Bytes written to storage.", |row| {
        row.used.storage_written_bytes as f64
    });
    of_services(
        "sockets",
        "gauge",
        "Open IPv4 and IPv6 sockets that the service has created.",
        |row| row.sockets as f64,
    );
    of_services(
        "refused_total",
        "counter",
        "Sockets and connections beyond the service's limits.",
        |row| row.refused as f64,
    );
    let mut of_all = |name: &str, help: &str, value: f64| {
        family(out, name, "counter", help, std::iter::once((String::new(), value)));
    };
    of_all(
        "service_kernel_cpu_seconds_total",
        "Processor time of no service, in seconds.",
        report.kernel_cpu_ns as f64 / 1e9,
    );
    let moves = &report.moves;
    of_all("service_moves_total", "Threads moved between control groups.", moves.moved as f64);
    of_all(
        "service_move_seconds_total",
        "Time taken by moves between control groups, in seconds.",
        moves.total_ns as f64 / 1e9,
    );
    of_all(
        "service_moves_put_off_total",
        "Moves put off to limit their cost.",
        moves.put_off as f64,
    );
    of_all("service_moves_failed_total", "Moves that failed.", moves.failed as f64);
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
    fn versions_of_a_program_are_one_series() {
        let version =
            |calls| GuardedProgram { path: "/bin/sh".into(), calls, ..GuardedProgram::default() };
        let mut page = String::new();
        guard(&mut page, &Status { programs: vec![version(2), version(3)], ..Status::default() });
        let calls: Vec<_> =
            page.lines().filter(|line| line.starts_with("tollgate_guard_calls_total")).collect();
        assert_eq!(calls, [r#"tollgate_guard_calls_total{program="/bin/sh"} 5"#]);
    }

    fn ask(place: &str, what: &str) -> String {
        let address = place.trim_start_matches("http://").trim_end_matches("/metrics");
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.write_all(what.as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer
    }

    #[test]
    fn page_is_served_beside_silent_clients() {
        let page = Page::new("tollgate_x 1\n".repeat(100_000).into());
        let place = serve("127.0.0.1:0", Arc::clone(&page)).expect("a port");
        let address = place.trim_start_matches("http://").trim_end_matches("/metrics");
        let silent: Vec<_> =
            (0..3).map(|_| TcpStream::connect(address).expect("it listens")).collect();
        let answer = ask(&place, "GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n");
        let (head, text) = answer.split_once("\r\n\r\n").expect("a head and a text");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(head.contains(&format!("Content-Length: {}", text.len())), "{head}");
        assert_eq!(text, *page.lock().expect("whole"));
        drop(silent);
        for (request, words) in
            [("GET / HTTP/1.0\r\n\r\n", "see /metrics"), ("\r\n\r\n", "404 Not Found")]
        {
            assert!(ask(&place, request).contains(words), "{request:?}");
        }
        assert!(ask(&place, &"x".repeat(MAX_REQUEST_LEN)).contains("404 Not Found"));
    }

    #[test]
    fn every_line_is_a_sample_or_a_comment() {
        let mut page = String::new();
        guard(&mut page, &Status::default());
        let row = ServiceRow { name: "a.b".into(), ..ServiceRow::default() };
        services(&mut page, &ServiceReport { services: vec![row], ..ServiceReport::default() });
        losses(&mut page, &BTreeMap::from([("too \"many\"".into(), 3)]));
        assert!(page.contains("tollgate_service_cpu_seconds_total{service=\"a.b\"} 0\n"));
        assert!(page.contains("tollgate_guard_programs{state=\"normal\"} 0\n"));
        for line in page.lines() {
            assert!(line.starts_with("# ") || line.starts_with("tollgate_"), "{line}");
        }
    }
}
