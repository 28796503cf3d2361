//! Requests on the daemon's control socket, malformed ones included, and connections to its
//! metrics.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::time::Duration;

use crate::harness::cgroup::TestCgroup;
use crate::harness::daemon::{CommandServer, GuardDaemon};
use crate::harness::guarded_program::Guarded;
use crate::harness::metrics::Metrics;
use crate::harness::{NOBODY, eventually};

/// Starts a daemon that holds a process.
fn holding(it: &Guarded, cgroup: &TestCgroup, options: &str) -> (GuardDaemon, CommandServer) {
    let daemon =
        GuardDaemon::start(it, cgroup, &format!("--guard=enforce --respond stop {options}"));
    let mut server = CommandServer::start(it, cgroup);
    eventually("the hold", || {
        if server.pending_replies() == 0 {
            server.send(b"x");
        }
        server.is_stopped()
    });
    (daemon, server)
}

fn connect(daemon: &GuardDaemon) -> UnixStream {
    let stream = UnixStream::connect(&daemon.socket).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a time");
    stream
}

/// Sends these bytes, closes the sending direction and returns the reply.
fn reply_to(daemon: &GuardDaemon, request: &[u8]) -> String {
    let mut stream = connect(daemon);
    // The daemon may reply before it has read everything.
    let _ = stream.write_all(request);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut reply = String::new();
    let _ = BufReader::new(stream).read_line(&mut reply);
    reply
}

#[test]
fn malformed_request_gets_a_sentence() {
    let (it, cgroup) = (Guarded::normal(&["routine 100 0"]), TestCgroup::new());
    let (daemon, server) = holding(&it, &cgroup, "");
    let huge =
        [b"{\"ask\":\"hold\",\"pid\":".to_vec(), vec![b'1'; 3 << 20], b"}\n".to_vec()].concat();
    let deep =
        [b"{\"ask\":\"release\",\"whom\":".to_vec(), vec![b'['; 500_000], b"\n".to_vec()].concat();
    let requests: [(&[u8], &str); 9] = [
        (b"", "does not understand"),
        (b"\n", "does not understand"),
        (b"\0\xff\xfe\x80\n", "this is not a request"),
        (b"{\"ask\":\"status\"", "does not understand"),
        (b"{\"ask\":\"release\",\"whom\":[\"x", "does not understand"),
        (b"{\"ask\":\"hold\",\"pid\":-1}\n", "does not understand"),
        (b"{\"ask\":\"hold\",\"pid\":0}\n", "process 0 is not guarded here"),
        (b"{\"ask\":\"verb\",\"verb\":\"normalize\",\"programs\":[\"\"]}\n", "name is empty"),
        (&deep, "does not understand"),
    ];
    for (request, words) in requests {
        let said = reply_to(&daemon, request);
        assert!(said.contains(words), "{words:?} is not in {said:?}");
    }
    // The daemon cuts this request off, so its reply may not reach a client that is still writing.
    reply_to(&daemon, &huge);
    // A client that sends half a request does not delay others.
    let mut half = connect(&daemon);
    half.write_all(b"{\"ask\":").expect("it reads");
    assert!(daemon.request("status").text().contains("held now: 1 process"));
    half.write_all(b"\"status\"}\n").expect("it reads");
    let mut line = String::new();
    BufReader::new(half).read_line(&mut line).expect("it replies");
    assert!(line.contains("\"held\""), "{line}");
    assert!(server.is_stopped());
}

#[test]
fn two_hundred_clients_and_silent_ones_are_served() {
    let (it, cgroup) = (Guarded::normal(&["routine 100 0"]), TestCgroup::new());
    let (daemon, mut server) = holding(&it, &cgroup, "--anomaly-limit 1000000");
    let status = || reply_to(&daemon, b"{\"ask\":\"status\"}\n");
    let silent: Vec<_> = (0..100).map(|_| connect(&daemon)).collect();
    let deaf: Vec<_> = (0..20).map(|_| connect(&daemon)).collect();
    std::thread::scope(|scope| {
        for _ in 0..200 {
            scope.spawn(|| assert!(status().contains("\"held\"")));
        }
        for mut stream in &deaf {
            stream.write_all(b"{\"ask\":\"events\",\"follow\":true}\n").expect("it reads");
        }
    });
    daemon.request("off --daemon");
    eventually("it runs again", || server.pending_replies() == 0);
    // More events than fit into the sockets of clients that do not read, but no more at once than
    // fit into the gate's ring.
    for done in 1..=5 {
        server.send_and_wait(&[b'x'; 1000]);
        eventually("the events", || daemon.events().len() >= 1000 * done);
    }
    let more: Vec<_> = (0..400).map(|_| connect(&daemon)).collect();
    assert!(status().contains("connections"));
    drop((silent, deaf, more));
    eventually("they are gone", || status().contains("\"held\""));
}

#[test]
fn closed_event_follower_leaves_nothing() {
    let (it, cgroup) = (Guarded::normal(&["routine 100 0"]), TestCgroup::new());
    let daemon = GuardDaemon::start(&it, &cgroup, "--guard=watch");
    daemon.request("status");
    let threads = || crate::harness::job::threads_of(daemon.running.pid()).len();
    // No event happens meanwhile. If another test loads a gate, the daemon opens further files, but
    // this does not happen in each round.
    let is_as_before = || {
        let before = (daemon.open_files(), threads());
        for _ in 0..20 {
            assert_eq!(read_reply_and_leave(&daemon), "{\"ok\":null}\n");
        }
        (0..50).any(|_| {
            std::thread::sleep(Duration::from_millis(100));
            daemon.open_files() <= before.0 && threads() <= before.1
        })
    };
    assert!(
        (0..5).any(|_| is_as_before()),
        "{} files and {} threads are left",
        daemon.open_files(),
        threads()
    );
}

#[test]
fn event_stream_ends_with_the_daemon() {
    let (it, cgroup) = (Guarded::normal(&["routine 100 0"]), TestCgroup::new());
    let daemon = GuardDaemon::start(&it, &cgroup, "--guard=watch --anomaly-limit 1000000");
    let mut server = CommandServer::start(&it, &cgroup);
    let followers = ["events --follow", "events --follow --json"]
        .map(|command| daemon.client_job(command).start());
    let [text, json] = &followers;
    eventually("an event", || {
        server.send_and_wait(b"x");
        text.read("out").contains("normal here: ") && json.read("out").contains("\"expected\":[\"")
    });
    daemon.running.signal(libc::SIGTERM);
    daemon.running.finish().success();
    for follower in followers {
        follower.finish().exits_with(125).says("the daemon has ended");
    }
}

fn read_reply_and_leave(daemon: &GuardDaemon) -> String {
    let mut stream = connect(daemon);
    stream.write_all(b"{\"ask\":\"events\",\"follow\":true}\n").expect("it reads");
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).expect("it replies");
    line
}

#[test]
fn non_root_client_is_refused_whatever_the_socket_mode() {
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let daemon = GuardDaemon::start(&it, &cgroup, "--guard=watch");
    let mode =
        |path: &std::path::Path| path.metadata().expect("it is there").permissions().mode() & 0o777;
    assert_eq!(mode(&daemon.socket), 0o600);
    std::fs::set_permissions(&daemon.socket, std::fs::Permissions::from_mode(0o666))
        .expect("it is ours");
    for command in ["status", "off", "events", "release"] {
        let mut job = daemon.client_job(command);
        job.command.uid(NOBODY).gid(NOBODY);
        job.finish().exits_with(125).says("only root may");
    }
    daemon.request("status");
}

#[test]
fn exhausting_metrics_connections_takes_no_daemon_descriptors() {
    let (it, cgroup) = (Guarded::normal(&["routine 100 0"]), TestCgroup::new());
    let (daemon, mut server) = holding(&it, &cgroup, "--metrics 127.0.0.1:0");
    let metrics = Metrics::of(&daemon.running);
    daemon.limit_open_files(30);
    // Each connection sends half a request; some are not accepted yet.
    let half: Vec<_> = (0..100)
        .map(|_| {
            let mut stream = metrics.connect();
            stream.write_all(b"GET /met").expect("it reads");
            stream
        })
        .collect();
    assert!(daemon.request("status").text().contains("held now: 1 process"));
    drop(half);
    let held = |series: &str| series == "tollgate_guard_held_processes";
    eventually("a reply", || metrics.value(held) == Some(1.0));
    daemon.request("off --daemon");
    eventually("it runs again", || server.pending_replies() == 0);
}

#[test]
fn occupied_metrics_port_is_reported_before_guarding() {
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("it has one");
    let job = GuardDaemon::job_in(&it, &cgroup, &format!("--guard=watch --metrics {address}"));
    let words = format!("cannot listen at {address}: Address already in use");
    assert!(!job.finish().exits_with(125).says(&words).err.contains("guarding"));
}
