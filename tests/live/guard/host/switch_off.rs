//! `tollgate guard off` releases all processes on the machine, whichever Tollgate holds them. A
//! mount namespace stands in for the machine.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::harness::cgroup::TestCgroup;
use crate::harness::daemon::GuardDaemon;
use crate::harness::guarded_program::{GuardSection, Guarded};
use crate::harness::job::{Running, kill, state, stop};
use crate::harness::{Job, NOBODY, eventually, tollgate, words};

const STOP: &str = "--guard=enforce --respond stop --anomaly-limit 1000";

/// Starts a run that holds its command.
fn held(it: &Guarded) -> (Running, u32) {
    let running = it.job(STOP, "routine 100 300").in_own_bpf_fs().start();
    let guarded = running.child_running("guarded");
    eventually("the hold", || state(guarded) == Some('T'));
    (running, guarded)
}

/// A `tollgate guard off` in the mount namespace of this run.
fn off(where_it_runs: &Running, before: &str, options: &str, socket: &Path) -> Job {
    let line = format!("nsenter --mount --target {} {before}", where_it_runs.pid());
    let off: [OsString; 3] = [tollgate().into(), "guard".into(), "off".into()];
    let mut job = Job::of(words(&line).into_iter().chain(off).chain(words(options)).collect());
    job.command.env("TOLLGATE_SOCKET", socket);
    job
}

/// Checks that the command made its anomalous calls, and was held only for the first.
fn ran_on(running: Running) {
    let ran = running.finish().success();
    assert!(ran.err.contains("switched off by `tollgate guard off`"), "{}", ran.err);
    let guard = GuardSection::of(&ran);
    assert_eq!((guard.number("holds"), guard.number("anomalies") > 200), (1, true), "{}", guard.0);
}

#[test]
fn off_releases_a_runs_holds_for_good() {
    let it = Guarded::normal(&["routine 100 0"]);
    let (running, guarded) = held(&it);
    let none = it.folder.path().join("no-socket");
    off(&running, "", "--daemon", &none).finish().exits_with(125).says("no daemon is listening at");
    off(&running, "", "--killed", &none).finish().success();
    let nobody = format!("setpriv --reuid {NOBODY} --clear-groups");
    off(&running, &nobody, "", &none)
        .finish()
        .exits_with(125)
        .says("only root may switch guards off");
    assert_eq!(state(guarded), Some('T'));
    let said = off(&running, "", "", &none).finish().success().text();
    let words = format!("switched off the guard of process {}; released 1 process", running.pid());
    assert!(said.contains(&words), "{said}");
    ran_on(running);
}

/// All users can make entries in the BPF file system.
#[test]
fn entries_of_other_users_are_ignored() {
    let it = Guarded::normal(&["routine 100 0"]);
    let (running, _) = held(&it);
    let none = it.folder.path().join("no-socket");
    let there = format!("nsenter --mount --target {}", running.pid());
    let nobody = format!("{there} setpriv --reuid {NOBODY} --clear-groups");
    // One looks like the folder of a killed guard of another version, and one leads nowhere.
    let namespace = std::fs::metadata("/proc/self/ns/pid").expect("there is /proc").ino();
    for make in [
        format!("mkdir -p /sys/fs/bpf/tollgate-4000002-{namespace}-9/guard"),
        format!("ln -s /nowhere /sys/fs/bpf/tollgate-4000003-{namespace}-9"),
    ] {
        Job::of(words(&format!("{nobody} {make}"))).finish().success();
    }
    let ended = off(&running, "", "--killed", &none).finish().success();
    assert_eq!(ended.err, "");
    off(&running, "", "", &none).finish().success();
    ran_on(running);
}

#[test]
fn off_releases_holds_of_a_hung_daemon() {
    let (it, cgroup) = (Guarded::normal(&["routine 100 0"]), TestCgroup::new());
    let daemon = GuardDaemon::start(&it, &cgroup, STOP);
    let (running, _) = held(&it);
    stop(daemon.running.pid());
    let off = off(&running, "", "", &daemon.socket).start();
    ran_on(running);
    kill(daemon.running.pid() as i32, libc::SIGCONT);
    assert!(off.finish().success().text().contains("off: anomalies are only reported"));
    daemon.client_job("hold 1").finish().exits_with(125).says("the guard is switched off");
}

/// A daemon starts, attaches the held process, and ends.
#[test]
fn daemon_does_not_take_over_a_runs_holds() {
    let (it, cgroup) = (Guarded::normal(&["routine 100 0"]), TestCgroup::new());
    let (running, guarded) = held(&it);
    cgroup.add(guarded);
    let daemon = GuardDaemon::start(&it, &cgroup, STOP);
    assert_eq!(daemon.status()["held"], serde_json::json!([]));
    daemon.running.signal(libc::SIGTERM);
    daemon.running.finish().success();
    assert_eq!(state(guarded), Some('T'));
    off(&running, "", "", &it.folder.path().join("no-socket")).finish().success();
    ran_on(running);
}
