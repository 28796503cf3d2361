//! What becomes of limits when control groups refuse, and when whoever set them ends or is killed.

use std::fs;
use std::path::PathBuf;
use std::thread;

use crate::harness::eventually;
use crate::harness::job::{FixedCgroups, children, comm, kill, stop, threads_of};
use crate::harness::limits::{competitors, end, group_of, groups, moves, rules, start};
use crate::harness::services::{Backend, Consumer, InForce, alone, begin, programs, write};

fn taken_in(settings: &str) -> (InForce, Consumer) {
    let services = InForce::start(
        programs(&["few"]),
        &format!("{settings}{}", rules(&[("few", "tasks-max = 5\ncpu-weight = 50")])),
    );
    let few = Consumer::start(&services, "few");
    eventually("it is in its group", || group_of(few.0.pid(), "pids").starts_with("/tollgate/few/"));
    (services, few)
}

#[test]
fn what_a_killed_one_and_its_warden_left_the_next_one_takes_back() {
    let home = ["pids", "cpu"].map(|controller| group_of(std::process::id(), controller));
    let (services, mut few) = taken_in("");
    let warden = services.daemon.child_running("tollgate-warden");
    stop(services.daemon.pid());
    kill(warden as i32, libc::SIGKILL);
    services.daemon.signal(libc::SIGKILL);
    let ended = services.end();
    assert_eq!(few.takes("fork 10"), (4, libc::EAGAIN));
    drop(ended);
    let next = start(&[("few", "")]);
    assert_eq!(["pids", "cpu"].map(|controller| group_of(few.0.pid(), controller)), home);
    assert_eq!(groups(), Vec::<PathBuf>::new());
    drop((next, few));
}

#[test]
fn a_warden_that_is_killed_has_a_successor() {
    let (services, few) = taken_in("");
    let warden = || {
        let is_warden = |pid: &u32| comm(*pid).as_deref() == Some("tollgate-warden");
        children(services.daemon.pid()).into_iter().find(is_warden)
    };
    let first = warden().expect("it has one");
    kill(first as i32, libc::SIGKILL);
    eventually("another one", || warden().is_some_and(|next| next != first));
    services.daemon.signal(libc::SIGKILL);
    let ended = services.end();
    eventually("no groups", || groups().is_empty());
    drop((few, ended));
}

/// As an administrator might do, or another program that thinks that these are its own.
#[test]
fn what_cannot_be_moved_while_it_runs_is_counted_and_told_of() {
    let folder = programs(&["few"]);
    let job = InForce::job(folder.path()).with_own_cgroup_mounts();
    let services = InForce::start_by(job, folder, &rules(&[("few", "tasks-max = 4")]));
    let daemon = services.daemon.pid();
    let fixed = FixedCgroups::of(daemon);
    let mut few = Consumer::start(&services, "few");
    let failed = || moves(&services, &["failed"]);
    eventually("a failed move", || failed() > 0);
    assert_eq!(few.takes("fork 9"), (9, 0));
    assert!(services.daemon.read("err").contains("Read-only file system"), "{}", services.daemon.read("err"));
    let said = services.ask_job(&format!("assign {} few", few.0.pid())).finish().exits_with(125);
    said.says("cannot be under the limits of few").says("Read-only file system");
    // Whoever comes later is under its limits as soon as that is possible.
    drop(fixed);
    let mut later = Consumer::start(&services, "few");
    eventually("it is in its group", || group_of(later.0.pid(), "pids").starts_with("/tollgate/few/"));
    assert_eq!(later.takes("fork 9").1, libc::EAGAIN);
    services.daemon.signal(libc::SIGTERM);
    let ended = services.end();
    assert_eq!(groups(), Vec::<PathBuf>::new());
    drop(ended);
}

/// Of the second version, and where that is mounted.
fn hierarchy_options() -> Option<(PathBuf, String)> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("there are mounts");
    let mount = mounts.lines().find_map(|line| line.split_once(" - cgroup2 "));
    mount.map(|(mount, options)| (mount.split(' ').nth(4).expect("a path").into(), options.to_owned()))
}

/// As they are without a Tollgate: the warden of a killed one may still be at work.
fn own_hierarchy_options() -> Option<(PathBuf, String)> {
    let (root, _) = hierarchy_options()?;
    // First the option goes, then this.
    let tollgates = root.join("tollgate%favordynmods").exists();
    let (_, options) = hierarchy_options()?;
    Some((root, if tollgates { options.replace(",favordynmods", "") } else { options }))
}

#[test]
fn at_its_end_everybody_is_where_they_were() {
    let options = {
        let _alone = alone();
        own_hierarchy_options()
    };
    let home = ["pids", "cpu"].map(|controller| group_of(std::process::id(), controller));
    let (services, mut few) = taken_in("");
    services.daemon.signal(libc::SIGTERM);
    let ended = services.end();
    assert_eq!(["pids", "cpu"].map(|controller| group_of(few.0.pid(), controller)), home);
    assert_eq!(groups(), Vec::<PathBuf>::new());
    assert_eq!(hierarchy_options(), options);
    assert_eq!(few.takes("fork 10"), (10, 0));
    drop((few, ended));
}

#[test]
fn a_killed_ones_limits_are_lifted() {
    let home = ["pids", "cpu"].map(|controller| group_of(std::process::id(), controller));
    let (services, mut few) = taken_in("");
    // What it starts goes where it does.
    assert_eq!(few.takes("fork 2"), (2, 0));
    services.daemon.signal(libc::SIGKILL);
    let ended = services.end();
    eventually("it is where it was", || {
        ["pids", "cpu"].map(|controller| group_of(few.0.pid(), controller)) == home
    });
    eventually("no groups", || groups().is_empty());
    assert_eq!(few.takes("fork 10"), (10, 0));
    drop(ended);
}

#[test]
fn a_killed_ones_limits_are_kept_if_the_file_says_so() {
    for signal in [libc::SIGKILL, libc::SIGTERM] {
        let (services, mut few) = taken_in("[limits]\nat-end = \"keep\"\n\n");
        services.daemon.signal(signal);
        let ended = services.end();
        // Longer than a warden would take.
        thread::sleep(std::time::Duration::from_millis(500));
        assert_eq!(few.takes("fork 10"), (4, libc::EAGAIN));
        drop(ended);
        // The next one begins anew.
        let next = start(&[("few", "")]);
        assert_eq!(groups(), Vec::<PathBuf>::new());
        assert_eq!(few.takes("fork 10"), (10, 0));
        drop((next, few));
    }
}

/// Of a server with several threads, one works for somebody at that moment, in a group of its own.
#[test]
fn who_works_for_others_when_it_is_killed_is_put_back() {
    let text = rules(&[("shop", "cpu-weight = 100"), ("blog", "cpu-weight = 100")]);
    let services = InForce::start(
        programs(&["shop", "blog", "backend"]),
        &format!("{text}[[rule]]\nexe = \"FOLDER/backend\"\nadopts-peer = true\n"),
    );
    let home = group_of(std::process::id(), "cpu");
    let folder = services.folder.path().to_owned();
    let backend = Backend::start(&folder, "backend", "0", "--threads 1");
    let busy = competitors(&services);
    let tenant = begin(backend.tenant(&folder, "shop", "a 60000 1"));
    let groups_of_threads = || {
        let threads = threads_of(backend.running.pid());
        assert!(!threads.is_empty(), "it runs");
        threads.into_iter().map(|tid| group_of(tid, "cpu")).collect::<Vec<_>>()
    };
    eventually("one is its client's", || {
        groups_of_threads().iter().any(|group| group.starts_with("/tollgate/shop/"))
    });
    services.daemon.signal(libc::SIGKILL);
    let ended = services.end();
    eventually("no groups", || groups().is_empty());
    assert!(groups_of_threads().iter().all(|group| *group == home), "{:?}", groups_of_threads());
    for running in [tenant, backend.running] {
        running.signal(libc::SIGKILL);
        running.finish();
    }
    end(busy);
    drop(ended);
}

#[test]
fn control_groups_that_are_not_to_be_changed_are_told_of() {
    let _alone = alone();
    let folder = programs(&["few"]);
    write(folder.path(), "services.toml", &rules(&[("few", "tasks-max = 4")]));
    let job = InForce::job(folder.path()).with_fixed_cgroups();
    job.finish().exits_with(125).says("/sys/fs/cgroup").says("Read-only file system");
    assert_eq!(groups(), Vec::<PathBuf>::new());
}
