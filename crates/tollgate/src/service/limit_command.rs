//! `tollgate service limit`: shows and changes limits.

use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use service::{Errno, OverLimit};

use super::arguments::{ChangeArguments, LimitArguments};
use super::commands::bytes;
use super::limits::OwnLimits;
use super::registry::ServiceRegistry;
use super::requests::{
    LimitChange, LimitReport, LimitRow, LimitSetting, MigrationReport, ServiceReport,
    ServiceRequest,
};
use crate::daemon_client::request_one;
use crate::format::{and_more, count, duration, number_of, printable};
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

/// The requested change. None: only show the limits.
fn wanted(service: &str, arguments: &ChangeArguments) -> Option<LimitChange> {
    let ChangeArguments {
        cpu_weight,
        cpu_max,
        memory_max,
        tasks_max,
        sockets_max,
        connections_max,
        network_max,
        over_limit: beyond,
    } = arguments;
    let settings =
        [cpu_weight, cpu_max, memory_max, tasks_max, sockets_max, connections_max, network_max];
    let is_change = beyond.is_some() || settings.iter().any(|setting| setting.is_some());
    is_change.then(|| LimitChange {
        service: service.into(),
        cpu_weight: *cpu_weight,
        cpu_max: *cpu_max,
        memory_max: *memory_max,
        tasks_max: *tasks_max,
        sockets_max: *sockets_max,
        connections_max: *connections_max,
        network_max: *network_max,
        over_limit: beyond.clone(),
    })
}

/// Applies a change to a service's own limits, in the daemon.
pub fn changed(own: &mut OwnLimits, change: &LimitChange, numbers: &ServiceRegistry) -> Result<()> {
    fn set<T>(value: &mut Option<T>, setting: Option<LimitSetting>) -> Result<()>
    where
        T: TryFrom<u64>,
        T::Error: std::error::Error + Send + Sync + 'static,
    {
        match setting {
            Some(LimitSetting::To(wanted)) => *value = Some(wanted.try_into()?),
            Some(LimitSetting::None) => *value = None,
            None => {}
        }
        Ok(())
    }
    let limits = &mut own.limits;
    set(&mut limits.cpu_weight, change.cpu_weight)?;
    set(&mut limits.cpu_max, change.cpu_max)?;
    set(&mut limits.memory_max, change.memory_max)?;
    set(&mut limits.tasks_max, change.tasks_max)?;
    set(&mut limits.sockets_max, change.sockets_max)?;
    set(&mut limits.connections_max, change.connections_max)?;
    set(&mut limits.network_max, change.network_max)?;
    if let Some(beyond) = &change.over_limit {
        match Errno::parse(beyond) {
            Some(errno) => (limits.over_limit, own.works_for) = (OverLimit::Fails(errno), None),
            None if beyond == "none" => {
                (limits.over_limit, own.works_for) = (OverLimit::default(), None)
            }
            None => {
                let errnos = || {
                    let all = Errno::names().collect::<Vec<_>>().join(", ");
                    format!("{beyond:?} is neither a service nor one of {all}")
                };
                let other = numbers.find(beyond).with_context(errnos)?;
                if numbers.ancestors(other).any(|above| numbers.get(above).name == change.service) {
                    bail!(
                        "over-limit-service of {} must be a service outside of it",
                        change.service
                    );
                }
                own.works_for = Some(other);
            }
        }
    }
    Ok(())
}

fn text(report: &LimitReport, top: usize) -> String {
    let mut out = String::new();
    if report.services.is_empty() {
        return "no limits\n".into();
    }
    let _ = writeln!(
        out,
        "{:<24} {:>10} {:>8} {:>19} {:>11} {:>13} {:>13} {:>11}  beyond",
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
    out.push_str(&moves(&report.moves));
    out
}

/// The cost of migrations, if there were any.
pub fn moves(moves: &MigrationReport) -> String {
    let mut parts = Vec::new();
    if moves.moved > 0 {
        parts.push(format!(
            "{} between control groups: {} on average, {} at most",
            number_of(moves.moved as usize, "move"),
            duration(moves.total_ns / moves.moved),
            duration(moves.longest_ns)
        ));
    }
    for (value, what) in [(moves.put_off, "put off"), (moves.failed, "failed")] {
        if value > 0 {
            parts.push(format!("{} {what}", number_of(value as usize, "move")));
        }
    }
    if parts.is_empty() { String::new() } else { format!("\n{}\n", parts.join("; ")) }
}

fn line(row: &LimitRow) -> String {
    let or = |value: Option<String>| value.unwrap_or_else(|| "-".into());
    let of = |used: u64, most: Option<u64>| match most {
        Some(most) => format!("{}/{}", count(used), count(most)),
        None => count(used),
    };
    let of_group = |used: Option<u64>, most: Option<u64>, shown: fn(u64) -> String| {
        or(most.map(|most| format!("{}/{}", or(used.map(shown)), shown(most))))
    };
    format!(
        "{:<24} {:>10} {:>8} {:>19} {:>11} {:>13} {:>13} {:>11}  {}",
        printable(&row.name),
        or(row.cpu_weight.map(|weight| count(weight.into()))),
        or(row.cpu_max_percent.map(|percent| format!("{percent} %"))),
        of_group(row.memory_bytes, row.memory_max_bytes, bytes),
        of_group(row.tasks, row.tasks_max, count),
        of(row.sockets, row.sockets_max),
        of(row.connections, row.connections_max),
        or(row.network_max_bytes_per_second.map(rate)),
        printable(&row.beyond),
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
        (row.dropped_packets, "packets dropped (TCP sends them again)"),
    ];
    let name = printable(&row.name).to_string();
    let all = all.into_iter().filter(|(value, _)| *value > 0);
    all.map(move |(value, what)| format!("{name}: {what}: {}\n", count(value)))
}
