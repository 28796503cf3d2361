//! How programs are identified while other users try to prevent it.

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::harness::cgroup::TestCgroup;
use crate::harness::daemon::{CommandServer, GuardDaemon};
use crate::harness::eventually;
use crate::harness::guarded_program::Guarded;
use crate::harness::job::copy;

/// A write lease of a file that nobody else has open.
fn lease(path: &Path) -> File {
    /// include/uapi/asm-generic/fcntl.h
    const F_SETSIG: libc::c_int = 10;
    let file = File::options().read(true).write(true).open(path).expect("it is ours");
    // SAFETY: plain calls on an open descriptor. SIGURG is ignored by default.
    let is_leased = unsafe {
        libc::fcntl(file.as_raw_fd(), F_SETSIG, libc::SIGURG) == 0
            && libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) == 0
    };
    assert!(is_leased, "{}", std::io::Error::last_os_error());
    file
}

/// Whether the kernel waits for the end of a lease of the file.
fn is_lease_breaking(file: &File) -> bool {
    let inode = file.metadata().expect("it is open").ino();
    let locks = fs::read_to_string("/proc/locks").expect("/proc");
    let mut leases = locks.lines().filter(|line| line.contains(" LEASE "));
    leases.any(|line| line.contains("BREAKING") && line.contains(&format!(":{inode} ")))
}

#[test]
fn a_lease_does_not_stop_the_guard() {
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let leased = it.folder.path().join("leased");
    copy(&it.program, &leased);
    let daemon = GuardDaemon::start(&it, &cgroup, "--guard=watch");
    // Stopped, the daemon opens the file only when the program has ended.
    daemon.running.signal(libc::SIGSTOP);
    let mut server = CommandServer::of(&leased, &cgroup, 0);
    server.send_and_wait(&[b'u'; 500]);
    server.end();
    let lease = lease(&leased);
    daemon.running.signal(libc::SIGCONT);
    let row = || daemon.program_named("leased");
    eventually("its row", || row().is_some_and(|row| row["not_identified"] == "not hashed yet"));
    eventually("its open", || is_lease_breaking(&lease));
    // Otherwise, the daemon would reply only at the end of the lease.
    assert!(row().is_some() && is_lease_breaking(&lease));
    drop(lease);
    eventually("its digest", || row().is_some_and(|row| row["digest"].is_string()));
}

#[test]
fn long_files_of_others_do_not_delay_a_program() {
    /// More than the guard keeps open.
    const FILES: usize = 20;
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let daemon = GuardDaemon::start(&it, &cgroup, "--guard=watch");
    let started: Vec<_> = (0..FILES)
        .map(|number| {
            let path = it.changed_copy(&format!("sparse{number}"));
            let file = File::options().write(true).open(&path).expect("it is ours");
            file.set_len(1 << 30).expect("room for a sparse file");
            drop(file);
            CommandServer::as_user(crate::harness::NOBODY, &path, &cgroup, 0)
        })
        .collect();
    let long = it.changed_copy("long");
    File::options()
        .write(true)
        .open(&long)
        .and_then(|file| file.set_len(20 << 20))
        .expect("room for a sparse file");
    let mut server = CommandServer::of(&long, &cgroup, 0);
    server.send_and_wait(&[b'u'; 500]);
    let row = |name: &str| daemon.program_named(name);
    eventually("its digest", || row("long").is_some_and(|row| row["digest"].is_string()));
    let last = row(&format!("sparse{}", FILES - 1)).expect("it has made calls");
    assert_eq!(last["not_identified"], "not hashed yet", "{last}");
    server.end();
    started.into_iter().for_each(|server| drop(server.end()));
}

#[test]
fn a_file_that_is_too_long_is_reported() {
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let daemon = GuardDaemon::start(&it, &cgroup, "--guard=watch");
    let file = File::options().write(true).open(&it.program).expect("it is ours");
    file.set_len((1 << 30) + 1).expect("room for a sparse file");
    drop(file);
    let mut server = CommandServer::start(&it, &cgroup);
    server.send_and_wait(&[b'u'; 500]);
    eventually("its row", || {
        daemon.program().is_some_and(|row| row["not_identified"] == "longer than 1 GiB")
    });
    assert_eq!(daemon.status()["losses"]["programs not identified (file not hashed)"], 1);
    assert!(daemon.request("status").text().contains("not identified (longer than 1 GiB)"));
    server.end();
}

#[test]
fn other_programs_leave_the_profiles_to_the_selected_one() {
    /// More than are ready, and than are made while the daemon is stopped.
    const OTHERS: usize = 80;
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let options = format!("--guard=watch --exe {}", it.program.display());
    let daemon = GuardDaemon::start(&it, &cgroup, &options);
    daemon.running.signal(libc::SIGSTOP);
    let others: Vec<_> = (0..OTHERS)
        .map(|number| {
            let path = it.folder.path().join(format!("other{number}"));
            copy(&it.program, &path);
            let server = CommandServer::of(&path, &cgroup, 0);
            fs::remove_file(path).expect("it is ours");
            server
        })
        .collect();
    let mut server = CommandServer::start(&it, &cgroup);
    server.send_and_wait(&[b'u'; 500]);
    daemon.running.signal(libc::SIGCONT);
    eventually("its calls", || daemon.program().is_some());
    others.into_iter().for_each(|server| drop(server.end()));
    server.end();
    let status = daemon.status();
    assert_eq!(status["programs"].as_array().map(Vec::len), Some(1), "{status}");
    assert_eq!((&status["unidentified"], &status["losses"]), (&0.into(), &serde_json::json!({})));
}
