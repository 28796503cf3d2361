//! The requests of io_uring: from submission to completion.

use std::cmp::Reverse;

use kernel::lens::call_stats::{CallStats, RowStats};
use kernel::wire;

use super::cell_values::{errors, quantile};
use super::order::Order;
use super::report::{Call, LensReport, RingRequest};
use crate::format::{count, duration};

/// Whether a program used io_uring, by its calls. With a ring whose queue the kernel polls, it may
/// make none.
fn shows_use(call: &Call) -> bool {
    let is_one = ["io_uring_setup", "io_uring_enter"].contains(&call.name.as_str());
    is_one && call.count + call.unfinished > call.errors.values().sum()
}

/// All requests of a row in this order; of equal ones, the longest first.
pub fn requests(row: &RowStats, order: Order) -> Vec<RingRequest> {
    let requests = row.requests.iter().map(|(number, stats)| request(*number, stats));
    let mut requests: Vec<_> =
        requests.filter(|it| it.count + it.in_flight + it.silent > 0).collect();
    requests.sort_by_cached_key(|it| {
        let call = it.as_call();
        (Reverse((order.key(&call), call.wall_ns, call.count)), call.name)
    });
    requests
}

fn request(number: u32, stats: &CallStats) -> RingRequest {
    // Others with higher numbers share its counters.
    let name = if number + wire::REQUESTS_BEGIN == wire::REQUEST_UNKNOWN {
        "unknown".into()
    } else {
        calls::display_operation(number).into_owned()
    };
    let (silent, silent_completed) = (stats.skipped, stats.denied);
    RingRequest {
        name,
        count: stats.count,
        errors: errors(stats),
        wall_ns: stats.wall_ns,
        p50_ns: quantile(stats, 0.50),
        p95_ns: quantile(stats, 0.95),
        p99_ns: quantile(stats, 0.99),
        max_ns: stats.max_ns,
        // Submissions and completions are counted on different processors, which are not read at
        // the same moment.
        in_flight: (stats.submitted + silent_completed).saturating_sub(stats.count + silent),
        silent: silent.saturating_sub(silent_completed),
    }
}

/// The sentence that says that io_uring was used. `None`: it was not.
pub fn requests_line(report: &LensReport) -> Option<String> {
    let requests = &report.io_uring;
    if requests.is_empty() {
        return is_used_uncounted(report)
            .then(|| "io_uring was used, and no requests were counted".into());
    }
    let sum = |part: fn(&RingRequest) -> u64| requests.iter().map(part).sum::<u64>();
    let more = [
        (sum(|request| request.errors.values().sum()), "failed"),
        (sum(|request| request.in_flight), "more had not completed"),
        (sum(|request| request.silent), "more wanted no completion"),
    ];
    let more: String = more
        .iter()
        .filter(|(n, _)| *n > 0)
        .map(|(n, what)| format!(", {} {what}", count(*n)))
        .collect();
    Some(format!(
        "io_uring was used: {} requests took {} from submission to completion{more}",
        count(sum(|request| request.count)),
        duration(sum(|request| request.wall_ns)),
    ))
}

/// A note if this kernel does not report requests, and a program has made some.
pub const NOT_REPORTED: &str =
    "requests of io_uring are not counted: this kernel does not report them";

/// Whether a program used io_uring, and no requests were counted.
pub fn is_used_uncounted(report: &LensReport) -> bool {
    report.io_uring.is_empty() && report.calls.iter().any(shows_use)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn stats(count: u64, wall_ns: u64, submitted: u64) -> CallStats {
        CallStats { count, wall_ns, max_ns: wall_ns, submitted, ..CallStats::default() }
    }

    #[test]
    fn what_has_not_completed_is_in_flight_or_silent() {
        let mut reads = stats(10, 500, 17);
        // Of five silent ones, two have failed, and so completed.
        (reads.skipped, reads.denied) = (5, 2);
        reads.errors[9] = 2;
        let request = request(22, &reads);
        assert_eq!((request.name.as_str(), request.count), ("READ", 10));
        assert_eq!((request.in_flight, request.silent), (4, 3));
        assert_eq!(request.errors["EBADF"], 2);
    }

    #[test]
    fn requests_are_ordered_and_named() {
        let mut row = RowStats::default();
        row.requests.insert(0, stats(9, 10, 9));
        row.requests.insert(22, stats(1, 30, 1));
        row.requests.insert(100, stats(2, 20, 2));
        row.requests.insert(wire::IO_URING_OPERATIONS - 1, stats(0, 0, 1));
        row.requests.insert(1, stats(0, 0, 0));
        let names =
            |order| Vec::from_iter(requests(&row, order).into_iter().map(|request| request.name));
        assert_eq!(names(Order::Wall), ["READ", "operation 100", "NOP", "unknown"]);
        assert_eq!(names(Order::Count), ["NOP", "operation 100", "READ", "unknown"]);
        // No processor time is known.
        assert_eq!(names(Order::Cpu), names(Order::Wall));
    }

    #[test]
    fn report_says_when_a_program_used_a_ring() {
        let mut report = LensReport::default();
        assert_eq!(requests_line(&report), None);
        let refused = BTreeMap::from([("EPERM".into(), 1)]);
        let setup = |count| Call { name: "io_uring_setup".into(), count, ..Call::default() };
        report.calls.push(Call { errors: refused, ..setup(1) });
        assert_eq!(requests_line(&report), None);
        report.calls.push(setup(1));
        let line = requests_line(&report).unwrap();
        assert_eq!(line, "io_uring was used, and no requests were counted");
        let mut row = RowStats::default();
        row.requests.insert(22, stats(1234, 5000, 1236));
        report.io_uring = requests(&row, Order::Wall);
        assert_eq!(
            requests_line(&report).unwrap(),
            "io_uring was used: 1,234 requests took 5.00 us from submission to completion, 2 more \
            had not completed"
        );
    }
}
