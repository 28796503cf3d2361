//! Services with limits, and the cgroups that enforce them.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use serde_json::Value;

use super::services::{ActiveServices, Consumer, programs};

/// Rules for services that have the names of their programs, with these settings.
pub fn rules(services: &[(&str, &str)]) -> String {
    let one = |(name, settings): &(&str, &str)| {
        format!(
            "[service.{name}]\n{settings}\n\n[[rule]]\nexe = \"FOLDER/{name}\"\nbelongs-to = \
            \"{name}\"\n\n"
        )
    };
    services.iter().map(one).collect()
}

pub fn start(services: &[(&str, &str)]) -> ActiveServices {
    let names: Vec<_> = services.iter().map(|(name, _)| *name).collect();
    ActiveServices::start(programs(&names), &rules(services))
}

/// The roots of Tollgate's cgroups in all hierarchies.
pub fn service_cgroups() -> Vec<PathBuf> {
    let roots = ["", "unified", "cpu", "cpu,cpuacct", "memory", "pids"];
    let roots = roots.map(|root| Path::new("/sys/fs/cgroup").join(root).join("tollgate"));
    roots.into_iter().filter(|path| path.exists()).collect()
}

/// The cgroup of a process in the hierarchy of a controller.
pub fn cgroup_of(pid: u32, controller: &str) -> String {
    cgroup_line_of(pid, controller).1
}

/// The same with the controllers of that hierarchy as in proc(5): none for cgroup v2.
pub fn cgroup_line_of(pid: u32, controller: &str) -> (String, String) {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("it runs");
    let lines: Vec<Vec<_>> = text.lines().map(|line| line.splitn(3, ':').collect()).collect();
    let v1 = lines.iter().find(|line| line[1].split(',').any(|name| name == controller));
    let line = v1.or_else(|| lines.iter().find(|line| line[1].is_empty())).expect("a hierarchy");
    (line[1].to_owned(), line[2].to_owned())
}

pub fn limit(services: &ActiveServices, name: &str) -> Value {
    let report = services.request("limit --json").json();
    let rows = report["services"].as_array().expect("services");
    rows.iter().find(|row| row["name"] == name).expect("it has limits").clone()
}

/// The sum of these counts of migrations.
pub fn moves(services: &ActiveServices, counts: &[&str]) -> u64 {
    let moves = services.request("limit --json").json()["moves"].clone();
    counts.iter().map(|name| moves[name].as_u64().expect("a count")).sum()
}

/// Starts one competing process for each processor.
pub fn competitors(services: &ActiveServices) -> Vec<Consumer> {
    let competitor = |_| {
        let mut blog = Consumer::start(services, "blog");
        blog.send("burn 60000");
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
