//! The project's example plugins do what their comments say.

use std::fs;
use std::net::{SocketAddr, TcpListener, UdpSocket};

use serde_json::Value;

use crate::harness::guarded_program::{GuardSection, Guarded};
use crate::harness::job::folder;
use crate::harness::network::OwnNetwork;
use crate::harness::plugins::{PluginDaemon, entries, number, plugins};
use crate::harness::{Job, eventually, workload};

/// Runs a command with an example; returns the plugin's final state and its output.
#[track_caller]
fn run(text: &str, arguments: &str) -> (Value, String) {
    let folder = folder();
    let file = folder.path().join("example.ec");
    fs::write(&file, text).expect("a file can be written");
    let ran =
        Job::run(&format!("--plugin {}", file.display()), workload(arguments)).finish().success();
    (plugins(&ran)[0].clone(), ran.err)
}

#[test]
fn slow_open() {
    let text = include_str!("../../../examples/slow-open.ec");
    let dir = folder();
    // The workload opens a FIFO whose other end is opened 50 ms later.
    let (state, err) = run(
        &text.replace("limit_us = 1000", "limit_us = 40000"),
        &format!("slow-open {}", dir.path().display()),
    );
    let lines: Vec<_> = err.lines().filter(|line| line.contains(") opened ")).collect();
    assert_eq!(lines.len() as u64, number(&state, "slow"), "{err}");
    assert!(
        lines.iter().any(|line| line.contains(&format!(") opened {}", dir.path().display()))),
        "{err}"
    );
    let (state, err) = run(&text.replace("limit_us = 1000", "limit_us = 0"), "errors 3");
    let lines = err.lines().filter(|line| line.ends_with(") opened /nonexistent/workloads: -2"));
    assert_eq!(lines.count(), 3, "{err}");
    assert!(number(&state, "slow") >= 3, "{state}");
}

#[test]
fn reads() {
    let (state, _) = run(include_str!("../../../examples/reads.ec"), "faults 16");
    let reads = state["maps"].as_array().expect("maps").iter().find(|map| map["name"] == "reads");
    let mut of_zero: Vec<_> = reads.expect("it has the map")["shown"]
        .as_array()
        .expect("entries")
        .iter()
        .filter(|entry| entry["key"]["path"] == "/dev/zero")
        .map(|entry| (entry["key"]["up_to"].as_u64(), entry["value"].as_u64()))
        .collect();
    of_zero.sort_unstable();
    assert_eq!(of_zero, [(Some(1), Some(1)), (Some(16 * 4096), Some(1))], "{state}");
}

#[test]
fn argument_policy() {
    let text = include_str!("../../../examples/argument-policy.ec");
    let it = Guarded::new();
    let policy = it.folder.path().join("policy.ec");
    fs::write(&policy, text).expect("a file can be written");
    fs::write(it.folder.path().join("there"), "").expect("a file can be written");
    let run = |options: &str, side_effect: &str| {
        let command = format!(
            "side-effect {side_effect} {} 1 {}",
            it.folder.path().display(),
            std::process::id()
        );
        it.job(&format!("{options} --plugin {}", policy.display()), &command).finish()
    };
    for (name, call) in
        [("mprotect", None), ("mprotect-all", Some("mprotect")), ("chmod", Some("chmod"))]
    {
        let ran = run("--guard=watch", name).success();
        assert_eq!(GuardSection::of(&ran).denounced_calls(), Vec::from_iter(call), "{name}");
        let lines = ran
            .err
            .lines()
            .filter(|line| line.contains("anomalies among its last 128 calls"))
            .count();
        assert_eq!(lines, usize::from(call.is_some()), "{}", ran.err);
    }
    run("--guard=enforce --respond kill", "mprotect-all").exits_with(128 + libc::SIGKILL);
}

/// Runs the example for this process only, so that it does not affect others.
#[test]
fn connect_list() {
    let text = include_str!("../../../examples/connect-list.ec");
    let own = format!("on connect {{ if (pid() != {}) return 0;", std::process::id());
    let at_work = PluginDaemon::start_idle();
    at_work.load("list", &text.replace("on connect {", &own), "--machine-wide");
    // Uses UDP, because its connect sends nothing, to documentation networks (RFC 5737, RFC 3849).
    let is_refused = |address: &str| {
        let address: SocketAddr = address.parse().expect("an address");
        let from = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let connected = UdpSocket::bind(from).expect("a socket").connect(address);
        connected.is_err_and(|error| error.raw_os_error() == Some(libc::EACCES))
    };
    for refused in [
        "192.0.2.1:80",
        "192.0.2.1:5432",
        "10.1.2.3:80",
        "[2001:db8::1]:443",
        "[::ffff:192.0.2.1]:80",
    ] {
        assert!(is_refused(refused), "{refused}");
    }
    // Whether a route to them exists does not matter to the plugin.
    for free in [
        "127.0.0.1:80",
        "127.9.9.9:1",
        "10.1.2.3:5432",
        "192.0.2.1:53",
        "192.0.2.1:443",
        "[::1]:80",
        "[::ffff:192.0.2.1]:443",
    ] {
        assert!(!is_refused(free), "{free}");
    }
    let mut refused = entries(&at_work.show("list"), "refused");
    refused.sort_unstable();
    assert_eq!(refused, [(80, 3), (5432, 1)]);
}

#[test]
fn grey() {
    let at_work = PluginDaemon::start_idle();
    at_work.load("grey", include_str!("../../../examples/grey.ec"), "");
    let (image, grey) = (at_work.path("image.ppm"), at_work.path("grey.pgm"));
    let call = format!("call grey --input {} --output-data {}", image.display(), grey.display());
    fs::write(&image, b"P6 # three\n3 1\n255\n\xff\0\0\0\xff\0\x01\x02\x03").expect("a file");
    assert_eq!(at_work.request(&call).success().text(), "3\n");
    assert_eq!(fs::read(&grey).expect("a file"), b"P5\n3 1\n255\n\x4c\x95\x01");
    // Three times this number of pixels is 41,258, modulo 2^64.
    let many = "P6 4294853786 1431693603 255 ".to_owned() + &"x".repeat(42_000);
    for none in ["P5 1 1 255 x", "P6 2 1 255 abcde", "P6 1 1 255", &many] {
        fs::write(&image, none).expect("a file");
        assert_eq!(at_work.request(&call).success().text(), "-1\n", "{none}");
    }
}

#[test]
fn syns() {
    let _network = OwnNetwork::enter();
    let at_work = PluginDaemon::start_idle();
    at_work.load("syns", include_str!("../../../examples/syns.ec"), "--machine-wide");
    let of_this_machine = || {
        let all = entries(&at_work.show("syns"), "syns");
        all.iter().find(|(address, _)| *address == 0x7f00_0003).map_or(0, |(_, times)| *times)
    };
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    for _ in 0..5 {
        // Uses an address that no other test uses.
        let socket = socket_at([127, 0, 0, 3]);
        connect(socket, server.local_addr().unwrap().port());
    }
    eventually("all were seen", || of_this_machine() == 5);
}

fn address(ip: [u8; 4], port: u16) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(ip) },
        sin_zero: [0; 8],
    }
}

fn socket_at(ip: [u8; 4]) -> i32 {
    // SAFETY: a plain call, and an address that is there, with its size.
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0);
        let own = address(ip, 0);
        assert_eq!(libc::bind(socket, (&raw const own).cast(), size_of_val(&own) as u32), 0);
        socket
    }
}

fn connect(socket: i32, port: u16) {
    let to = address([127, 0, 0, 1], port);
    // SAFETY: as above; nothing else owns the socket.
    unsafe {
        assert_eq!(libc::connect(socket, (&raw const to).cast(), size_of_val(&to) as u32), 0);
        libc::close(socket);
    }
}
