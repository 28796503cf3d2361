//! Files whose content changes while inode, size and ctime stay.

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::Path;

use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use crate::harness::cgroup::TestCgroup;
use crate::harness::daemon::{CommandServer, GuardDaemon};
use crate::harness::guarded_program::Guarded;
use crate::harness::job::copy;
use crate::harness::{NOBODY, eventually, workloads};

/// Changes the last byte of a file through a shared mapping.
fn change_last_byte(path: &Path) {
    let file = File::options().read(true).write(true).open(path).expect("it is ours");
    let length = file.metadata().expect("it is open").len() as usize;
    // SAFETY: a mapping of its own, of the file's length, that is unmapped here.
    unsafe {
        let flags = libc::PROT_READ | libc::PROT_WRITE;
        let mapped =
            libc::mmap(std::ptr::null_mut(), length, flags, libc::MAP_SHARED, file.as_raw_fd(), 0);
        assert_ne!(mapped, libc::MAP_FAILED);
        let last = mapped.cast::<u8>().add(length - 1);
        // Only a page fault at a write changes the ctime, so the page is read first.
        // Otherwise, one instruction would do both.
        let byte = std::hint::black_box(last.read_volatile());
        last.write_volatile(byte ^ 1);
        assert_eq!(libc::munmap(mapped, length), 0);
    }
}

#[test]
fn program_on_tmpfs_is_identified_by_its_present_content() {
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    // POSIX shared memory is on tmpfs.
    let folder = TempDir::new_in("/dev/shm").expect("a folder");
    let program = folder.path().join("changing");
    copy(&workloads(), &program);
    chown(&program, Some(NOBODY), None).expect("it is ours");
    let daemon = GuardDaemon::start(&it, &cgroup, "--guard=watch");
    let has = |digest: &str| {
        let status = daemon.status();
        let mut programs = status["programs"].as_array().expect("programs").iter();
        programs.any(|program| program["digest"] == digest)
    };
    let before = fs::metadata(&program).expect("it is there");
    for _ in 0..2 {
        let digest = Sha256::digest(fs::read(&program).expect("it is there"));
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut server = CommandServer::of(&program, &cgroup, 0);
        eventually("its present content", || {
            server.send_and_wait(&[b'u'; 500]);
            has(&digest)
        });
        server.end();
        change_last_byte(&program);
    }
    let after = fs::metadata(&program).expect("it is there");
    let key = |file: &fs::Metadata| (file.ino(), file.size(), file.ctime(), file.ctime_nsec());
    assert_eq!(key(&before), key(&after), "nothing of this has changed");
}
