//! The daemon as it is operated: by systemd, with the journal and units, and by operators at
//! terminals.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

use crate::harness::cgroup::TestCgroup;
use crate::harness::daemon::{CommandServer, GuardDaemon};
use crate::harness::guarded_program::Guarded;
use crate::harness::job::{Running, copy, state};
use crate::harness::pty::Terminal;
use crate::harness::{Job, LIMIT, eventually, tollgate, words, workloads};

const STOPS: &str = "--guard=enforce --respond stop --anomaly-limit 1000";

/// A socket that stands in for one of systemd.
fn listen(path: &Path) -> UnixDatagram {
    let socket = UnixDatagram::bind(path).expect("a socket");
    socket.set_read_timeout(Some(LIMIT)).expect("a time");
    socket
}

fn receive(socket: &UnixDatagram) -> String {
    let mut bytes = [0; 1 << 16];
    let length = socket.recv(&mut bytes).expect("a message");
    String::from_utf8_lossy(&bytes[..length]).into_owned()
}

/// Runs the job in a mount namespace of its own, in which a shell first runs this script.
fn in_namespace(job: Job, script: &str, folders: &[&Path]) -> Job {
    let exec = format!("{script}; exec \"$@\"");
    let mut wrapped =
        Job::of(vec!["unshare".into(), "--mount".into(), "sh".into(), "-ec".into(), exec.into()]);
    wrapped.command.arg("sh").args(folders);
    wrapped.command.arg(job.command.get_program()).args(job.command.get_args());
    for (name, value) in job.command.get_envs().filter_map(|(name, value)| Some((name, value?))) {
        wrapped.command.env(name, value);
    }
    wrapped
}

/// Lets the server make anomalous calls until one is reported: the first may come before the daemon
/// guards it.
#[track_caller]
fn does_something_anomalous(daemon: &GuardDaemon, server: &mut CommandServer) {
    eventually("an event", || {
        if server.pending_replies() == 0 {
            server.send(b"x");
        }
        !daemon.events().is_empty()
    });
}

#[test]
fn sd_notify_ready_and_stopping() {
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let path = it.folder.path().join("notify");
    let notified = listen(&path);
    let mut job = GuardDaemon::job_in(&it, &cgroup, "--guard=watch");
    job.command.env("NOTIFY_SOCKET", &path);
    let daemon = GuardDaemon::of(job.start(), &it);
    assert_eq!(receive(&notified).trim(), "READY=1");
    daemon.request("status");
    daemon.running.signal(libc::SIGTERM);
    assert_eq!(receive(&notified).trim(), "STOPPING=1");
    daemon.running.finish().success();
}

#[test]
fn watchdog_of_systemd_is_notified() {
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let path = it.folder.path().join("notify");
    let notified = listen(&path);
    let mut job = GuardDaemon::job_in(&it, &cgroup, "--guard=watch");
    job.command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "400000");
    let daemon = GuardDaemon::of(job.start(), &it);
    for expected in ["READY=1", "WATCHDOG=1", "WATCHDOG=1"] {
        assert_eq!(receive(&notified).trim(), expected);
    }
    daemon.running.signal(libc::SIGTERM);
    daemon.running.finish().success();
}

#[test]
fn events_go_to_the_journal() {
    let (it, cgroup) = (Guarded::normal(&["routine 100 0"]), TestCgroup::new());
    let run = it.folder.path().join("run");
    fs::create_dir_all(run.join("systemd/journal")).expect("a folder");
    let journal = listen(&run.join("systemd/journal/socket"));
    // The namespace shares the gate's locks with the rest of the machine.
    let connected = "for lock in tollgate.lock tollgate-plugins.lock; do \
                         touch /run/$lock \"$1/$lock\"; mount --bind /run/$lock \"$1/$lock\"; \
                     done; \
                     mount --rbind \"$1\" /run; shift; \
                     export JOURNAL_STREAM=$(stat -Lc %d:%i /proc/self/fd/2)";
    let job = in_namespace(GuardDaemon::job_in(&it, &cgroup, "--guard=watch"), connected, &[&run]);
    let daemon = GuardDaemon::start_ready(job, &it);
    let mut server = CommandServer::start(&it, &cgroup);
    does_something_anomalous(&daemon, &mut server);
    let message = receive(&journal);
    for part in
        ["MESSAGE", "PRIORITY", "TOLLGATE_PROGRAM", "/guarded", "TOLLGATE_CALL", "TOLLGATE_LFC"]
    {
        assert!(message.contains(part), "{part} is not in {message:?}");
    }
    let said = daemon.running.read("err");
    assert!(!said.contains("LFC"), "{said}");
}

#[test]
fn unit_is_guarded_with_later_processes() {
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let unit = format!("tollgate-live-{}.service", std::process::id());
    let (inside, outside) = (cgroup.inner(&unit), cgroup.inner("other"));
    let daemon = GuardDaemon::start_ready(
        GuardDaemon::job(&it, &format!("--guard=watch --unit {unit}")),
        &it,
    );
    assert!(daemon.running.read("err").contains(&format!("no process is in {unit} yet")));
    let mut stranger = CommandServer::of(&it.changed_copy("stranger"), &outside, 0);
    let mut server = CommandServer::start(&it, &inside);
    eventually("it is guarded", || {
        server.send_and_wait(&[b'u'; 500]);
        stranger.send_and_wait(&[b'u'; 500]);
        daemon.program().is_some()
    });
    // The daemon refreshes its list of processes twice a second.
    std::thread::sleep(Duration::from_secs(1));
    stranger.send_and_wait(&[b'u'; 500]);
    assert_eq!(daemon.program_named("stranger"), None);
}

#[test]
fn anomalies_beyond_max_held_are_logged() {
    let (it, cgroup) = (Guarded::normal(&["routine 100 0"]), TestCgroup::new());
    let daemon =
        GuardDaemon::start(&it, &cgroup, &format!("{STOPS} --max-held 1 --metrics 127.0.0.1:0"));
    let mut first = CommandServer::start(&it, &cgroup);
    does_something_anomalous(&daemon, &mut first);
    eventually("the hold", || first.is_stopped());
    let mut second = CommandServer::start(&it, &cgroup);
    let unheld =
        || daemon.program().map_or(0, |program| program["unheld"].as_u64().expect("a number"));
    eventually("one that is not held", || {
        // This tests the limit, and not how simultaneous holds are counted.
        std::thread::sleep(Duration::from_millis(150));
        if second.pending_replies() == 0 {
            second.send(b"x");
        }
        unheld() > 0
    });
    let said = daemon.running.read("err");
    assert!(said.contains("the maximum of --max-held"), "{said}");
    assert!(
        daemon
            .request("status")
            .text()
            .contains("not held, because --max-held processes were held already")
    );
}

#[test]
fn top_is_live_until_q() {
    let (it, cgroup) = (Guarded::normal(&["routine 100 0"]), TestCgroup::new());
    let daemon = GuardDaemon::start(&it, &cgroup, "--guard=watch");
    let mut server = CommandServer::start(&it, &cgroup);
    let mut terminal = Terminal::new();
    let mut job = daemon.client_job("top").on(&terminal);
    job.command.env("TERM", "xterm");
    let top = job.start();
    terminal.shows("the table", |screen| {
        screen.contains("tollgate guard (watch)") && screen.contains("quit")
    });
    does_something_anomalous(&daemon, &mut server);
    terminal.shows("the event", |screen| screen.contains("after"));
    terminal.press(b"q");
    // The sequence that leaves the alternate screen.
    assert!(terminal.read_until("\x1b[?1049l").contains("\x1b[?1049l"));
    top.finish().success();
}

#[test]
fn sshd_and_journald_are_exempt() {
    // Both folders exist without systemd as well: apt has units in the latter.
    for (folder, name) in [("/usr/sbin", "sshd"), ("/usr/lib/systemd", "systemd-journald")] {
        let (it, cgroup) = (Guarded::named(name), TestCgroup::new());
        // A folder without other programs, so that the daemon finds this one by its name.
        let own_folder = it.folder.path().join("own");
        fs::create_dir(&own_folder).expect("a folder");
        let program = own_folder.join(name);
        copy(&workloads(), &program);
        let script = format!("mount --bind \"$1\" {folder}; shift");
        let job = in_namespace(GuardDaemon::job_in(&it, &cgroup, STOPS), &script, &[&own_folder]);
        let daemon = GuardDaemon::start_ready(job, &it);
        let mut server = CommandServer::of(&program, &cgroup, 0);
        eventually("it is guarded", || {
            server.send_and_wait(&[b'u'; 500]);
            daemon.program_named(name).is_some()
        });
        daemon.request(&format!("normalize {name}"));
        server.send_and_wait(b"xxxx");
        eventually("its events", || !daemon.events().is_empty());
        assert!(daemon.events().iter().all(|event| event["restraint"] == "never held"));
        assert!(!server.is_stopped());
    }
}

/// Runs a shell at a terminal: it sends the daemon a request, waits until the daemon has refreshed,
/// and executes a program that may be held.
fn at_a_terminal(
    it: &Guarded,
    daemon: &GuardDaemon,
    cgroup: &TestCgroup,
    terminal: &Terminal,
    commands: &str,
) -> Running {
    let (cgroup, program) = (cgroup.0.display(), it.program.display());
    let script = format!(
        "echo $$ >{cgroup}/cgroup.procs; {commands}; sleep 2; exec {program} routine 100 20"
    );
    let mut job = Job::of(words("sh -ec")).on(terminal);
    job.command.arg(script).env("TOLLGATE_SOCKET", &daemon.socket);
    job.start()
}

#[test]
fn operator_session_is_exempt() {
    let (it, cgroup) = (Guarded::normal(&["routine 100 0"]), TestCgroup::new());
    let daemon =
        GuardDaemon::start_ready(GuardDaemon::job_in(&it, &cgroup, STOPS).in_own_session(), &it);
    let status = format!("{} guard status", tollgate().display());
    let restraints =
        || daemon.events().iter().map(|event| event["restraint"].clone()).collect::<Vec<_>>();
    let (office, home) = (Terminal::new(), Terminal::new());
    eventually("its events", || {
        at_a_terminal(&it, &daemon, &cgroup, &office, &status).finish().success();
        !restraints().is_empty()
    });
    assert!(restraints().iter().all(|why| why == "never held"), "{:?}", restraints());
    // The first terminal's session has ended; this one has sent no request.
    eventually("a hold", || {
        let stranger = at_a_terminal(&it, &daemon, &cgroup, &home, "true");
        eventually("a hold, or its end", || {
            state(stranger.pid()) == Some('T') || stranger.is_over()
        });
        !stranger.is_over()
    });
}
