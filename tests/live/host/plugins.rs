//! Plugins at hooks that are the whole machine's; those here only look at what the test itself does.

use std::io::ErrorKind;
use std::net::{Ipv6Addr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;

use crate::harness::plugins::{AtWork, entries, number};
use crate::harness::{eventually, tollgate};

fn project() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

const NOTHING: &str = "on call {}";

#[test]
fn connections_are_refused_with_an_error() {
    let (server, other) = (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("[::]:0").unwrap());
    let (refused, free) = (server.local_addr().unwrap().port(), other.local_addr().unwrap().port());
    let at_work = AtWork::start("nothing", NOTHING);
    let text = format!(
        "u64 seen; u32 last; on connect {{ if (port == {refused}) {{ seen++; last = ip; return -13; }} if (port == {free} && family == 10 && ip6[3] == 1) return 1; }}"
    );
    at_work.load("refuses", &text, "");
    let error = TcpStream::connect(("127.0.0.1", refused)).expect_err("it is refused");
    assert_eq!(error.raw_os_error(), Some(libc::EACCES));
    TcpStream::connect(("127.0.0.1", free)).expect("nobody refuses it");
    let error = TcpStream::connect((Ipv6Addr::LOCALHOST, free)).expect_err("it is refused");
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    // What is mapped is an address of the fourth version.
    TcpStream::connect((Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0x7f00, 1), free)).expect("nobody refuses it");
    let error = TcpStream::connect((Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0x7f00, 1), refused));
    assert_eq!(error.expect_err("it is refused").raw_os_error(), Some(libc::EACCES));
    assert_eq!(
        [number(&at_work.show("refuses"), "seen"), number(&at_work.show("refuses"), "last")],
        [2, 0x7f00_0001]
    );
    // UDP needs no connection.
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let error = udp.send_to(b"x", ("127.0.0.1", refused)).expect_err("it is refused");
    assert_eq!(error.raw_os_error(), Some(libc::EACCES));
    udp.send_to(b"x", ("127.0.0.1", free)).expect("nobody refuses it");
    at_work.ask("unload refuses").success();
    TcpStream::connect(("127.0.0.1", refused)).expect("nobody refuses it any more");
}

#[test]
fn ports_and_sockets_are_refused() {
    let at_work = AtWork::start("nothing", NOTHING);
    // SAFETY: a plain query.
    let own = std::process::id();
    let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    at_work.load("binds", &format!("on bind {{ return port == {port} && pid() == {own} ? -98 : 0; }}"), "");
    let error = UdpSocket::bind(("127.0.0.1", port)).expect_err("it is refused");
    assert_eq!(error.raw_os_error(), Some(libc::EADDRINUSE));
    // SCTP, which nobody else makes.
    at_work.load("sockets", "on socket { return protocol == 132 ? -93 : 0; }", "");
    // SAFETY: a plain call.
    let made = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_SCTP) };
    assert_eq!((made, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EPROTONOSUPPORT)));
}

#[test]
fn packets_are_counted_and_dropped() {
    let at_work = AtWork::start("nothing", NOTHING);
    let (from, to) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let port = to.local_addr().unwrap().port();
    // Of Ethernet, IPv4 without options, UDP.
    let text = |hook: &str| {
        format!(
            "u64 seen, bytes, drops; on {hook}(\"lo\") {{ if (length < 42 || packet16(12) != 0x800 || packet8(23) != 17 || packet16(36) != {port}) return 0; seen++; bytes += packet16(38) - 8; if (packet8(42) == 'x') {{ drops++; return 1; }} }}"
        )
    };
    for (number, hook) in ["xdp", "ingress", "egress"].into_iter().enumerate() {
        at_work.load(hook, &text(hook), "");
        if hook == "xdp" {
            let other = AtWork::start("nothing", NOTHING);
            let file = other.file("other", &text(hook));
            let refused = other.ask(&format!("load {}", file.display())).exits_with(125);
            refused.says("(plugin) is there, and the kernel takes one");
        }
        for message in ["abc", "x", "defgh"] {
            from.send_to(message.as_bytes(), ("127.0.0.1", port)).expect("it is sent");
        }
        let mut bytes = [0; 16];
        let mut receive = || to.recv(&mut bytes).expect("it comes");
        assert_eq!([receive(), receive()], [3, 5], "{hook}");
        eventually("all were seen", || at_work.number(hook, "seen") >= 2);
        let state = at_work.show(hook);
        assert_eq!((self::number(&state, "drops"), self::number(&state, "seen")), (1, 3), "{number} {state}");
        assert_eq!((self::number(&state, "bytes"), &state["outside_packet"]), (9, &0.into()), "{state}");
        at_work.ask(&format!("unload {hook}")).success();
    }
    let beyond = text("ingress").replace("packet8(42)", "packet8(length)");
    at_work.load("beyond", &beyond, "");
    from.send_to(b"abc", ("127.0.0.1", port)).expect("it is sent");
    eventually("it was seen", || at_work.number("beyond", "seen") == 1);
    let state = at_work.show("beyond");
    assert_eq!((&state["outside_packet"], &state["outside"]), (&1.into(), &0.into()), "{state}");
    let shown = at_work.ask("show beyond").success().text();
    assert!(shown.contains("1 time: bytes outside of their packet"), "{shown}");
    assert_eq!(to.recv(&mut [0; 16]).expect("it comes"), 3);
    to.set_nonblocking(true).expect("it may be so");
    assert!(to.recv(&mut [0; 16]).is_err());
}

#[test]
fn tracepoints_have_their_fields() {
    let at_work = AtWork::start("nothing", NOTHING);
    let own = std::process::id();
    let text = format!(
        "u64 seen; i32 child; char name[16]; on tracepoint(\"sched:sched_process_fork\") {{ if (pid() == {own}) {{ seen++; child = child_pid; }} }}"
    );
    at_work.load("forks", &text, "");
    let before = at_work.number("forks", "seen");
    let mut made = Command::new("true").spawn().expect("it starts");
    let pid = made.id();
    made.wait().expect("it ends");
    let state = at_work.show("forks");
    assert!(number(&state, "seen") > before, "{state}");
    // Other tests of this process start processes, too.
    assert!(number(&state, "child") >= u64::from(pid) || number(&state, "child") > 0, "{state}");
}

#[test]
fn a_timer_runs_again_and_again() {
    let at_work = AtWork::start("nothing", NOTHING);
    at_work.load(
        "ticks",
        "u64 ticks; u64 first, last; on timer(\"5ms\") { if (!ticks) first = now(); last = now(); ticks++; }",
        "",
    );
    eventually("some ticks", || at_work.number("ticks", "ticks") >= 40);
    let state = at_work.show("ticks");
    let each_us = (number(&state, "last") - number(&state, "first")) / (number(&state, "ticks") - 1) / 1000;
    // A machine of somebody else's may be away for a while, but never come too often.
    assert!(each_us >= 4_900, "{each_us}");
}

#[test]
fn syns_are_counted_by_their_address() {
    let at_work = AtWork::start("nothing", NOTHING);
    let text = std::fs::read_to_string(project().join("examples/syns.ec")).expect("the example");
    at_work.load("syns", &text, "");
    let of_this_machine = || {
        let all = entries(&at_work.show("syns"), "syns");
        all.iter().find(|(address, _)| *address == 0x7f00_0003).map_or(0, |(_, times)| *times)
    };
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    for _ in 0..5 {
        // From an address that nobody else uses.
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
    // SAFETY: as above; nobody else has the socket.
    unsafe {
        assert_eq!(libc::connect(socket, (&raw const to).cast(), size_of_val(&to) as u32), 0);
        libc::close(socket);
    }
}

#[test]
fn the_examples_are_loaded() {
    let at_work = AtWork::start("nothing", NOTHING);
    for name in ["slow-open", "reads", "argument-policy", "grey"] {
        let text =
            std::fs::read_to_string(project().join(format!("examples/{name}.ec"))).expect("the example");
        at_work.load(name, &text, "");
    }
    let list = at_work.ask("list").success().text();
    assert_eq!(list.lines().count(), 5, "{list}");
}

#[test]
fn a_program_in_c_calls_a_plugin_in_memory_that_both_share() {
    let at_work = AtWork::start("nothing", NOTHING);
    let grey = std::fs::read_to_string(project().join("examples/grey.ec")).expect("the example");
    at_work.load("grey", &grey, "");
    let program = at_work.path("plugin");
    let library = tollgate().with_file_name("libtollgate.a");
    assert!(library.exists(), "{} is missing: `cargo build -p libtollgate` makes it", library.display());
    let made = Command::new("gcc")
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(project().join("crates/libtollgate/include"))
        .arg("-o")
        .args([&program, &project().join("examples/plugin.c"), &library])
        .status();
    assert!(made.expect("gcc runs").success());
    let pixels: Vec<u8> = (0..300).map(|byte| (byte * 7 % 256) as u8).collect();
    let image = at_work.path("image.ppm");
    std::fs::write(&image, [b"P6\n10 10\n255\n".as_slice(), &pixels].concat()).expect("a file");
    let run = |socket: &Path| {
        let input = std::fs::File::open(&image).expect("it is there");
        Command::new(&program).env("TOLLGATE_SOCKET", socket).stdin(input).output().expect("it runs")
    };
    let ran = run(&at_work.path("socket"));
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let grey: Vec<u8> = pixels
        .chunks(3)
        .map(|rgb| {
            (rgb.iter().zip([77, 150, 29]).map(|(part, weight)| u32::from(*part) * weight).sum::<u32>() >> 8)
                as u8
        })
        .collect();
    assert_eq!(ran.stdout, [b"P5\n10 10\n255\n".as_slice(), &grey].concat());
    let ran = run(Path::new("/nowhere"));
    assert!(String::from_utf8_lossy(&ran.stderr).contains("cannot ask the daemon at /nowhere"));
}
