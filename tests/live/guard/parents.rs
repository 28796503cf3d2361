//! Parents that stop themselves when the guard stops a child of them, as sudo does. No shell
//! continues them.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::harness::cgroup::TestCgroup;
use crate::harness::daemon::GuardDaemon;
use crate::harness::guarded_program::{GuardSection, Guarded};
use crate::harness::job::{kill, processes, state};
use crate::harness::{Job, Running, eventually, words};

/// The anomalies are those of a plugin, so that the parents have none.
fn denounce(it: &Guarded) -> String {
    let file = it.denouncing_plugin("getgid");
    format!("--guard=enforce --plugin {}", file.display())
}

#[test]
fn parents_run_on_when_a_child_was_held() {
    let it = Guarded::new();
    let delays = format!("{} --delay-factor 20ms", denounce(&it));
    for command in [
        "stops-with-child 1 100 1",
        // Each of them sees that its child has stopped itself.
        "stops-with-child 3 100 1",
        "stops-with-child --group 1 2 100 1",
    ] {
        let ran = it.job(&delays, command).finish().success();
        assert_eq!(ran.text(), "done\n", "{command}");
        assert!(GuardSection::of(&ran).number("holds") > 0);
    }
    // The child was released long before, and is a zombie at the end.
    let short = format!("{} --delay-factor 1ms", denounce(&it));
    for _ in 0..5 {
        it.job(&short, "stops-with-child --late 100 2 0 1").finish().success();
    }
}

#[test]
fn parents_run_on_after_training_stops() {
    let it = Guarded::new();
    for command in ["stops-with-child 1 200000 0", "stops-with-child --late 20 2 200000 0"] {
        let ran = it.job("--guard=learn --train-on-stops 10ms", command).finish().success();
        assert_eq!(ran.text(), "done\n", "{command}");
    }
}

/// The processes of a program that was copied for one test.
fn processes_of(program: &Path) -> Vec<u32> {
    let is_its = |pid: &u32| {
        std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|path| path == program)
    };
    processes().into_iter().filter(is_its).collect()
}

fn all_stopped(it: &Guarded) -> bool {
    let all = processes_of(&it.program);
    all.len() == 3 && all.iter().all(|process| state(*process) == Some('T'))
}

/// A held child, and two parents that have stopped with it.
fn stopped(it: &Guarded, options: &str) -> Running {
    let options = format!("{} {options}", denounce(it));
    let running = it.job(&options, "stops-with-child 2 100 1").start();
    eventually("their stops", || all_stopped(it));
    running
}

/// The sweeps do not continue a parent before its child, which the parent would continue.
#[test]
fn parents_stay_stopped_with_a_held_child() {
    let it = Guarded::new();
    let running = stopped(&it, "--respond stop");
    let began = Instant::now();
    // More than the interval of the sweeps.
    while began.elapsed() < Duration::from_millis(1000) {
        assert!(all_stopped(&it));
        std::thread::sleep(Duration::from_millis(5));
    }
    kill(running.pid() as i32, libc::SIGKILL);
    running.finish().exits_with(137);
    eventually("their end", || processes_of(&it.program).is_empty());
}

#[test]
fn request_to_end_frees_parents_as_well() {
    let it = Guarded::new();
    let running = stopped(&it, "--respond stop");
    running.signal(libc::SIGTERM);
    running.finish().exits_with(128 + libc::SIGTERM);
    eventually("their end", || processes_of(&it.program).is_empty());
}

#[test]
fn another_sender_can_still_stop_such_a_parent() {
    let it = Guarded::new();
    let running = stopped(&it, "--delay-factor 500ms");
    let outer = running.child_running("guarded");
    kill(outer as i32, libc::SIGSTOP);
    eventually("the child's end", || processes_of(&it.program).len() == 1);
    // More than the interval of the sweeps.
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(state(outer), Some('T'));
    kill(outer as i32, libc::SIGCONT);
    assert_eq!(running.finish().success().text(), "done\n");
}

#[test]
fn daemon_releases_parents_by_command_and_at_its_end() {
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let daemon = GuardDaemon::start(&it, &cgroup, &format!("{} --respond stop", denounce(&it)));
    let start = || {
        let command = words("stops-with-child 2 100000 1");
        let job = Job::of([it.program.clone().into()].into_iter().chain(command).collect());
        let procs = cgroup.0.join("cgroup.procs");
        // Its children are in the cgroup from the beginning.
        let running = job.in_own_session().before_exec(move || std::fs::write(&procs, "0")).start();
        eventually("their stops", || all_stopped(&it));
        running
    };
    for command in ["release", "off"] {
        let running = start();
        daemon.request(command);
        if command == "off" {
            daemon.request("on");
        }
        running.finish().success();
        assert!(processes_of(&it.program).is_empty());
    }
    let running = start();
    daemon.running.signal(libc::SIGTERM);
    daemon.running.finish().success();
    running.finish().success();
    assert!(processes_of(&it.program).is_empty());
}
