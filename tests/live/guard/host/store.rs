//! The daemon's store on a full disk, and in a folder with foreign files.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use crate::harness::cgroup::TestCgroup;
use crate::harness::daemon::{CommandServer, GuardDaemon};
use crate::harness::guarded_program::Guarded;
use crate::harness::job::copy;
use crate::harness::{Job, eventually};

/// Mounts a file system of 64 KiB that only the calling process and its children see.
fn mount_small(mount_point: &CString) -> io::Result<()> {
    let (kind, root, size) = (c"tmpfs", c"/", c"size=64k");
    let none = std::ptr::null();
    let private = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: plain system calls with NUL-terminated strings.
    let is_done = unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(none, root.as_ptr(), none, private, none.cast()) == 0
            && libc::mount(
                kind.as_ptr(),
                mount_point.as_ptr(),
                kind.as_ptr(),
                0,
                size.as_ptr().cast(),
            ) == 0
    };
    if is_done { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[test]
fn full_disk_is_reported_and_saved_later() {
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let store = it.folder.path().join("store");
    fs::create_dir(&store).expect("a folder");
    let mount_point = CString::new(store.as_os_str().as_bytes()).expect("no NUL");
    let job = GuardDaemon::job_in(&it, &cgroup, "--guard=watch")
        .before_exec(move || mount_small(&mount_point));
    let daemon = GuardDaemon::start_ready(job, &it);
    let seen = PathBuf::from(format!("/proc/{}/root{}", daemon.running.pid(), store.display()));
    let filler = seen.join("filler");
    fs::write(&filler, vec![0; 64 << 10]).expect("it is filled");
    let mut server = CommandServer::start(&it, &cgroup);
    eventually("it is guarded", || {
        server.send_and_wait(&[b'u'; 500]);
        daemon.program().is_some()
    });
    // The daemon reports it by itself within a minute, and also to a client whose request needs the
    // store.
    daemon.client_job("normalize guarded").finish().exits_with(125).says("No space left on device");
    eventually("a sentence", || {
        daemon.running.read("err").contains("cannot store the baseline of ")
    });
    assert_ne!(daemon.program().expect("it is still guarded")["state"], "normal");
    let baselines = || {
        let names = fs::read_dir(&seen).expect("a folder").flatten().map(|entry| entry.file_name());
        names.filter(|name| name.to_string_lossy().contains(".baseline")).count()
    };
    assert_eq!(baselines(), 0, "nothing half-written is left");
    fs::remove_file(&filler).expect("there is room");
    daemon.request("normalize guarded");
    assert_eq!(baselines(), 1);
    server.send_and_wait(b"x");
    eventually("it is tested", || !daemon.events().is_empty());
    daemon.running.signal(libc::SIGTERM);
    daemon.running.finish().success();
}

/// The report goes to a file, which may be read much later, or never.
#[test]
fn full_disk_is_reported_on_stderr_at_the_end_of_a_run() {
    let it = Guarded::new();
    let store = it.folder.path().join("store");
    fs::create_dir(&store).expect("a folder");
    let fill = format!("cat /dev/zero >{}/filler", store.display());
    let command = vec!["sh".into(), "-c".into(), fill.into()];
    let mut job = Job::run("--guard=learn", command).with_small_disk(&store);
    job.command.env("TOLLGATE_STORE", &store);
    // The status is that of cat.
    job.finish().exits_with(1).says("cannot store the baseline of ");
}

type Make = fn(&Path);

/// What is found in place of a baseline: a name, a function that creates it, and the daemon's
/// message about it.
const WRONG: [(&str, Make, &str); 7] = [
    (
        "torn",
        |path| fs::write(path, "tollgate-baseline/1 sha256=0123\n{").expect("a file"),
        "it was truncated",
    ),
    ("later", |path| fs::write(path, "tollgate-baseline/9 x\n").expect("a file"), "its version is"),
    (
        "huge",
        |path| File::create(path).expect("a file").set_len(1 << 40).expect("sparse"),
        "has 1099511627776 bytes",
    ),
    ("folder", |path| fs::create_dir(path).expect("a folder"), "not a regular file"),
    ("pipe", make_pipe, "not a regular file"),
    ("link", |path| symlink("/nowhere", path).expect("a link"), "it is a symbolic link"),
    ("unreadable", |path| drop(UnixListener::bind(path).expect("a socket")), "it cannot be read"),
];
/// No version can read these.
const SET_ASIDE: [&str; 2] = ["torn", "huge"];

fn make_pipe(path: &Path) {
    let path = CString::new(path.as_os_str().as_bytes()).expect("no NUL");
    // SAFETY: a NUL-terminated path.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
}

/// Creates a program without a baseline; returns its path and that of its future baseline.
fn stranger(it: &Guarded, name: &str) -> (PathBuf, PathBuf) {
    let content = it.folder.path().join("content");
    fs::write(&content, [&fs::read(&it.program).expect("a program"), name.as_bytes()].concat())
        .expect("a file");
    let program = it.folder.path().join(name);
    copy(&content, &program);
    let digest = Sha256::digest(fs::read(&program).expect("a program"));
    let digest: String = digest[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    (program, it.folder.path().join(format!("store/{digest}.baseline")))
}

#[test]
fn unreadable_baselines_do_not_stop_the_daemon() {
    let (it, cgroup) = (Guarded::normal(&["routine 100 0"]), TestCgroup::new());
    let strangers: Vec<_> = WRONG.iter().map(|(name, _, _)| stranger(&it, name)).collect();
    let make_all = || {
        for ((_, make, _), (_, path)) in WRONG.iter().zip(&strangers) {
            if path.symlink_metadata().is_err() {
                make(path);
            }
        }
    };
    make_all();
    let daemon = GuardDaemon::start(&it, &cgroup, "--guard=enforce --respond stop");
    let is_logged = |name: &str, words: &str, times: usize| {
        let (_, path) =
            &strangers[WRONG.iter().position(|(wrong, _, _)| *wrong == name).expect("listed")];
        let said = daemon.running.read("err");
        said.lines()
            .filter(|line| line.contains(&*path.to_string_lossy()) && line.contains(words))
            .count()
            >= times
    };
    for (name, _, words) in WRONG {
        assert!(is_logged(name, words, 1), "{name}: {}", daemon.running.read("err"));
    }
    // The daemon holds a process all the time.
    let mut held = CommandServer::start(&it, &cgroup);
    eventually("the hold", || {
        if held.pending_replies() == 0 {
            held.send(b"x");
        }
        held.is_stopped()
    });
    make_all();
    for ((name, _, words), (program, path)) in WRONG.iter().zip(&strangers) {
        let mut stranger = CommandServer::of(program, &cgroup, 0);
        eventually("it is guarded", || {
            stranger.send_and_wait(b"u");
            daemon.program_named(name).is_some()
        });
        eventually("it is logged", || is_logged(name, words, 2));
        stranger.send_and_wait(b"xuxu");
        let aside = path.with_added_extension("damaged");
        assert_eq!(aside.symlink_metadata().is_ok(), SET_ASIDE.contains(name), "{name}");
    }
    assert!(held.is_stopped());
    daemon.request("off --daemon");
    eventually("it runs again", || held.pending_replies() == 0);
}

/// The calls already in the store are part of each run's baseline, and must count only once.
#[test]
fn concurrent_runs_merge_their_baselines() {
    let it = Guarded::normal(&["routine 1000 0"]);
    let seen = || it.stored()[0]["seen_calls"].as_u64().expect("a number");
    let before = seen();
    it.run("--guard=watch", "routine 1000 0");
    let one = seen() - before;
    let job = || {
        let script = format!("{0} routine 1000 0; sleep 1", it.program.display());
        let mut job = Job::run("--guard=watch", vec!["sh".into(), "-c".into(), script.into()]);
        job.command.env("TOLLGATE_STORE", it.folder.path().join("store"));
        job.start()
    };
    for running in [job(), job(), job()] {
        running.finish().success();
    }
    assert_eq!(seen() - before, 4 * one);
}

/// A number of the program's current baseline in the daemon.
#[track_caller]
fn shown(daemon: &GuardDaemon, it: &Guarded, what: &str) -> u64 {
    let shown = daemon.request(&format!("show --json {}", it.program.display())).json();
    shown[what].as_u64().expect("a number")
}

/// Makes the server's behaviour for these commands the normal one in the daemon.
#[track_caller]
fn normalize(daemon: &GuardDaemon, server: &mut CommandServer, normal: &[u8]) {
    let calls =
        || daemon.program().map_or(0, |program| program["calls"].as_u64().expect("a number"));
    let before = calls();
    eventually("it is learned", || {
        (0..12).for_each(|_| server.send_and_wait(normal));
        calls() > before + 2000
    });
    daemon.request("normalize guarded");
}

#[test]
fn learning_daemon_keeps_unseen_baselines() {
    let (it, cgroup) = (Guarded::normal(&["routine 100 0"]), TestCgroup::new());
    let before = it.stored();
    let daemon = GuardDaemon::start(&it, &cgroup, "--guard=learn");
    daemon.request("show");
    daemon.running.signal(libc::SIGTERM);
    daemon.running.finish().success();
    assert_eq!(it.stored(), before);
}

#[test]
fn reset_replaces_unusable_baseline() {
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    it.run("--guard=learn --lookahead 6", "routine 100 0");
    let daemon = GuardDaemon::start(&it, &cgroup, "--guard=watch");
    let mut server = CommandServer::start(&it, &cgroup);
    let calls = || daemon.program().and_then(|program| program["calls"].as_u64());
    eventually("it is met", || {
        server.send_and_wait(b"uuuu");
        calls() > Some(0)
    });
    daemon.request("reset guarded");
    (0..12).for_each(|_| server.send_and_wait(b"uuuu"));
    assert!(shown(&daemon, &it, "windows") > 0);
}

/// The daemon must not block on the lock, because it has to release holds in time.
#[test]
fn daemon_gives_up_on_a_locked_store() {
    let (it, cgroup) = (Guarded::normal(&["routine 100 0"]), TestCgroup::new());
    let daemon = GuardDaemon::start(&it, &cgroup, "--guard=watch");
    let lock = File::open(daemon.store.join(".lock")).expect("a lock");
    lock.lock().expect("locked");
    daemon.client_job("show").finish().exits_with(125).says("is locked by another process");
    daemon.request("status");
    drop(lock);
    daemon.request("show");
}

#[test]
fn import_takes_effect_in_a_running_daemon() {
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let daemon = GuardDaemon::start(&it, &cgroup, "--guard=watch --anomaly-limit 1000");
    let mut server = CommandServer::start(&it, &cgroup);
    normalize(&daemon, &mut server, b"uuux");
    let export = it.folder.path().join("export");
    daemon.request(&format!("export guarded --output {}", export.display()));
    daemon.request("reset guarded");
    normalize(&daemon, &mut server, b"uuuu");
    let anomalies =
        || daemon.program().expect("it is known")["anomalies"].as_u64().expect("a number");
    let before = anomalies();
    (0..12).for_each(|_| server.send_and_wait(b"uuux"));
    eventually("the daemon has counted them", || anomalies() >= before + 12);
    let mut import = daemon.client_job("import -");
    import.command.stdin(File::open(&export).expect("just written"));
    import.finish().success();
    let before = anomalies();
    (0..12).for_each(|_| server.send_and_wait(b"uuux"));
    // Enough time for the daemon to count them.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(anomalies(), before);
}

#[test]
fn daemon_merges_what_a_run_stored() {
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let daemon = GuardDaemon::start(&it, &cgroup, "--guard=watch");
    let mut server = CommandServer::start(&it, &cgroup);
    normalize(&daemon, &mut server, b"uuuu");
    let windows = shown(&daemon, &it, "windows");
    it.run("--guard=learn", "routine 100 20");
    server.send_and_wait(b"u");
    let more = shown(&daemon, &it, "windows");
    assert!(more > windows, "{more} {windows}");
    server.send_and_wait(b"u");
    assert!(shown(&daemon, &it, "windows") >= more);
    // What the run learned is not normal yet.
    assert_eq!(daemon.program().expect("it is known")["state"], "training");
}
