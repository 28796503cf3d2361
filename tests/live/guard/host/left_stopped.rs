//! Processes that the guard has stopped and nobody holds, and processes that somebody else has
//! stopped. A hold of which only the stop is left is made by clearing its flag in the gate's table.

use std::path::PathBuf;

use kernel::mapped_array::MappedArray;
use kernel::wire;
use libbpf_rs::MapHandle;

use crate::harness::cgroup::TestCgroup;
use crate::harness::daemon::{CommandServer, GuardDaemon};
use crate::harness::eventually;
use crate::harness::guarded_program::Guarded;
use crate::harness::job::{is_running, kill, stop};

const STOPS: &str = "--guard=enforce --respond stop";

/// The pinned table of threads of the guard of this process.
fn threads(guard: u32) -> MappedArray<wire::thread_state> {
    let folders = std::fs::read_dir("/sys/fs/bpf").expect("it is mounted").flatten();
    let is_its = |path: &PathBuf| {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        name.starts_with(&format!("tollgate-{guard}-"))
    };
    let folder = folders.map(|entry| entry.path()).find(is_its).expect("it is pinned");
    let map = MapHandle::from_pinned_path(folder.join("threads")).expect("a map");
    MappedArray::new(&map, wire::THREADS).expect("it can be mapped")
}

/// Clears the flags of the holds of a stopped process.
fn forget_holds(threads: &MappedArray<wire::thread_state>, process: u32) {
    let mut found = 0;
    for slot in 1..wire::THREADS {
        let mut thread = threads.read(slot);
        if thread.task != 0 && thread.tgid == process && thread.guard.held != 0 {
            thread.guard.held = 0;
            // The gate does not write to the entry of a stopped thread.
            threads.write(slot, thread);
            found += 1;
        }
    }
    assert!(found > 0, "no thread of {process} is held");
}

fn started(it: &Guarded, cgroup: &TestCgroup) -> (GuardDaemon, CommandServer) {
    let daemon = GuardDaemon::start(it, cgroup, STOPS);
    let mut server = CommandServer::with_threads(it, cgroup, 2);
    eventually("it is guarded", || {
        server.send_and_wait(b"u");
        daemon.program().is_some()
    });
    (daemon, server)
}

#[track_caller]
fn hold(daemon: &GuardDaemon, server: &CommandServer) {
    daemon.request(&format!("hold {}", server.pid()));
    eventually("the hold", || server.is_stopped());
}

#[track_caller]
fn runs(server: &mut CommandServer) {
    eventually("it runs again", || !server.is_stopped());
    server.send_and_wait(b"uuu");
}

#[test]
fn guard_continues_a_process_that_nobody_holds() {
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let (daemon, mut server) = started(&it, &cgroup);
    let table = threads(daemon.running.pid());
    for _ in 0..3 {
        hold(&daemon, &server);
        forget_holds(&table, server.pid());
        runs(&mut server);
    }
    server.end();
}

#[test]
fn watchdog_continues_a_process_that_a_stopped_guard_forgets() {
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let (daemon, mut server) = started(&it, &cgroup);
    let table = threads(daemon.running.pid());
    hold(&daemon, &server);
    stop(daemon.running.pid());
    forget_holds(&table, server.pid());
    runs(&mut server);
    daemon.running.signal(libc::SIGCONT);
    server.end();
}

#[test]
fn guard_does_not_continue_a_process_that_another_has_stopped() {
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let (daemon, mut server) = started(&it, &cgroup);
    let table = threads(daemon.running.pid());
    // Before the hold, and during it.
    for is_first in [true, false] {
        if is_first {
            kill(server.pid() as i32, libc::SIGSTOP);
            eventually("the stop", || server.is_stopped());
        }
        hold(&daemon, &server);
        if !is_first {
            kill(server.pid() as i32, libc::SIGSTOP);
        }
        daemon.request("release");
        // More than the interval of the sweeps.
        std::thread::sleep(std::time::Duration::from_millis(600));
        assert!(server.is_stopped(), "first: {is_first}");
        kill(server.pid() as i32, libc::SIGCONT);
        runs(&mut server);
        // The mark of the stop is gone.
        hold(&daemon, &server);
        forget_holds(&table, server.pid());
        runs(&mut server);
    }
    // The server is alone in its session, so this signal stops it neither with the guard nor
    // without.
    hold(&daemon, &server);
    kill(server.pid() as i32, libc::SIGTSTP);
    daemon.request("release");
    runs(&mut server);
    server.end();
}

/// Any Tollgate command releases what killed guards have left.
mod alone {
    use super::*;

    /// Kills the guard's process and its watchdog, neither of which can act before its end.
    #[track_caller]
    fn kill_with_watchdog(daemon: &GuardDaemon) {
        let watchdog = daemon.running.child_running("tollgate-wdog");
        stop(daemon.running.pid());
        kill(watchdog as i32, libc::SIGKILL);
        eventually("the watchdog's end", || !is_running(watchdog));
        daemon.running.signal(libc::SIGKILL);
    }

    #[test]
    fn next_command_releases_after_both_were_killed() {
        let (it, cgroup) = (Guarded::new(), TestCgroup::new());
        for is_forgotten in [false, true] {
            let (daemon, mut server) = started(&it, &cgroup);
            let table = threads(daemon.running.pid());
            hold(&daemon, &server);
            kill_with_watchdog(&daemon);
            let show = daemon.client_job("show");
            daemon.running.finish().exits_with(137);
            if is_forgotten {
                forget_holds(&table, server.pid());
            }
            assert!(server.is_stopped());
            show.finish();
            runs(&mut server);
            server.end();
        }
    }

    /// A thread that ends while it is held leaves the flag in its slot, which is not in use then.
    #[test]
    fn ended_thread_does_not_prevent_a_release() {
        let (it, cgroup) = (Guarded::new(), TestCgroup::new());
        let (daemon, mut server) = started(&it, &cgroup);
        let table = threads(daemon.running.pid());
        let mut other = CommandServer::start(&it, &cgroup);
        let other_pid = other.pid();
        let slot_of = |process| (1..wire::THREADS).find(|slot| table.read(*slot).tgid == process);
        eventually("it is guarded", || {
            other.send_and_wait(b"u");
            slot_of(other_pid).is_some()
        });
        other.end();
        let slot = slot_of(other_pid).expect("its slot");
        eventually("its end", || table.read(slot).task == 0);
        hold(&daemon, &server);
        let mut thread = table.read(slot);
        thread.tgid = server.pid();
        thread.guard.held = 1;
        table.write(slot, thread);
        daemon.request("release");
        runs(&mut server);
        server.end();
    }

    /// The kernel may need seconds to end a guard's process, and nobody may have waited for it.
    #[test]
    fn off_finds_the_holds_of_a_guard_that_is_a_zombie() {
        let (it, cgroup) = (Guarded::new(), TestCgroup::new());
        let (daemon, mut server) = started(&it, &cgroup);
        hold(&daemon, &server);
        kill_with_watchdog(&daemon);
        // The test has not waited for it yet.
        let released = daemon.client_job("off --killed").finish().success().text();
        assert!(released.contains("released 1 process whose guard was killed"), "{released}");
        runs(&mut server);
        daemon.running.finish().exits_with(137);
        server.end();
    }
}
