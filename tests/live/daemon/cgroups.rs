//! Tasks that enter a control group of a daemon or a lens belong to its session at once.

use crate::harness::cgroup::TestCgroup;
use crate::harness::job::watches;
use crate::harness::plugins::{PluginDaemon, workload_in};
use crate::harness::{Finished, Job, Running, workload};

const COUNT: &str = "u64 n; on enter(getppid) { n++; }";
const PROCESSES: u64 = 20;
const CALLS: u64 = 10;
/// Calls in progress while another test changes the gate's programs may be counted twice.
const MAX_AMBIGUOUS: u64 = 5;

/// Runs processes in a cgroup, each much shorter than the interval of the search for processes.
fn run_short_processes(cgroup: &TestCgroup) {
    for _ in 0..PROCESSES {
        workload_in(cgroup, &format!("calls {CALLS}")).finish().success();
    }
}

#[track_caller]
fn assert_counted(counted: u64, calls: u64) {
    assert!((calls..=calls + MAX_AMBIGUOUS).contains(&counted), "{counted} of {calls}");
}

#[test]
fn short_processes_are_seen_in_both_versions() {
    for cgroup in [TestCgroup::new(), TestCgroup::of("pids")] {
        let scope = format!("--cgroup {}", cgroup.0.display());
        let at_work = PluginDaemon::start_for(&scope, cgroup, "counts", COUNT);
        run_short_processes(&at_work.cgroup);
        assert_counted(at_work.number("counts", "n"), PROCESSES * CALLS);
        let inner = at_work.cgroup.inner("inner");
        run_short_processes(&inner);
        assert_counted(at_work.number("counts", "n"), 2 * PROCESSES * CALLS);
    }
}

#[test]
fn children_created_in_a_cgroup_are_seen() {
    let at_work = PluginDaemon::start("counts", COUNT);
    if !at_work.cgroup.0.join("cgroup.type").exists() {
        // Children can only be created in control groups of v2.
        return;
    }
    let parent = format!("fork-into {} {PROCESSES}", at_work.cgroup.0.display());
    Job::of(workload(&parent)).finish().success();
    assert_counted(at_work.number("counts", "n"), 3 * PROCESSES);
}

#[test]
fn cgroups_that_are_created_later_are_followed() {
    let outer = TestCgroup::new();
    let name = |kind: &str| {
        let outer = outer.0.file_name().expect("it is below the root").to_string_lossy();
        format!("{outer}-{kind}.service")
    };
    let unit = name("unit");
    let by_unit =
        PluginDaemon::start_for(&format!("--unit {unit}"), TestCgroup::new(), "counts", COUNT);
    let path = name("path");
    let by_path = PluginDaemon::start_for(
        &format!("--cgroup {}", outer.0.join(&path).display()),
        TestCgroup::new(),
        "counts",
        COUNT,
    );
    for (at_work, name) in [(by_unit, unit), (by_path, path)] {
        let later = outer.inner(&name);
        run_short_processes(&later);
        assert_counted(at_work.number("counts", "n"), PROCESSES * CALLS);
    }
}

#[test]
fn folder_that_is_no_cgroup_is_refused() {
    for command in ["daemon", "lens"] {
        Job::from_command_line(&format!("{command} --cgroup /proc"))
            .finish()
            .exits_with(125)
            .says("/proc is not a control group below /sys/fs/cgroup: control groups are mounted")
            .says("/sys/fs/cgroup");
    }
}

#[test]
fn daemon_in_its_own_cgroup_is_not_gated() {
    let at_work = PluginDaemon::start_idle();
    let own = at_work.daemon.pid();
    at_work.load("counts", &format!("u64 n; on enter {{ if (pid() == {own}) n++; }}"), "");
    at_work.cgroup.add(own);
    run_short_processes(&at_work.cgroup);
    assert_eq!(at_work.number("counts", "n"), 0);
}

fn interrupted(lens: Running) -> Finished {
    lens.signal(libc::SIGINT);
    lens.finish().success()
}

#[test]
fn lens_sees_short_processes() {
    let cgroup = TestCgroup::new();
    let lens = Job::lens(&format!("--cgroup {}", cgroup.0.display())).start();
    watches(&lens);
    run_short_processes(&cgroup);
    let report = interrupted(lens).report();
    assert_counted(report.count("getppid"), PROCESSES * CALLS);
}
