//! The requests of io_uring, however they are submitted and however they end.

use std::collections::BTreeMap;

use crate::harness::report::{Report, RingRequest, RowReport};
use crate::harness::{Job, workload};

/// The report on a workload. `None`: this kernel has no io_uring, or refuses it
/// (kernel.io_uring_disabled).
fn requests_of(options: &str, arguments: &str) -> Option<Report> {
    let done = Job::run(options, workload(arguments)).finish();
    if done.err.contains("cannot set up io_uring") {
        eprintln!("io_uring is not usable here: {}", done.err);
        return None;
    }
    Some(done.success().report().complete())
}

fn request<'a>(all: &'a [RingRequest], name: &str) -> &'a RingRequest {
    all.iter().find(|request| request.name == name).unwrap_or_else(|| panic!("no {name}: {all:?}"))
}

fn errors<const N: usize>(errors: [(&str, u64); N]) -> BTreeMap<String, u64> {
    errors.map(|(name, n)| (name.to_owned(), n)).into()
}

#[test]
fn each_request_counts_once() {
    const N: u64 = 100;
    let Some(report) = requests_of("", &format!("ring-requests {N}")) else { return };
    let requests = |name| request(&report.io_uring, name);
    let cancelled = errors([("ECANCELED", 1)]);
    for (name, count, failed) in [
        ("NOP", N, errors([])),
        ("READ", 4 * N, errors([("EBADF", 2 * N)])),
        ("WRITE", N, errors([])),
        ("operation 120", N, errors([("EINVAL", N)])),
        ("TIMEOUT", 1, cancelled.clone()),
        ("TIMEOUT_REMOVE", 1, errors([])),
        ("POLL_REMOVE", 1, errors([])),
        ("ACCEPT", 1, cancelled),
        ("ASYNC_CANCEL", 1, errors([])),
    ] {
        let request = requests(name);
        assert_eq!((request.count, request.in_flight), (count, 0), "{name}");
        assert_eq!(request.errors, failed, "{name}");
        assert!(request.max_ns > 0 && request.wall_ns >= request.max_ns, "{request:?}");
    }
    assert_eq!((requests("NOP").silent, requests("READ").silent), (N, 0));
    // The kernel cancels the second one when the process ends, perhaps after the last reading.
    let polls = requests("POLL_ADD");
    assert_eq!(polls.count + polls.in_flight, 2, "{polls:?}");
    assert_eq!(polls.errors["ECANCELED"], polls.count);
    // They are no calls, and are not among them.
    assert!(report.calls.iter().all(|call| call.abi != "io_uring" && call.name != "READ"));
}

#[test]
fn polled_requests_are_the_programs() {
    const N: u64 = 200;
    for options in ["", "--per process", "--per command", "--per thread"] {
        let Some(report) = requests_of(options, &format!("polled-ring-requests {N}")) else {
            return;
        };
        assert_eq!(request(&report.io_uring, "NOP").count, N, "{options}");
        let named = |row: &&RowReport| row.command.starts_with("workloads");
        for row in report.groups.iter().filter(named).take(1) {
            assert_eq!(request(&row.io_uring, "NOP").count, N, "{options}");
        }
    }
}

#[test]
fn requests_are_those_of_the_process_that_submits() {
    const N: u64 = 50;
    let Some(report) = requests_of("--per process", &format!("shared-ring-requests {N}")) else {
        return;
    };
    let rows: Vec<_> = report.groups.iter().filter(|row| !row.io_uring.is_empty()).collect();
    assert_eq!(rows.len(), 2, "{rows:?}");
    let of = |name: &str| {
        let row = rows.iter().find(|row| row.io_uring[0].name == name).expect("a row");
        let request = request(&row.io_uring, name);
        (row.io_uring.len(), request.count, request.errors.len(), request.in_flight)
    };
    assert_eq!(of("NOP"), (1, N, 0, 0));
    assert_eq!(of("POLL_ADD"), (1, 1, 0, 0));
}
