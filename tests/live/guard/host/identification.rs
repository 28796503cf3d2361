//! How programs are identified while other users try to prevent it.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Stdio;

use crate::harness::cgroup::TestCgroup;
use crate::harness::daemon::{CommandServer, GuardDaemon};
use crate::harness::guarded_program::Guarded;
use crate::harness::job::{comm, copy, is_in_read};
use crate::harness::{Job, NOBODY, Running, eventually, words};

/// Starts a script of a user, which first reads a line, and moves it to the cgroup.
fn waiting_script(user: u32, script: &str, arguments: &[&Path], cgroup: &TestCgroup) -> Running {
    let mut command = words("sh -c");
    command.push(script.into());
    command.extend(arguments.iter().map(|path| path.into()));
    let mut job = Job::of(command).in_own_session();
    job.command.uid(user).gid(user).stdin(Stdio::piped());
    let shell = job.start();
    eventually("its read", || is_in_read(shell.pid()));
    cgroup.add(shell.pid());
    shell
}

#[test]
fn long_files_of_others_do_not_delay_a_program() {
    /// More than the guard keeps open.
    const FILES: usize = 20;
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let daemon = GuardDaemon::start(&it, &cgroup, "--guard=watch");
    let mut started: Vec<_> = (0..FILES)
        .map(|number| {
            let path = it.changed_copy(&format!("sparse{number}"));
            let file = File::options().write(true).open(&path).expect("it is ours");
            file.set_len(1 << 30).expect("room for a sparse file");
            drop(file);
            CommandServer::as_user(NOBODY, &path, &cgroup, 0)
        })
        .collect();
    let long = it.changed_copy("long");
    File::options()
        .write(true)
        .open(&long)
        .and_then(|file| file.set_len(20 << 20))
        .expect("room for a sparse file");
    let mut server = CommandServer::of(&long, &cgroup, 0);
    let row = |name: &str| daemon.program_named(name);
    eventually("its digest", || {
        server.send_and_wait(b"u");
        row("long").is_some_and(|row| row["digest"].is_string())
    });
    let last = started.last_mut().expect("there are some");
    let mut row_of_last = None;
    eventually("its row", || {
        last.send_and_wait(b"u");
        row_of_last = row(&format!("sparse{}", FILES - 1));
        row_of_last.is_some()
    });
    assert_eq!(row_of_last.expect("it is there")["not_identified"], "not hashed yet");
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
    eventually("its row", || {
        server.send_and_wait(b"u");
        daemon.program().is_some_and(|row| row["not_identified"] == "longer than 1 GiB")
    });
    assert_eq!(daemon.status()["losses"]["programs not identified (file not hashed)"], 1);
    assert!(daemon.request("status").text().contains("not identified (longer than 1 GiB)"));
    server.end();
}

/// The lease of this process (/proc/locks) that another one wants to end.
fn lease_is_ending(pid: u32) -> bool {
    let locks = fs::read_to_string("/proc/locks").expect("it can be read");
    locks.lines().any(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        words.contains(&"BREAKING") && words.contains(&pid.to_string().as_str())
    })
}

#[test]
fn leased_file_delays_neither_the_daemon_nor_other_programs() {
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let leased = it.changed_copy("leased");
    chown(&leased, Some(NOBODY), Some(NOBODY)).expect("we are root");
    // A file that is being executed cannot be leased. So the program ends before the daemon, which
    // is stopped meanwhile, opens its file.
    let script = "read line; printf u | \"$0\" command-server; exec \"$1\" lease \"$0\"";
    let lessee = it.changed_copy("lessee");
    let mut shell = waiting_script(NOBODY, script, &[&leased, &lessee], &cgroup);
    let daemon = GuardDaemon::start(&it, &cgroup, "--guard=watch");
    daemon.running.signal(libc::SIGSTOP);
    shell.input().write_all(b"\n").expect("it reads");
    eventually("the lease", || shell.read("out").ends_with("leased\n"));
    daemon.running.signal(libc::SIGCONT);
    eventually("the daemon opens the file", || lease_is_ending(shell.pid()));
    let mut other = CommandServer::start(&it, &cgroup);
    eventually("the digest of the other program", || {
        other.send_and_wait(b"u");
        daemon.program().is_some_and(|row| row["digest"].is_string())
    });
    let row = || daemon.program_named("leased").expect("it was guarded");
    assert_eq!(row()["not_identified"], "not hashed yet");
    assert!(lease_is_ending(shell.pid()), "the lease has ended before");
    drop(shell.stdin());
    shell.finish().success();
    eventually("its digest", || row()["digest"].is_string());
    other.end();
}

#[test]
fn other_programs_leave_the_profiles_to_the_selected_one() {
    /// More than are ready, and than are made while the daemon is stopped.
    const OTHERS: usize = 80;
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    for number in 0..OTHERS {
        copy(&it.program, &it.folder.path().join(format!("other{number}")));
    }
    // A process that enters the cgroup is guarded when the daemon has seen it. So the programs are
    // started by one that is there before the daemon.
    let script = "read line
        for other in \"$0\"/other*; do printf u | \"$other\" command-server; done
        exec \"$1\" command-server";
    let mut shell = waiting_script(0, script, &[it.folder.path(), &it.program], &cgroup);
    let options = format!("--guard=watch --exe {}", it.program.display());
    let daemon = GuardDaemon::start(&it, &cgroup, &options);

    daemon.running.signal(libc::SIGSTOP);
    shell.input().write_all(b"\n").expect("it reads");
    eventually("the selected program", || comm(shell.pid()).as_deref() == Some("guarded"));
    shell.input().write_all(&[b'u'; 2000]).expect("it reads");
    eventually("its replies", || shell.read("out").len() >= OTHERS + 2000);
    daemon.running.signal(libc::SIGCONT);
    drop(shell.stdin());
    shell.finish().success();
    let calls = || daemon.program().and_then(|row| row["calls"].as_u64());
    eventually("its calls", || calls().is_some_and(|calls| calls >= 2000));
    let status = daemon.status();
    assert_eq!(status["programs"].as_array().map(Vec::len), Some(1), "{status}");
    assert_eq!((&status["unidentified"], &status["losses"]), (&0.into(), &serde_json::json!({})));
}

/// The profiles of a gate are shared by all of its sessions.
mod alone {
    use super::*;

    #[test]
    fn user_with_many_programs_leaves_profiles_to_others() {
        /// More than the profiles of a user, even if some programs start before one is ready.
        const PROGRAMS: usize = 400;
        const LOSS: &str = "programs without a profile (too many of their user)";
        let (it, cgroup) = (Guarded::new(), TestCgroup::new());
        let content = fs::read("/bin/cat").expect("it is installed");
        let changed = it.folder.path().join("changed");
        for number in 0..PROGRAMS {
            fs::write(&changed, [&content[..], number.to_string().as_bytes()].concat())
                .expect("it is ours");
            copy(&changed, &it.folder.path().join(format!("own{number}")));
        }
        // All programs run until the pipe is closed. Profiles are made several times a second.
        let script = "exec 3<&0
            read line
            for own in \"$0\"/own*; do
                \"$own\" <&3 &
                case $own in *[05]) sleep 0.1 ;; esac
            done
            wait";
        let mut shell = waiting_script(NOBODY, script, &[it.folder.path()], &cgroup);
        let daemon = GuardDaemon::start(&it, &cgroup, "--guard=watch");
        shell.input().write_all(b"\n").expect("it reads");
        eventually("too many programs", || daemon.status()["losses"][LOSS].is_u64());
        let mut server = CommandServer::start(&it, &cgroup);
        eventually("its calls", || {
            server.send_and_wait(b"u");
            daemon.program().is_some_and(|row| row["calls"].as_u64() > Some(0))
        });
        server.end();
        drop(shell.stdin());
        shell.finish().success();
    }
}
