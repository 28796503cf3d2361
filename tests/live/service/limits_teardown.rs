//! Limits when cgroups refuse changes, and when their daemon ends or is killed.

use std::fs;
use std::path::PathBuf;
use std::thread;

use crate::harness::job::{ReadOnlyCgroups, children, comm, kill, state, stop, threads_of};
use crate::harness::service_limits::{
    cgroup_of, competitors, end, moves, rules, service_cgroups, start,
};
use crate::harness::services::{
    ActiveServices, Backend, Consumer, begin, programs, take_services_lock, write,
};
use crate::harness::{Job, eventually};

fn taken_in(settings: &str) -> (ActiveServices, Consumer) {
    let services = ActiveServices::start(
        programs(&["few"]),
        &format!("{settings}{}", rules(&[("few", "tasks-max = 5\ncpu-weight = 50")])),
    );
    let few = Consumer::start(&services, "few");
    eventually("it is in its cgroup", || {
        cgroup_of(few.0.pid(), "pids").starts_with("/tollgate/few/")
    });
    (services, few)
}

#[test]
fn next_command_lifts_limits_after_kill9_of_both() {
    let home = ["pids", "cpu"].map(|controller| cgroup_of(std::process::id(), controller));
    let (services, mut few) = taken_in("");
    let watchdog = services.daemon.child_running("tollgate-wdog");
    stop(services.daemon.pid());
    kill(watchdog as i32, libc::SIGKILL);
    services.daemon.signal(libc::SIGKILL);
    let ended = services.end();
    // As the unit's ExecStopPost does. A command of another test may have come before.
    Job::from_command_line("guard off --killed").finish().success();
    assert_eq!(["pids", "cpu"].map(|controller| cgroup_of(few.0.pid(), controller)), home);
    assert_eq!(service_cgroups(), Vec::<PathBuf>::new());
    assert_eq!(few.request_counts("fork 10"), (10, 0));
    drop((ended, few));
}

/// As in a container whose first process waits for no orphan.
#[test]
fn zombie_of_a_killed_daemon_blocks_no_other() {
    let services = ActiveServices::start(programs(&["few"]), &rules(&[("few", "")]));
    services.daemon.signal(libc::SIGKILL);
    let daemon = services.daemon.pid();
    // Its other threads may end later, and close its socket.
    let threads = || fs::read_dir(format!("/proc/{daemon}/task")).map_or(0, Iterator::count);
    eventually("it is a zombie", || state(daemon) == Some('Z') && threads() == 1);
    let next = ActiveServices::job(services.folder.path()).start();
    eventually("the services", || {
        assert!(!next.is_over(), "{}", next.read("err"));
        next.read("err").contains(" are active")
    });
    next.signal(libc::SIGTERM);
    next.finish().success();
    drop(services.end());
}

#[test]
fn killed_watchdog_is_replaced() {
    let (services, few) = taken_in("");
    let watchdog = || {
        let is_watchdog = |pid: &u32| comm(*pid).as_deref() == Some("tollgate-wdog");
        children(services.daemon.pid()).into_iter().find(is_watchdog)
    };
    let first = watchdog().expect("it has one");
    kill(first as i32, libc::SIGKILL);
    eventually("another one", || watchdog().is_some_and(|next| next != first));
    services.daemon.signal(libc::SIGKILL);
    let ended = services.end();
    eventually("no cgroups", || service_cgroups().is_empty());
    drop((few, ended));
}

/// Cgroups become read-only, as if by an administrator or another program that manages them.
#[test]
fn failed_migrations_are_counted() {
    let folder = programs(&["few"]);
    let job = ActiveServices::job(folder.path()).with_own_cgroup_mounts();
    let services = ActiveServices::start_by(job, folder, &rules(&[("few", "tasks-max = 4")]));
    let daemon = services.daemon.pid();
    let fixed = ReadOnlyCgroups::of(daemon);
    let mut few = Consumer::start(&services, "few");
    let failed = || moves(&services, &["failed"]);
    eventually("a failed move", || failed() > 0);
    assert_eq!(few.request_counts("fork 9"), (9, 0));
    assert!(
        services.daemon.read("err").contains("Read-only file system"),
        "{}",
        services.daemon.read("err")
    );
    let said = services.client_job(&format!("assign {} few", few.0.pid())).finish().exits_with(125);
    said.says("under the limits of few").says("Read-only file system");
    // Later processes are under the limits as soon as that is possible.
    drop(fixed);
    let mut later = Consumer::start(&services, "few");
    eventually("it is in its cgroup", || {
        cgroup_of(later.0.pid(), "pids").starts_with("/tollgate/few/")
    });
    assert_eq!(later.request_counts("fork 9").1, libc::EAGAIN);
    services.daemon.signal(libc::SIGTERM);
    let ended = services.end();
    assert_eq!(service_cgroups(), Vec::<PathBuf>::new());
    drop(ended);
}

/// The mount point and options of cgroup v2.
fn hierarchy_options() -> Option<(PathBuf, String)> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("there are mounts");
    let mount = mounts.lines().find_map(|line| line.split_once(" - cgroup2 "));
    mount.map(|(mount, options)| {
        (mount.split(' ').nth(4).expect("a path").into(), options.to_owned())
    })
}

/// The same without a Tollgate's own option: the watchdog of a killed Tollgate may still be at
/// work.
fn own_hierarchy_options() -> Option<(PathBuf, String)> {
    let (root, _) = hierarchy_options()?;
    // Tollgate removes the option first, then this mark.
    let tollgates = root.join("tollgate%favordynmods").exists();
    let (_, options) = hierarchy_options()?;
    Some((root, if tollgates { options.replace(",favordynmods", "") } else { options }))
}

#[test]
fn teardown_restores_original_cgroups() {
    let options = {
        let _alone = take_services_lock();
        own_hierarchy_options()
    };
    let home = ["pids", "cpu"].map(|controller| cgroup_of(std::process::id(), controller));
    let (services, mut few) = taken_in("");
    services.daemon.signal(libc::SIGTERM);
    let ended = services.end();
    assert_eq!(["pids", "cpu"].map(|controller| cgroup_of(few.0.pid(), controller)), home);
    assert_eq!(service_cgroups(), Vec::<PathBuf>::new());
    assert_eq!(hierarchy_options(), options);
    assert_eq!(few.request_counts("fork 10"), (10, 0));
    drop((few, ended));
}

#[test]
fn watchdog_tears_down_limits() {
    let home = ["pids", "cpu"].map(|controller| cgroup_of(std::process::id(), controller));
    let (services, mut few) = taken_in("");
    // Children are in the cgroup of their parent.
    assert_eq!(few.request_counts("fork 2"), (2, 0));
    services.daemon.signal(libc::SIGKILL);
    let ended = services.end();
    eventually("it is where it was", || {
        ["pids", "cpu"].map(|controller| cgroup_of(few.0.pid(), controller)) == home
    });
    eventually("no cgroups", || service_cgroups().is_empty());
    assert_eq!(few.request_counts("fork 10"), (10, 0));
    drop(ended);
}

#[test]
fn at_end_keep_survives_kill9() {
    for signal in [libc::SIGKILL, libc::SIGTERM] {
        let (services, mut few) = taken_in("[limits]\nat-end = \"keep\"\n\n");
        services.daemon.signal(signal);
        let ended = services.end();
        // Longer than a watchdog would need.
        thread::sleep(std::time::Duration::from_millis(500));
        assert_eq!(few.request_counts("fork 10"), (4, libc::EAGAIN));
        drop(ended);
        // The next daemon starts from scratch.
        let next = start(&[("few", "")]);
        assert_eq!(service_cgroups(), Vec::<PathBuf>::new());
        assert_eq!(few.request_counts("fork 10"), (10, 0));
        drop((next, few));
    }
}

/// One thread of a server with several threads works for a client at that moment, in a cgroup of
/// its own.
#[test]
fn watchdog_restores_threads_working_on_behalf() {
    let text = rules(&[("shop", "cpu-weight = 100"), ("blog", "cpu-weight = 100")]);
    let services = ActiveServices::start(
        programs(&["shop", "blog", "backend"]),
        &format!("{text}[[rule]]\nexe = \"FOLDER/backend\"\nadopts-peer = true\n"),
    );
    let home = cgroup_of(std::process::id(), "cpu");
    let folder = services.folder.path().to_owned();
    let backend = Backend::start(&folder, "backend", "0", "--threads 1");
    let busy = competitors(&services);
    let tenant = begin(backend.tenant(&folder, "shop", "a 60000 1"));
    let cgroups_of_threads = || {
        let threads = threads_of(backend.running.pid());
        assert!(!threads.is_empty(), "it runs");
        threads.into_iter().map(|tid| cgroup_of(tid, "cpu")).collect::<Vec<_>>()
    };
    eventually("one is its client's", || {
        cgroups_of_threads().iter().any(|cgroup| cgroup.starts_with("/tollgate/shop/"))
    });
    services.daemon.signal(libc::SIGKILL);
    let ended = services.end();
    eventually("no cgroups", || service_cgroups().is_empty());
    assert!(
        cgroups_of_threads().iter().all(|cgroup| *cgroup == home),
        "{:?}",
        cgroups_of_threads()
    );
    for running in [tenant, backend.running] {
        running.signal(libc::SIGKILL);
        running.finish();
    }
    end(busy);
    drop(ended);
}

#[test]
fn readonly_cgroups_are_reported() {
    let _alone = take_services_lock();
    let folder = programs(&["few"]);
    write(folder.path(), "services.toml", &rules(&[("few", "tasks-max = 4")]));
    let job = ActiveServices::job(folder.path()).with_fixed_cgroups();
    job.finish().exits_with(125).says("/sys/fs/cgroup").says("Read-only file system");
    assert_eq!(service_cgroups(), Vec::<PathBuf>::new());
}
