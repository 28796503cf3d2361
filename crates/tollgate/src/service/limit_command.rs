//! `tollgate service limit`: shows and changes limits.

use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::{Result, bail};

use super::arguments::{ChangeArguments, LimitArguments};
use super::format::migrations;
use super::requests::{LimitChange, LimitReport, LimitRow, ServiceReport, ServiceRequest};
use crate::daemon_client::request_one;
use crate::format::{and_more, bytes, count, printable};
use crate::output::Output;

pub fn limit(arguments: &LimitArguments) -> Result<ExitCode> {
    let change = arguments.service.as_ref().and_then(|service| wanted(service, &arguments.change));
    let mut report: LimitReport =
        request_one(&arguments.socket, &ServiceRequest::Limit { change })?;
    if let Some(service) = &arguments.service {
        report.services.retain(|row| row.name == *service);
        let is_there =
            |report: &ServiceReport| report.services.iter().any(|row| row.name == *service);
        if report.services.is_empty()
            && !is_there(&request_one(&arguments.socket, &ServiceRequest::Report)?)
        {
            bail!("there is no service {service:?}: `tollgate service list` lists the services");
        }
    }
    let result = &arguments.result;
    let mut output = Output::open(result.output.as_deref(), Output::Stdout)?;
    match result.json {
        true => output.write_json(&report)?,
        false => output.write(&text(&report, result.top))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The requested change; `None`: only show the limits.
fn wanted(service: &str, arguments: &ChangeArguments) -> Option<LimitChange> {
    let ChangeArguments {
        cpu_weight,
        cpu_max,
        memory_max,
        tasks_max,
        sockets_max,
        connections_max,
        network_max,
        over_limit,
    } = arguments;
    let settings =
        [cpu_weight, cpu_max, memory_max, tasks_max, sockets_max, connections_max, network_max];
    let is_change = over_limit.is_some() || settings.iter().any(|setting| setting.is_some());
    is_change.then(|| LimitChange {
        service: service.into(),
        cpu_weight: *cpu_weight,
        cpu_max: *cpu_max,
        memory_max: *memory_max,
        tasks_max: *tasks_max,
        sockets_max: *sockets_max,
        connections_max: *connections_max,
        network_max: *network_max,
        over_limit: over_limit.clone(),
    })
}

fn text(report: &LimitReport, top: usize) -> String {
    let mut out = String::new();
    if report.services.is_empty() {
        return "no limits\n".into();
    }
    let _ = writeln!(
        out,
        "{:<24} {:>10} {:>8} {:>19} {:>11} {:>13} {:>13} {:>11}  over limit",
        "service", "cpu weight", "cpu max", "memory", "tasks", "sockets", "connections", "network"
    );
    for row in report.services.iter().take(top) {
        let _ = writeln!(out, "{}", line(row));
    }
    out.push_str(&and_more(report.services.len(), top, "service"));
    let mut notes = report.services.iter().take(top).flat_map(events).peekable();
    if notes.peek().is_some() {
        out.push('\n');
        notes.for_each(|note| out.push_str(&note));
    }
    out.push_str(&migrations(&report.migrations));
    out
}

fn line(row: &LimitRow) -> String {
    let or = |value: Option<String>| value.unwrap_or_else(|| "-".into());
    let of = |used: u64, most: Option<u64>| match most {
        Some(most) => format!("{}/{}", count(used), count(most)),
        None => count(used),
    };
    let of_cgroup = |used: Option<u64>, most: Option<u64>, shown: fn(u64) -> String| {
        or(most.map(|most| format!("{}/{}", or(used.map(shown)), shown(most))))
    };
    format!(
        "{:<24} {:>10} {:>8} {:>19} {:>11} {:>13} {:>13} {:>11}  {}",
        printable(&row.name),
        or(row.cpu_weight.map(|weight| count(weight.into()))),
        or(row.cpu_max_percent.map(|percent| format!("{percent} %"))),
        of_cgroup(row.memory_bytes, row.memory_max_bytes, bytes),
        of_cgroup(row.tasks, row.tasks_max, count),
        of(row.sockets, row.sockets_max),
        of(row.connections, row.connections_max),
        or(row.network_max_bytes_per_second.map(rate)),
        printable(&row.over_limit),
    )
}

/// A rate in the units of networks, which are powers of 1000.
fn rate(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{} KB/s", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{} MB/s", bytes as f64 / 1e6),
        _ => format!("{} GB/s", bytes as f64 / 1e9),
    }
}

fn events(row: &LimitRow) -> impl Iterator<Item = String> {
    let all = [
        (row.refused, "sockets or connections refused"),
        (row.went_over, "sockets or connections went to another service"),
        (row.slowed_packets, "packets slowed down (congestion was signalled)"),
        (row.dropped_packets, "packets dropped (TCP retransmits them, UDP does not)"),
    ];
    let name = printable(&row.name).to_string();
    let all = all.into_iter().filter(|(value, _)| *value > 0);
    all.map(move |(value, what)| format!("{name}: {what}: {}\n", count(value)))
}
