//! Speeds of emulated processors. Only one Tollgate at a time may set them.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::time::Duration;
use std::{fs, io, thread};

use serde_json::Value;

use super::super::emulated::{
    FASTEST_KHZ, SEED, domain_of, load_drivers, pace_command, paced, paced_by, paced_command,
    paced_with_store, pacing_daemon, policy, setting, slowed_domains, slowed_tasks, state,
    stop_when, stop_while_slowed, wait_until_paced,
};
use super::super::host_monitor::HostMonitor;
use crate::harness::job::{folder, kill};
use crate::harness::metrics::Metrics;
use crate::harness::pty::Terminal;
use crate::harness::scheduling::pin;
use crate::harness::{Job, NOBODY, Running, eventually, workload};

/// Makes this folder, on a disk of its own that is full.
fn make_full_folder(path: &Path) {
    fs::create_dir(path).expect("its parent is there");
    let name = CString::new(path.as_os_str().as_bytes()).expect("it has no NUL");
    // SAFETY: valid strings.
    let mounted = unsafe {
        let options = c"size=4k".as_ptr().cast();
        libc::mount(c"tmpfs".as_ptr(), name.as_ptr(), c"tmpfs".as_ptr(), 0, options)
    };
    assert_eq!(mounted, 0, "{}", io::Error::last_os_error());
    fs::write(path.join("all"), [0; 4096]).expect("there is room for it");
}

#[test]
fn report_has_all_tasks_if_the_store_is_full() {
    const TASKS: u64 = 30;
    load_drivers();
    let before = state();
    let folder = folder();
    make_full_folder(&folder.path().join("store"));
    let ran = paced_with_store("setspeed", TASKS, folder.path()).finish().success();
    assert_eq!(state(), before);
    let document = ran.document("report");
    let notes = document["notes"].to_string();
    assert!(notes.contains("cannot store samples in"), "{notes}");
    let kind = &document["pacing"]["types"][0];
    assert_eq!(
        (kind["name"].as_str(), kind["tasks"].as_u64()),
        (Some("workloads: frame"), Some(TASKS))
    );
    // By the model, no speed needs more energy than the fastest one; 1 % is for rounding.
    let joules = |key: &str| kind[key].as_f64().expect("a number");
    let (modelled, fastest) = (joules("modelled_joules"), joules("fastest_modelled_joules"));
    assert!(0.0 < modelled && modelled < fastest * 1.01, "{kind}");
}

/// Whether a timer of a BPF program will expire. Only pace has timers.
fn timer_is_pending() -> bool {
    fs::read_to_string("/proc/timer_list").expect("root may read it").contains("bpf_timer_cb")
}

fn started_daemon(keys: &str, folder: &Path) -> Running {
    let daemon = pacing_daemon(keys, folder).start();
    eventually("the daemon", || {
        assert!(!daemon.is_over(), "{}", daemon.read("err"));
        daemon.read("err").contains("pacing tasks")
    });
    daemon
}

#[test]
fn daemon_paces_the_tasks_of_named_users() {
    load_drivers();
    let before = state();
    let folder = folder();
    let daemon = started_daemon(&format!("users = [\"{NOBODY}\"]\n"), folder.path());
    let mut program = Job::of(workload("own-tasks 10000 20"));
    program.command.uid(NOBODY);
    let program = program.start();
    eventually("a slower speed", || !slowed_domains("setspeed", &before).is_empty());
    kill(program.pid() as i32, libc::SIGKILL);
    program.finish();
    daemon.signal(libc::SIGTERM);
    daemon.finish().success();
    assert_eq!(state(), before);
}

#[test]
fn daemon_reports_tasks_and_resets_types() {
    const TASKS: u64 = 30;
    load_drivers();
    let before = state();
    let folder = folder();
    let daemon = started_daemon("", folder.path());
    let mut terminal = Terminal::new();
    let mut top = pace_command("pace top", folder.path()).on(&terminal);
    top.command.env("TERM", "xterm");
    let top = top.start();
    terminal.shows("no task", |screen| {
        screen.contains("tollgate pace") && !screen.contains("workloads: frame")
    });
    // Without `users` in the file of rules, programs of other users begin no task.
    let mut other = Job::of(workload("chained-tasks 5"));
    other.command.uid(NOBODY);
    other.finish().success();
    let program = Job::of(workload(&slowed_tasks(TASKS, SEED))).start();
    // The timers run while there are tasks, and only then.
    eventually("a timer", timer_is_pending);
    program.finish().success();
    let has_all = |line: &str| {
        line.contains("workloads: frame")
            && line.split_whitespace().next() == Some(&TASKS.to_string())
    };
    terminal.shows("its tasks", |screen| screen.lines().any(has_all));
    terminal.press(b"q");
    top.finish().success();
    let is_silent = || {
        thread::sleep(Duration::from_millis(10));
        !timer_is_pending()
    };
    eventually("the end of the timers", || (0..100).all(|_| is_silent()));
    let tasks = || {
        let report = pace_command("pace report --json", folder.path()).finish().success();
        let report: Value = report.json();
        let types = report["types"].as_array().expect("an array");
        let own = types.iter().find(|one| one["name"] == "workloads: frame");
        own.map(|one| one["tasks"].as_u64().expect("a number"))
    };
    eventually("the tasks", || tasks() == Some(TASKS));
    let series = "tollgate_pace_tasks_total{type=\"workloads: frame\"}";
    let counted = || Metrics::of(&daemon).value(|one| one == series);
    eventually("the metrics", || counted() == Some(TASKS as f64));
    // A program is killed in its task.
    let killed = Job::of(workload(&slowed_tasks(10_000, SEED))).start();
    eventually("a slower speed", || !slowed_domains("setspeed", &before).is_empty());
    kill(killed.pid() as i32, libc::SIGKILL);
    eventually("the system's governor", || state() == before);
    killed.finish();
    let mut reset = pace_command("pace reset", folder.path());
    reset.command.arg("workloads: frame");
    reset.finish().success();
    assert_eq!(tasks(), Some(0));
    daemon.signal(libc::SIGTERM);
    daemon.finish().success();
    assert_eq!(state(), before);
}

/// The watchdog of a Tollgate process.
fn watchdog(running: &Running) -> u32 {
    running.child_running("tollgate-wdog")
}

/// Stops Tollgate at a moment at which the speeds are in its hands.
#[track_caller]
fn stop_while_paced(running: &Running) {
    let is_paced = || policy("scaling_governor") == "userspace";
    stop_when(running, "the governor of pace", || is_paced().then_some(()));
}

#[test]
fn host_sees_the_speeds_that_are_asked_for() {
    load_drivers();
    let mut host = HostMonitor::open();
    let running = paced(10_000).start();
    let program = running.child_running("workloads");
    for cpu in [0, 1] {
        pin(program, cpu);
        let domain = domain_of(cpu);
        // Under another governor, the file has no number.
        let asked = || setting(domain, "scaling_setspeed").parse::<u64>().ok();
        // Each stop delays the speeds of a task, so that it may only have the first one.
        let slower = || asked().filter(|khz| *khz < FASTEST_KHZ);
        let first = stop_when(&running, "a slower speed", slower);
        assert_eq!(host.khz(domain), first);
        running.signal(libc::SIGCONT);
        let other = || asked().filter(|khz| *khz != first);
        let second = stop_when(&running, "another speed", other);
        assert_eq!(host.khz(domain), second);
        running.signal(libc::SIGCONT);
    }
    running.signal(libc::SIGTERM);
    running.finish();
}

#[test]
fn bounds_make_the_governor_slower() {
    load_drivers();
    let before = state();
    let mut host = HostMonitor::open();
    let running = paced_by("bounds", 10_000).start();
    let domain = stop_while_slowed(&running, "bounds", &before);
    assert_eq!(setting(domain, "scaling_governor"), before[domain as usize][0]);
    let asked: u64 = setting(domain, "scaling_max_freq").parse().expect("a speed");
    // The governor applies the bounds at its next tick.
    eventually("the speed in the register", || host.khz(domain) == asked);
    running.signal(libc::SIGCONT);
    running.signal(libc::SIGTERM);
    running.finish();
    assert_eq!(state(), before);
}

#[test]
fn speeds_follow_a_task_to_another_domain() {
    load_drivers();
    let before = state();
    let running = paced(10_000).start();
    let program = running.child_running("workloads");
    for cpu in [0, 1, 0] {
        pin(program, cpu);
        eventually("a slower speed of its domain alone", || {
            assert!(!running.is_over(), "{}", running.read("err"));
            slowed_domains("setspeed", &before) == [domain_of(cpu)]
        });
    }
    running.signal(libc::SIGTERM);
    running.finish();
    assert_eq!(state(), before);
}

#[test]
fn first_line_of_a_watch_has_the_speeds() {
    load_drivers();
    let levels = pace_command("pace levels", folder().path()).finish().success().text();
    let summary = "5 of 5 speeds are worthwhile, so pacing can save energy";
    assert!(levels.contains(summary), "{levels}");
    let mut watch = pace_command("pace watch --", folder().path());
    watch.command.args(workload("sleep 1"));
    let text = watch.finish().success().err;
    let first = text.lines().next().expect("a line");
    assert!(first.starts_with("pace: this machine (") && first.ends_with(summary), "{text}");
}

#[test]
fn actuator_that_the_machine_lacks_has_a_position() {
    load_drivers();
    let before = state();
    let expected = "policy0 does not support the actuator \"preference\" (driver acpi-cpufreq";
    paced_by("preference", 1).finish().exits_with(125).says(expected).says(":1:12");
    assert_eq!(state(), before);
}

#[test]
fn levels_of_another_machine_have_a_position() {
    load_drivers();
    let folder = folder();
    let daemon = pacing_daemon("levels = \"rightspeed\"\n", folder.path());
    let expected = "the fastest of these levels is 700 MHz, but the fastest speed of policy0 is";
    daemon.finish().exits_with(125).says(expected).says(":1:10");
}

#[test]
fn a_thousand_tasks_at_once_are_paced() {
    load_drivers();
    let before = state();
    let ran = paced_command("tasks-at-once 1000").finish().success();
    assert_eq!(state(), before);
    assert_eq!(ran.document("report")["pacing"]["types"][0]["tasks"], 999);
}

#[test]
fn next_command_restores_speeds_after_a_kill_of_both() {
    load_drivers();
    let before = state();
    // The last one is ExecStopPost of the daemon's unit.
    for command in ["pace restore", "run", "guard off --killed"] {
        let running = paced(10_000).start();
        stop_while_paced(&running);
        let watchdog = watchdog(&running);
        kill(watchdog as i32, libc::SIGKILL);
        running.signal(libc::SIGKILL);
        eventually("the end", || running.is_over());
        assert_eq!(policy("scaling_governor"), "userspace");
        let job = match command {
            "run" => Job::run("--no-toll", workload("calls 1")),
            _ => Job::from_command_line(command),
        };
        job.finish().success();
        assert_eq!(state(), before, "{command}");
    }
    Job::from_command_line("pace restore").finish().success();
}

/// The scheduling policy of a process's thread with this name (proc_pid_stat(5), field 41).
fn scheduling_policy(pid: u32, name: &str) -> i32 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let stats = threads.map(|thread| {
        fs::read_to_string(thread.expect("an entry").path().join("stat")).expect("it runs")
    });
    let stats: Vec<_> = stats.collect();
    let (_, fields) = stats
        .iter()
        .filter_map(|stat| stat.rsplit_once(") "))
        .find(|(begin, _)| begin.ends_with(&format!("({name}")))
        .expect("a thread of this name");
    fields.split_whitespace().nth(41 - 3).and_then(|one| one.parse().ok()).expect("a policy")
}

#[test]
fn one_realtime_thread_sets_the_speeds() {
    load_drivers();
    let running = paced(10_000).start();
    wait_until_paced(&running);
    assert_eq!(scheduling_policy(running.pid(), "pace-speeds"), libc::SCHED_FIFO);
    paced(1).finish().exits_with(125).says("already sets the speeds");
    running.signal(libc::SIGTERM);
    running.finish();
}
