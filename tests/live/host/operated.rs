//! The daemon on a machine as it is operated: by systemd, with a journal and units, and by people at terminals.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

use crate::harness::cgroup::ControlGroup;
use crate::harness::daemon::{Daemon, Servant};
use crate::harness::guarded::Guarded;
use crate::harness::job::{Running, copy, state};
use crate::harness::pty::Terminal;
use crate::harness::{Job, LIMIT, eventually, tollgate, words, workloads};

const STOPS: &str = "--guard=enforce --respond stop --anomaly-limit 1000";

/// A socket that systemd has in its place.
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

/// Before the daemon begins, a shell does this in a mount namespace of their own.
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

/// It did something unusual before it was guarded, or will.
#[track_caller]
fn does_something_unusual(daemon: &Daemon, servant: &mut Servant) {
    eventually("an event", || {
        if servant.unanswered() == 0 {
            servant.tell(b"x");
        }
        !daemon.events().is_empty()
    });
}

#[test]
fn systemd_is_told_when_it_guards_and_when_it_ends() {
    let (it, group) = (Guarded::new(), ControlGroup::new());
    let path = it.folder.path().join("notify");
    let notified = listen(&path);
    let mut job = Daemon::job_in(&it, &group, "--guard=watch");
    job.command.env("NOTIFY_SOCKET", &path);
    let daemon = Daemon::of(job.start(), &it);
    assert_eq!(receive(&notified).trim(), "READY=1");
    daemon.ask("status");
    daemon.running.signal(libc::SIGTERM);
    assert_eq!(receive(&notified).trim(), "STOPPING=1");
    daemon.running.finish().success();
}

#[test]
fn under_systemd_events_are_messages_in_the_journal() {
    let (it, group) = (Guarded::normal(&["routine 100 0"]), ControlGroup::new());
    let run = it.folder.path().join("run");
    fs::create_dir_all(run.join("systemd/journal")).expect("a folder");
    let journal = listen(&run.join("systemd/journal/socket"));
    // The gate's locks stay those of all others.
    let connected = "for lock in tollgate.lock tollgate-plugins.lock; do \
                         touch /run/$lock \"$1/$lock\"; mount --bind /run/$lock \"$1/$lock\"; \
                     done; \
                     mount --rbind \"$1\" /run; shift; \
                     export JOURNAL_STREAM=$(stat -Lc %d:%i /proc/self/fd/2)";
    let job = in_namespace(Daemon::job_in(&it, &group, "--guard=watch"), connected, &[&run]);
    let daemon = Daemon::at_work(job, &it);
    let mut servant = Servant::start(&it, &group);
    does_something_unusual(&daemon, &mut servant);
    let message = receive(&journal);
    for part in ["MESSAGE", "PRIORITY", "TOLLGATE_PROGRAM", "/guarded", "TOLLGATE_CALL", "TOLLGATE_LFC"] {
        assert!(message.contains(part), "{part} is not in {message:?}");
    }
    let said = daemon.running.read("err");
    assert!(!said.contains("LFC"), "{said}");
}

#[test]
fn a_unit_is_guarded_and_what_comes_into_it_later() {
    let (it, group) = (Guarded::new(), ControlGroup::new());
    let unit = format!("tollgate-live-{}.service", std::process::id());
    let (inside, outside) = (group.inner(&unit), group.inner("other"));
    let daemon = Daemon::at_work(Daemon::job(&it, &format!("--guard=watch --unit {unit}")), &it);
    assert!(daemon.running.read("err").contains(&format!("there is no process in {unit} yet")));
    let mut stranger = Servant::of(&it.changed("stranger"), &outside, 0);
    let mut servant = Servant::start(&it, &inside);
    eventually("it is guarded", || {
        servant.serve(&[b'u'; 500]);
        stranger.serve(&[b'u'; 500]);
        daemon.program().is_some()
    });
    // The daemon looks for new processes twice a second.
    std::thread::sleep(Duration::from_secs(1));
    stranger.serve(&[b'u'; 500]);
    assert_eq!(daemon.program_called("stranger"), None);
}

#[test]
fn whom_it_would_hold_beyond_the_most_it_tells_of_aloud() {
    let (it, group) = (Guarded::normal(&["routine 100 0"]), ControlGroup::new());
    let daemon = Daemon::start(&it, &group, &format!("{STOPS} --held-most 1 --metrics 127.0.0.1:0"));
    let mut first = Servant::start(&it, &group);
    does_something_unusual(&daemon, &mut first);
    eventually("the hold", || first.is_stopped());
    let mut second = Servant::start(&it, &group);
    let unheld = || daemon.program().map_or(0, |program| program["unheld"].as_u64().expect("a number"));
    eventually("one that is not held", || {
        // A test of the cap, not of how it counts those that begin at once.
        std::thread::sleep(Duration::from_millis(150));
        if second.unanswered() == 0 {
            second.tell(b"x");
        }
        unheld() > 0
    });
    let said = daemon.running.read("err");
    assert!(said.contains("as many as --held-most allows"), "{said}");
    assert!(daemon.ask("status").text().contains("not held, as so many processes were already"));
}

#[test]
fn top_shows_it_live_until_q_is_pressed() {
    let (it, group) = (Guarded::normal(&["routine 100 0"]), ControlGroup::new());
    let daemon = Daemon::start(&it, &group, "--guard=watch");
    let mut servant = Servant::start(&it, &group);
    let mut terminal = Terminal::new();
    let mut job = daemon.ask_job("top").on(&terminal);
    job.command.env("TERM", "xterm");
    let top = job.start();
    assert!(terminal.read_until("quit").contains("tollgate guard (watch)"));
    does_something_unusual(&daemon, &mut servant);
    assert!(terminal.read_until("after").contains("after"));
    terminal.press(b"q");
    // Back from the alternate screen.
    assert!(terminal.read_until("\x1b[?1049l").contains("\x1b[?1049l"));
    top.finish().success();
}

#[test]
fn the_ssh_server_and_the_journal_are_never_held() {
    // Both folders are there without systemd, too: apt has its units in the latter.
    for (folder, name) in [("/usr/sbin", "sshd"), ("/usr/lib/systemd", "systemd-journald")] {
        let (it, group) = (Guarded::named(name), ControlGroup::new());
        // One in which there is no other program, so that the daemon finds this one by its name.
        let place = it.folder.path().join("place");
        fs::create_dir(&place).expect("a folder");
        let program = place.join(name);
        copy(&workloads(), &program);
        let script = format!("mount --bind \"$1\" {folder}; shift");
        let job = in_namespace(Daemon::job_in(&it, &group, STOPS), &script, &[&place]);
        let daemon = Daemon::at_work(job, &it);
        let mut servant = Servant::of(&program, &group, 0);
        eventually("it is guarded", || {
            servant.serve(&[b'u'; 500]);
            daemon.program_called(name).is_some()
        });
        daemon.ask(&format!("normalize {name}"));
        servant.serve(b"xxxx");
        eventually("its events", || !daemon.events().is_empty());
        assert!(daemon.events().iter().all(|event| event["restraint"] == "never held"));
        assert!(!servant.is_stopped());
    }
}

/// Who has a terminal, asks the daemon, and goes on as a program that may be held, once the daemon has looked for it.
fn at_a_terminal(
    it: &Guarded,
    daemon: &Daemon,
    group: &ControlGroup,
    terminal: &Terminal,
    asks: &str,
) -> Running {
    let (group, program) = (group.0.display(), it.program.display());
    let script = format!("echo $$ >{group}/cgroup.procs; {asks}; sleep 2; exec {program} routine 100 20");
    let mut job = Job::of(words("sh -ec")).on(terminal);
    job.command.arg(script).env("TOLLGATE_SOCKET", &daemon.socket);
    job.start()
}

#[test]
fn an_operator_at_a_terminal_is_never_held_where_systemd_started_it() {
    let (it, group) = (Guarded::normal(&["routine 100 0"]), ControlGroup::new());
    let daemon = Daemon::at_work(Daemon::job_in(&it, &group, STOPS).in_own_session(), &it);
    let status = format!("{} guard status", tollgate().display());
    let restraints = || daemon.events().iter().map(|event| event["restraint"].clone()).collect::<Vec<_>>();
    let (office, home) = (Terminal::new(), Terminal::new());
    eventually("its events", || {
        at_a_terminal(&it, &daemon, &group, &office, &status).finish().success();
        !restraints().is_empty()
    });
    assert!(restraints().iter().all(|why| why == "never held"), "{:?}", restraints());
    // The first has gone; this one has not asked for anything.
    eventually("a hold", || {
        let stranger = at_a_terminal(&it, &daemon, &group, &home, "true");
        eventually("a hold, or its end", || state(stranger.pid()) == Some('T') || stranger.is_over());
        !stranger.is_over()
    });
}
