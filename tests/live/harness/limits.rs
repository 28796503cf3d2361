//! Services with limits, and the control groups where these are kept.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use serde_json::Value;

use super::services::{Consumer, InForce, programs};

/// Services by the names of programs, with these settings.
pub fn rules(services: &[(&str, &str)]) -> String {
    let one = |(name, settings): &(&str, &str)| {
        format!(
            "[service.{name}]\n{settings}\n\n[[rule]]\nexe = \"FOLDER/{name}\"\nbelongs-to = \"{name}\"\n\n"
        )
    };
    services.iter().map(one).collect()
}

pub fn start(services: &[(&str, &str)]) -> InForce {
    let names: Vec<_> = services.iter().map(|(name, _)| *name).collect();
    InForce::start(programs(&names), &rules(services))
}

/// The control groups that Tollgate has made, below all hierarchies.
pub fn groups() -> Vec<PathBuf> {
    let roots = ["", "unified", "cpu", "cpu,cpuacct", "memory", "pids"];
    let roots = roots.map(|root| Path::new("/sys/fs/cgroup").join(root).join("tollgate"));
    roots.into_iter().filter(|path| path.exists()).collect()
}

/// Where a process is in the hierarchy of a controller.
pub fn group_of(pid: u32, controller: &str) -> String {
    line_of(pid, controller).1
}

/// The controllers of that hierarchy as well, as proc(5) has them: none for cgroup v2.
pub fn line_of(pid: u32, controller: &str) -> (String, String) {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("it runs");
    let lines: Vec<Vec<_>> = text.lines().map(|line| line.splitn(3, ':').collect()).collect();
    let v1 = lines.iter().find(|line| line[1].split(',').any(|name| name == controller));
    let line = v1.or_else(|| lines.iter().find(|line| line[1].is_empty())).expect("a hierarchy");
    (line[1].to_owned(), line[2].to_owned())
}

pub fn limit(services: &InForce, name: &str) -> Value {
    let report = services.ask("limit --json").json();
    let rows = report["services"].as_array().expect("services");
    rows.iter().find(|row| row["name"] == name).expect("it has limits").clone()
}

/// The sum of these counts of moves between control groups.
pub fn moves(services: &InForce, counts: &[&str]) -> u64 {
    let moves = services.ask("limit --json").json()["moves"].clone();
    counts.iter().map(|name| moves[name].as_u64().expect("a count")).sum()
}

/// As many as there are processors.
pub fn competitors(services: &InForce) -> Vec<Consumer> {
    let competitor = |_| {
        let mut blog = Consumer::start(services, "blog");
        blog.tell("burn 60000");
        blog
    };
    (0..thread::available_parallelism().map_or(1, usize::from)).map(competitor).collect()
}

pub fn end(competitors: Vec<Consumer>) {
    for blog in competitors {
        blog.0.signal(libc::SIGKILL);
        blog.0.finish();
    }
}
