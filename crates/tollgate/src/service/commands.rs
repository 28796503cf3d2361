//! Commands on the services of a daemon.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};

use super::arguments::{
    ApplyArguments, AssignArguments, ExplainArguments, ExplainTarget, ReportArguments,
    ServiceListArguments,
};
use super::format::{indented, migrations};
use super::requests::{
    ExplainedEnd, ExplainedRule, ExplainedThread, Explanation, List, RequestedTask, RuleText,
    ServiceReport, ServiceRequest, SocketExplanation, SocketProcess,
};
use super::rule_file::{KIND, parsed};
use crate::daemon_client::request_one;
use crate::format::{and_more, bytes, count, duration, number_of, printable, share, span};
use crate::options::SocketOption;
use crate::output::Output;
use crate::report::losses;
use crate::source_file::SourceFile;

pub fn apply(arguments: &ApplyArguments) -> Result<ExitCode> {
    let file = match &arguments.file {
        Some(path) => {
            let source = SourceFile::read(path, KIND)?;
            parsed(&source)?;
            let SourceFile { name, text, .. } = source;
            let name =
                Path::new(&name).canonicalize().map_or(name, |path| path.display().to_string());
            Some(RuleText { name, text })
        }
        None => None,
    };
    let summary: String = request_one(&arguments.socket, &ServiceRequest::Apply { file })?;
    Output::Stdout.write(&format!("{}\n", printable(&summary)))?;
    Ok(ExitCode::SUCCESS)
}

pub fn report(arguments: &ReportArguments) -> Result<ExitCode> {
    let report: ServiceReport = request_one(&arguments.socket, &ServiceRequest::Report)?;
    let result = &arguments.result;
    let mut output = Output::open(result.output.as_deref(), Output::Stdout)?;
    if result.json {
        output.write_json(&report)?;
    } else {
        output.write(&text(&report, result.top))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub fn list(arguments: &ServiceListArguments) -> Result<ExitCode> {
    let list: List = request_one(
        &arguments.socket,
        &ServiceRequest::List { service: arguments.service.clone() },
    )?;
    let result = &arguments.result;
    let mut output = Output::open(result.output.as_deref(), Output::Stdout)?;
    if result.json {
        output.write_json(&list)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = String::new();
    for row in list.services.iter().take(result.top) {
        let members = format!(
            "{}, {}",
            number_of(row.processes, "process"),
            number_of(row.threads, "thread")
        );
        text.push_str(&format!("{:<40} {members}\n", indented(row.depth, &row.name)));
    }
    text.push_str(&and_more(list.services.len(), result.top, "service"));
    text.push_str(&threads(&list.threads, result.top));
    output.write(&text)?;
    Ok(ExitCode::SUCCESS)
}

pub fn text(report: &ServiceReport, top: usize) -> String {
    use std::fmt::Write as _;
    let mut out = losses(&report.losses);
    let _ = writeln!(
        out,
        "services of {}, {}, for {}\n",
        printable(&report.file),
        number_of(report.rules, "rule"),
        span(report.elapsed_ns / 1_000_000_000)
    );
    let _ = writeln!(
        out,
        "{:<24} {:>9} {:>5} {:>9} {:>9} {:>12} {:>9} {:>9} {:>9} {:>7}",
        "service",
        "cpu",
        "share",
        "waiting",
        "blocked",
        "calls",
        "received",
        "sent",
        "disk",
        "threads"
    );
    for row in report.services.iter().take(top) {
        let used = &row.used;
        let _ = writeln!(
            out,
            "{:<24} {:>9} {:>5} {:>9} {:>9} {:>12} {:>9} {:>9} {:>9} {:>7}",
            indented(row.depth, &row.name),
            duration(used.cpu_ns),
            share(used.cpu_ns, report.machine_cpu_ns.max(used.cpu_ns)),
            duration(used.wait_ns),
            duration(used.blocked_ns),
            count(used.calls),
            bytes(used.received_bytes),
            bytes(used.sent_bytes),
            bytes(used.storage_read_bytes + used.storage_written_bytes),
            count(row.threads as u64),
        );
    }
    out.push_str(&and_more(report.services.len(), top, "service"));
    let _ = writeln!(
        out,
        "{:<24} {:>9} {:>5}",
        "(no service)",
        duration(report.kernel_cpu_ns),
        share(report.kernel_cpu_ns, report.machine_cpu_ns)
    );
    out.push_str(&migrations(&report.migrations));
    for row in report.services.iter().filter(|row| row.used.shared_replies > 0).take(top) {
        let _ = writeln!(
            out,
            "{}: its threads sent {} to other services while working for it; part of its usage \
            may belong to those services",
            printable(&row.name),
            number_of(row.used.shared_replies as usize, "reply")
        );
    }
    out
}

pub fn explain(arguments: &ExplainArguments) -> Result<ExitCode> {
    let pid = match &arguments.what {
        ExplainTarget::Process(pid) => *pid,
        ExplainTarget::Socket(socket) => return explain_socket(arguments, socket.clone()),
    };
    let explanation: Explanation = request_one(
        &arguments.socket,
        &ServiceRequest::Explain { who: RequestedTask::Process(pid) },
    )?;
    let result = &arguments.result;
    let mut output = Output::open(result.output.as_deref(), Output::Stdout)?;
    if result.json {
        output.write_json(&explanation)?;
        return Ok(ExitCode::SUCCESS);
    }
    output.write(&threads(&explanation.threads, result.top))?;
    Ok(ExitCode::SUCCESS)
}

fn threads(threads: &[ExplainedThread], top: usize) -> String {
    let lines =
        threads.iter().take(top).map(|thread| format!("{}\n", printable(&sentence(thread))));
    lines.chain([and_more(threads.len(), top, "thread")]).collect()
}

fn explain_socket(arguments: &ExplainArguments, socket: String) -> Result<ExitCode> {
    let explanation: SocketExplanation =
        request_one(&arguments.socket, &ServiceRequest::ExplainSocket { socket })?;
    let result = &arguments.result;
    let mut output = Output::open(result.output.as_deref(), Output::Stdout)?;
    if result.json {
        output.write_json(&explanation)?;
    } else {
        output.write(&socket_text(&explanation, result.top))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn socket_text(explanation: &SocketExplanation, top: usize) -> String {
    let mut lines = Vec::new();
    for listener in &explanation.listeners {
        lines.push(format!("{} at {}", listeners_text(&listener.processes), listener.socket));
    }
    for ends in explanation.connections.iter().take(top) {
        if !lines.is_empty() {
            lines.push(String::new());
        }
        lines.extend(ends.iter().map(end_line));
    }
    if explanation.connections.is_empty() {
        lines.push(match explanation.listeners.as_slice() {
            [] => format!(
                "no process listens at {}, and no open connection of this socket has carried a \
                message",
                explanation.socket
            ),
            _ => "no open connection of this socket has carried a message".into(),
        });
    }
    let text: String = lines.iter().map(|line| format!("{}\n", printable(line))).collect();
    text + &and_more(explanation.connections.len(), top, "connection")
}

fn processes(all: &[SocketProcess]) -> String {
    let names: Vec<_> =
        all.iter().map(|process| format!("{} {}", process.pid, process.command)).collect();
    if names.is_empty() { "an unknown process".into() } else { names.join(", ") }
}

fn listeners_text(all: &[SocketProcess]) -> String {
    format!("{} {}", processes(all), if all.len() > 1 { "listen" } else { "listens" })
}

fn end_line(end: &ExplainedEnd) -> String {
    let role = match end.role.as_str() {
        "neither" | "unknown" => String::new(),
        role => format!(" {role} it"),
    };
    let sends = end.sends_for.as_ref().map_or_else(
        || "has sent nothing".into(),
        |service| {
            let sender = end.sender.map_or_else(String::new, |tid| format!(" (thread {tid})"));
            format!("last sent for {service}{sender}")
        },
    );
    let rule = end.rule.as_ref().map_or_else(String::new, |rule| {
        format!("; receivers are assigned by {}", rule_position(rule))
    });
    format!("{} {}{role}, {sends}{rule}", end.socket, processes(&end.processes))
}

fn rule_position(rule: &ExplainedRule) -> String {
    let name = rule.name.as_ref().map_or_else(String::new, |name| format!(" ({name})"));
    let previous = if rule.is_previous { " (in an earlier file)" } else { "" };
    format!("{}:{}{name}{previous}", rule.file, rule.line)
}

fn sentence(thread: &ExplainedThread) -> String {
    let rule = thread.rule.as_ref().map(rule_position);
    let by = rule.as_ref().map_or_else(String::new, |rule| format!(", by {rule}"));
    let ago = duration(thread.since_ns);
    let why = match thread.why.as_str() {
        "inherited" => format!("inherited from its parent {ago} ago{by}"),
        "found" if rule.is_none() => {
            format!("because no rule matches; it was found running {ago} ago")
        }
        "found" => format!("since it was found running {ago} ago{by}"),
        "exec" => format!("since it executed its program {ago} ago{by}"),
        "fork" => format!("since it was forked {ago} ago{by}"),
        "user" => format!("since its user changed {ago} ago{by}"),
        "open" => format!("since it opened a file {ago} ago{by}"),
        "receive" => format!("since it received a message {ago} ago{by}"),
        "reply" => format!("since it received the reply to a request for that service {ago} ago"),
        "several" => {
            format!("because it replied to one service while working for another {ago} ago")
        }
        "asked" => format!("since its parent forked it {ago} ago because of a signal{by}"),
        "assigned" => format!("since it was assigned {ago} ago"),
        "limit" => {
            format!("because its own service reached its limit of sockets or connections {ago} ago")
        }
        "io_uring" => {
            format!("because it began to use io_uring {ago} ago, whose work cannot be followed")
        }
        _ => format!("for {ago}{by}"),
    };
    let (tid, command, service) = (thread.tid, &thread.command, &thread.service);
    match &thread.removed {
        Some(removed) => format!(
            "{tid} {command}: works for {service}, because a new file has removed {removed}, which \
            it worked for {why}"
        ),
        None => format!("{tid} {command}: works for {service}, {why}"),
    }
}

pub fn assign(arguments: &AssignArguments) -> Result<ExitCode> {
    let who = if arguments.thread {
        RequestedTask::Thread(arguments.pid)
    } else {
        RequestedTask::Process(arguments.pid)
    };
    let request = ServiceRequest::Assign { who, service: arguments.service.clone() };
    let threads: usize = request_one(&arguments.socket, &request)?;
    Output::Stdout.write(&format!(
        "{}: {} assigned, effective at the next call or context switch of each\n",
        arguments.service,
        number_of(threads, "thread")
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// The service of this process.
pub fn own_service(socket: &SocketOption) -> Result<String> {
    let explanation: Explanation =
        request_one(socket, &ServiceRequest::Explain { who: RequestedTask::OwnProcess })?;
    let thread = explanation.threads.into_iter().next();
    Ok(thread.context("the daemon does not know this process")?.service)
}

/// Assigns this process, and with it all that it executes or starts, to a service.
pub fn assign_self(socket: &SocketOption, service: &str) -> Result<()> {
    let request =
        ServiceRequest::Assign { who: RequestedTask::OwnProcess, service: service.into() };
    request_one::<usize>(socket, &request).map(drop)
}
