//! The daemon's store is on a disk that fills up, and in a folder where others have been.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use crate::harness::cgroup::ControlGroup;
use crate::harness::daemon::{Daemon, Servant};
use crate::harness::guarded::Guarded;
use crate::harness::job::copy;
use crate::harness::{Job, eventually};

/// A file system of 64 KiB at this place, which only the calling process and its children see.
fn mount_small(place: &CString) -> io::Result<()> {
    let (kind, root, size) = (c"tmpfs", c"/", c"size=64k");
    let none = std::ptr::null();
    let private = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: plain system calls with NUL-terminated strings.
    let is_done = unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(none, root.as_ptr(), none, private, none.cast()) == 0
            && libc::mount(kind.as_ptr(), place.as_ptr(), kind.as_ptr(), 0, size.as_ptr().cast()) == 0
    };
    if is_done { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[test]
fn a_full_disk_is_told_and_what_was_learned_is_stored_when_there_is_room() {
    let (it, group) = (Guarded::new(), ControlGroup::new());
    let store = it.folder.path().join("store");
    fs::create_dir(&store).expect("a folder");
    let place = CString::new(store.as_os_str().as_bytes()).expect("no NUL");
    let job = Daemon::job_in(&it, &group, "--guard=watch").before_exec(move || mount_small(&place));
    let daemon = Daemon::at_work(job, &it);
    let seen = PathBuf::from(format!("/proc/{}/root{}", daemon.running.pid(), store.display()));
    let filler = seen.join("filler");
    fs::write(&filler, vec![0; 64 << 10]).expect("it is filled");
    let mut servant = Servant::start(&it, &group);
    eventually("it is guarded", || {
        servant.serve(&[b'u'; 500]);
        daemon.program().is_some()
    });
    // By itself within a minute, and to who asks for what needs it.
    daemon.ask_job("normalize guarded").finish().exits_with(125).says("No space left on device");
    eventually("a sentence", || daemon.running.read("err").contains("could not be stored: cannot save"));
    assert_ne!(daemon.program().expect("it is still guarded")["state"], "normal");
    let baselines = || {
        let names = fs::read_dir(&seen).expect("a folder").flatten().map(|entry| entry.file_name());
        names.filter(|name| name.to_string_lossy().contains(".baseline")).count()
    };
    assert_eq!(baselines(), 0, "nothing half-written is left");
    fs::remove_file(&filler).expect("there is room");
    daemon.ask("normalize guarded");
    assert_eq!(baselines(), 1);
    servant.serve(b"x");
    eventually("it is tested", || !daemon.events().is_empty());
    daemon.running.signal(libc::SIGTERM);
    daemon.running.finish().success();
}

type Make = fn(&Path);

/// What there is in a baseline's place, how it comes there, and the daemon's words for it.
const WRONG: [(&str, Make, &str); 7] = [
    (
        "torn",
        |path| fs::write(path, "tollgate-baseline/1 sha256=0123\n{").expect("a file"),
        "it was cut short",
    ),
    ("later", |path| fs::write(path, "tollgate-baseline/9 x\n").expect("a file"), "it is of version"),
    (
        "huge",
        |path| File::create(path).expect("a file").set_len(1 << 40).expect("sparse"),
        "has 1099511627776 bytes",
    ),
    ("folder", |path| fs::create_dir(path).expect("a folder"), "no plain file"),
    ("pipe", make_pipe, "no plain file"),
    ("link", |path| symlink("/nowhere", path).expect("a link"), "it is a symbolic link"),
    ("unreadable", |path| drop(UnixListener::bind(path).expect("a socket")), "it cannot be read"),
];
/// Nobody can make use of these.
const SET_ASIDE: [&str; 2] = ["torn", "huge"];

fn make_pipe(path: &Path) {
    let path = CString::new(path.as_os_str().as_bytes()).expect("no NUL");
    // SAFETY: a NUL-terminated path.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
}

/// A program that nobody knows, and the place of its baseline.
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
fn what_is_no_baseline_keeps_the_daemon_from_nothing() {
    let (it, group) = (Guarded::normal(&["routine 100 0"]), ControlGroup::new());
    let strangers: Vec<_> = WRONG.iter().map(|(name, _, _)| stranger(&it, name)).collect();
    let make_all = || {
        for ((_, make, _), (_, place)) in WRONG.iter().zip(&strangers) {
            if place.symlink_metadata().is_err() {
                make(place);
            }
        }
    };
    make_all();
    let daemon = Daemon::start(&it, &group, "--guard=enforce --respond stop");
    let is_told = |name: &str, words: &str, times: usize| {
        let (_, place) = &strangers[WRONG.iter().position(|(wrong, _, _)| *wrong == name).expect("listed")];
        let said = daemon.running.read("err");
        said.lines().filter(|line| line.contains(&*place.to_string_lossy()) && line.contains(words)).count()
            >= times
    };
    for (name, _, words) in WRONG {
        assert!(is_told(name, words, 1), "{name}: {}", daemon.running.read("err"));
    }
    // It holds somebody all the while.
    let mut held = Servant::start(&it, &group);
    eventually("the hold", || {
        if held.unanswered() == 0 {
            held.tell(b"x");
        }
        held.is_stopped()
    });
    make_all();
    for ((name, _, words), (program, place)) in WRONG.iter().zip(&strangers) {
        let mut stranger = Servant::of(program, &group, 0);
        eventually("it is guarded", || {
            stranger.serve(b"u");
            daemon.program_called(name).is_some()
        });
        eventually("it is told", || is_told(name, words, 2));
        stranger.serve(b"xuxu");
        let aside = place.with_added_extension("damaged");
        assert_eq!(aside.symlink_metadata().is_ok(), SET_ASIDE.contains(name), "{name}");
    }
    assert!(held.is_stopped());
    daemon.ask("off --daemon");
    eventually("it runs again", || held.unanswered() == 0);
}

/// What the store has is what both began with, and counts once.
#[test]
fn runs_at_the_same_time_add_what_each_of_them_saw() {
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

/// As the daemon knows it now.
#[track_caller]
fn shown(daemon: &Daemon, it: &Guarded, what: &str) -> u64 {
    let shown = daemon.ask(&format!("show --json {}", it.program.display())).json();
    shown[what].as_u64().expect("a number")
}

/// Normal in the daemon's hands is what the servant does for this.
#[track_caller]
fn normalize(daemon: &Daemon, servant: &mut Servant, usual: &[u8]) {
    let calls = || daemon.program().map_or(0, |program| program["calls"].as_u64().expect("a number"));
    let before = calls();
    eventually("it is learned", || {
        (0..12).for_each(|_| servant.serve(usual));
        calls() > before + 2000
    });
    daemon.ask("normalize guarded");
}

#[test]
fn a_daemon_that_learns_leaves_the_baselines_of_programs_that_it_does_not_meet() {
    let (it, group) = (Guarded::normal(&["routine 100 0"]), ControlGroup::new());
    let before = it.stored();
    let daemon = Daemon::start(&it, &group, "--guard=learn");
    daemon.ask("show");
    daemon.running.signal(libc::SIGTERM);
    daemon.running.finish().success();
    assert_eq!(it.stored(), before);
}

#[test]
fn what_a_daemon_could_not_use_it_learns_anew_when_it_is_reset() {
    let (it, group) = (Guarded::new(), ControlGroup::new());
    it.run("--guard=learn --lookahead 6", "routine 100 0");
    let daemon = Daemon::start(&it, &group, "--guard=watch");
    let mut servant = Servant::start(&it, &group);
    let calls = || daemon.program().and_then(|program| program["calls"].as_u64());
    eventually("it is met", || {
        servant.serve(b"uuuu");
        calls() > Some(0)
    });
    daemon.ask("reset guarded");
    (0..12).for_each(|_| servant.serve(b"uuuu"));
    assert!(shown(&daemon, &it, "windows") > 0);
}

/// Whom the daemon holds is to be let go in time.
#[test]
fn a_daemon_does_not_wait_without_end_for_a_store_that_somebody_keeps_locked() {
    let (it, group) = (Guarded::normal(&["routine 100 0"]), ControlGroup::new());
    let daemon = Daemon::start(&it, &group, "--guard=watch");
    let lock = File::open(daemon.store.join(".lock")).expect("a lock");
    lock.lock().expect("locked");
    daemon.ask_job("show").finish().exits_with(125).says("is locked by another process");
    daemon.ask("status");
    drop(lock);
    daemon.ask("show");
}

#[test]
fn a_daemon_goes_by_what_is_imported_at_once() {
    let (it, group) = (Guarded::new(), ControlGroup::new());
    let daemon = Daemon::start(&it, &group, "--guard=watch --anomaly-limit 1000");
    let mut servant = Servant::start(&it, &group);
    normalize(&daemon, &mut servant, b"uuux");
    let export = it.folder.path().join("export");
    daemon.ask(&format!("export guarded --output {}", export.display()));
    daemon.ask("reset guarded");
    normalize(&daemon, &mut servant, b"uuuu");
    let anomalies = || daemon.program().expect("it is known")["anomalies"].as_u64().expect("a number");
    let before = anomalies();
    (0..12).for_each(|_| servant.serve(b"uuux"));
    eventually("the daemon has counted them", || anomalies() >= before + 12);
    let mut import = daemon.ask_job("import -");
    import.command.stdin(File::open(&export).expect("just written"));
    import.finish().success();
    let before = anomalies();
    (0..12).for_each(|_| servant.serve(b"uuux"));
    // The daemon would have counted them by then.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(anomalies(), before);
}

#[test]
fn what_a_run_has_stored_a_daemon_knows_when_it_has_stored_its_own() {
    let (it, group) = (Guarded::new(), ControlGroup::new());
    let daemon = Daemon::start(&it, &group, "--guard=watch");
    let mut servant = Servant::start(&it, &group);
    normalize(&daemon, &mut servant, b"uuuu");
    let windows = shown(&daemon, &it, "windows");
    it.run("--guard=learn", "routine 100 20");
    servant.serve(b"u");
    let more = shown(&daemon, &it, "windows");
    assert!(more > windows, "{more} {windows}");
    servant.serve(b"u");
    assert!(shown(&daemon, &it, "windows") >= more);
    // What the run learned has yet to become normal.
    assert_eq!(daemon.program().expect("it is known")["state"], "training");
}
