//! The metrics of services.

use super::requests::{ServiceReport, ServiceRow};
use crate::metrics::{family, label};

/// Writes the metrics of all services.
pub fn service_metrics(out: &mut String, report: &ServiceReport) {
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
        "Replies that threads sent to other services while they worked for this service.",
        |row| row.used.shared_replies as f64,
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
        "Sockets and connections over the service's limits.",
        |row| row.refused as f64,
    );
    let mut of_all = |name: &str, help: &str, value: f64| {
        family(out, name, "counter", help, std::iter::once((String::new(), value)));
    };
    of_all(
        "service_kernel_cpu_seconds_total",
        "Processor time that belongs to no service, in seconds.",
        report.kernel_cpu_ns as f64 / 1e9,
    );
    let migrations = &report.migrations;
    of_all(
        "service_moves_total",
        "Threads migrated between control groups.",
        migrations.moved as f64,
    );
    of_all(
        "service_move_seconds_total",
        "Time taken by migrations between control groups, in seconds.",
        migrations.total_ns as f64 / 1e9,
    );
    of_all(
        "service_moves_put_off_total",
        "Migrations put off to limit their cost.",
        migrations.put_off as f64,
    );
    of_all("service_moves_failed_total", "Migrations that failed.", migrations.failed as f64);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::tests::assert_is_page;

    #[test]
    fn every_line_is_a_sample_or_a_comment() {
        let mut page = String::new();
        let row = ServiceRow { name: "a.b".into(), ..ServiceRow::default() };
        let report = ServiceReport { services: vec![row], ..ServiceReport::default() };
        service_metrics(&mut page, &report);
        assert!(page.contains("tollgate_service_cpu_seconds_total{service=\"a.b\"} 0\n"));
        assert_is_page(&page);
    }
}
