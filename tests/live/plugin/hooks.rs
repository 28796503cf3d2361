//! Plugins at system-wide hooks; these plugins act only on what the test itself does.

use std::fs;
use std::io::{Error, ErrorKind};
use std::net::{Ipv6Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::process::Command;

use crate::harness::job::copy;
use crate::harness::network::OwnNetwork;
use crate::harness::plugins::{PluginDaemon, entries, number};
use crate::harness::services::Consumer;
use crate::harness::{eventually, workload, workloads};

/// Returns (6, 12) for "6.12.9-amd64".
fn kernel_release() -> (u32, u32) {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease").expect("/proc");
    let mut numbers = text.split(['.', '-']).map(|number| number.parse().expect("a number"));
    (numbers.next().expect("6"), numbers.next().expect("12"))
}

#[test]
fn connect_is_denied_with_errno() {
    let (server, other) =
        (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("[::]:0").unwrap());
    let (refused, free) = (server.local_addr().unwrap().port(), other.local_addr().unwrap().port());
    let (at_work, own) = (PluginDaemon::start_idle(), std::process::id());
    let text = format!(
        "u64 seen; u32 last; on connect {{ if (pid() != {own}) return 0; if (port == {refused}) \
        {{ seen++; last = ip; return -13; }} if (port == {free} && family == 10 && ip6[3] == 1) \
        return 1; }}"
    );
    at_work.load("refuses", &text, "--machine-wide");
    let error = TcpStream::connect(("127.0.0.1", refused)).expect_err("it is refused");
    assert_eq!(error.raw_os_error(), Some(libc::EACCES));
    TcpStream::connect(("127.0.0.1", free)).expect("no plugin refuses it");
    let error = TcpStream::connect((Ipv6Addr::LOCALHOST, free)).expect_err("it is refused");
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    // An IPv4-mapped address counts as IPv4.
    TcpStream::connect((Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0x7f00, 1), free))
        .expect("no plugin refuses it");
    let error = TcpStream::connect((Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0x7f00, 1), refused));
    assert_eq!(error.expect_err("it is refused").raw_os_error(), Some(libc::EACCES));
    assert_eq!(
        [number(&at_work.show("refuses"), "seen"), number(&at_work.show("refuses"), "last")],
        [2, 0x7f00_0001]
    );
    // UDP sends without a connection.
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let error = udp.send_to(b"x", ("127.0.0.1", refused)).expect_err("it is refused");
    assert_eq!(error.raw_os_error(), Some(libc::EACCES));
    udp.send_to(b"x", ("127.0.0.1", free)).expect("no plugin refuses it");
    at_work.request("unload refuses").success();
    TcpStream::connect(("127.0.0.1", refused)).expect("no plugin refuses it any more");
}

/// Linux uses an address of AF_UNSPEC as one of IPv4 when UDP sends, and at bind.
#[test]
fn an_unspecified_family_is_that_of_the_program() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let [port, free] = [&server, &UdpSocket::bind("0.0.0.0:0").unwrap()]
        .map(|socket| socket.local_addr().unwrap().port());
    let (at_work, own) = (PluginDaemon::start_idle(), std::process::id());
    let deny = |hook: &str, port: u16| {
        format!("on {hook} {{ return pid() == {own} && family == 2 && port == {port} ? -13 : 0; }}")
    };
    let text = deny("connect", port) + &deny("bind", free);
    at_work.load("refuses", &text, "--machine-wide");
    let address = |port: u16, ip: u32| libc::sockaddr_in {
        sin_family: libc::AF_UNSPEC as u16,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: ip.to_be() },
        sin_zero: [0; 8],
    };
    let socket = || {
        // SAFETY: a plain call.
        let made = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0) };
        assert!(made >= 0);
        // SAFETY: the call has just made this descriptor, and nothing else owns it.
        unsafe { OwnedFd::from_raw_fd(made) }
    };
    let bytes = size_of::<libc::sockaddr_in>() as u32;
    let send = || {
        let (socket, to) = (socket(), address(port, 0x7f00_0001));
        // SAFETY: the pointers are to a byte and to an address of this size.
        let sent = unsafe {
            let to = (&raw const to).cast();
            libc::sendto(socket.as_raw_fd(), c"x".as_ptr().cast(), 1, 0, to, bytes)
        };
        if sent < 0 { Error::last_os_error().raw_os_error() } else { None }
    };
    let bind = || {
        let (socket, at) = (socket(), address(free, 0));
        // SAFETY: the pointer is to an address of this size.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const at).cast(), bytes) };
        if bound < 0 { Error::last_os_error().raw_os_error() } else { None }
    };
    assert_eq!([send(), bind()], [Some(libc::EACCES); 2]);
    at_work.request("unload refuses").success();
    assert_eq!([send(), bind()], [None; 2]);
}

#[test]
fn bind_and_socket_are_denied() {
    let at_work = PluginDaemon::start_idle();
    let own = std::process::id();
    let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    at_work.load(
        "binds",
        &format!("on bind {{ return port == {port} && pid() == {own} ? -13 : 0; }}"),
        "--machine-wide",
    );
    let error = UdpSocket::bind(("127.0.0.1", port)).expect_err("it is refused");
    assert_eq!(error.raw_os_error(), Some(libc::EACCES));
    // A protocol for experiments (RFC 3692).
    let make = || {
        // SAFETY: a plain call.
        let made = unsafe { libc::socket(libc::AF_INET, libc::SOCK_RAW, 253) };
        if made < 0 {
            Err(Error::last_os_error())
        } else {
            // SAFETY: the call has just made this descriptor, and nothing else owns it.
            Ok(unsafe { OwnedFd::from_raw_fd(made) })
        }
    };
    make().expect("no plugin refuses it");
    let text =
        format!("on socket {{ return type == 3 && protocol == 253 && pid() == {own} ? -93 : 0; }}");
    at_work.load("sockets", &text, "--machine-wide");
    let error = make().expect_err("it is refused");
    assert_eq!(error.raw_os_error(), Some(libc::EPROTONOSUPPORT));
    at_work.request("unload sockets").success();
    make().expect("no plugin refuses it any more");
}

#[test]
fn denials_apply_to_the_daemons_tasks_alone() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let at_work = PluginDaemon::start_idle();
    let text = format!(
        "u64 all; on connect {{ all++; if (port == {port}) return -13; }} on bind {{ return -13; }}"
    );
    at_work.load("refuses", &text, "");
    let mut inside = Consumer(at_work.workload("consumer"));
    assert_eq!(inside.request(&format!("connect {port} 1")), "0 13");
    assert_eq!(at_work.number("refuses", "all"), 1);
    TcpStream::connect(("127.0.0.1", port)).expect("this process is not the daemon's");
    UdpSocket::bind("127.0.0.1:0").expect("this process is not the daemon's");
    assert_eq!(at_work.number("refuses", "all"), 1);
    at_work.swap("refuses", "on socket { return -93; }");
    assert_eq!(inside.request("sockets 1"), "0 93");
    assert_eq!(inside.request(&format!("connect {port} 1")), "0 93");
    TcpStream::connect(("127.0.0.1", port)).expect("this process is not the daemon's");
    at_work.request("unload refuses").success();
    assert_eq!(inside.request(&format!("connect {port} 1")), "1 0");
    drop(inside.0.stdin());
    inside.0.finish().success();
}

#[test]
fn packets_of_others_are_denied_on_purpose_only() {
    let at_work = PluginDaemon::start_idle();
    for hook in ["xdp", "ingress", "egress"] {
        let file = at_work.file(hook, &format!("on {hook}(\"lo\") {{ return 1; }}"));
        at_work
            .request(&format!("load {}", file.display()))
            .exits_with(125)
            .says(&format!("`on {hook}` can drop packets of the whole machine"))
            .says("--machine-wide");
    }
}

#[test]
fn packets_are_counted_and_dropped() {
    let _network = OwnNetwork::enter();
    let at_work = PluginDaemon::start_idle();
    let (from, to) =
        (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let port = to.local_addr().unwrap().port();
    // The headers of Ethernet, IPv4 without options, and UDP.
    let text = |hook: &str| {
        format!(
            "u64 seen, bytes, drops; on {hook}(\"lo\") {{ if (length < 42 || packet16(12) != \
            0x800 || packet8(23) != 17 || packet16(36) != {port}) return 0; seen++; bytes += \
            packet16(38) - 8; if (packet8(42) == 'x') {{ drops++; return 1; }} }}"
        )
    };
    for hook in ["xdp", "ingress", "egress"] {
        if hook != "xdp" && kernel_release() < (6, 6) {
            let file = at_work.file(hook, &text(hook));
            let refused =
                at_work.request(&format!("load --machine-wide {}", file.display())).exits_with(125);
            refused.says("attach a plugin to lo (needs Linux 6.6)");
            continue;
        }
        at_work.load(hook, &text(hook), "--machine-wide");
        if hook == "xdp" {
            let other = PluginDaemon::start_idle();
            let file = other.file("other", &text(hook));
            let refused =
                other.request(&format!("load --machine-wide {}", file.display())).exits_with(125);
            refused.says("(plugin) is attached, and the kernel allows only one");
        }
        for message in ["abc", "x", "defgh"] {
            from.send_to(message.as_bytes(), ("127.0.0.1", port)).expect("it is sent");
        }
        let mut bytes = [0; 16];
        let mut receive = || to.recv(&mut bytes).expect("it comes");
        assert_eq!([receive(), receive()], [3, 5], "{hook}");
        eventually("all were seen", || at_work.number(hook, "seen") >= 2);
        let state = at_work.show(hook);
        assert_eq!(
            (self::number(&state, "drops"), self::number(&state, "seen")),
            (1, 3),
            "{hook} {state}"
        );
        assert_eq!(
            (self::number(&state, "bytes"), &state["outside_packet"]),
            (9, &0.into()),
            "{state}"
        );
        at_work.request(&format!("unload {hook}")).success();
    }
    let beyond = text("xdp").replace("packet8(42)", "packet8(length)");
    at_work.load("beyond", &beyond, "--machine-wide");
    from.send_to(b"abc", ("127.0.0.1", port)).expect("it is sent");
    eventually("it was seen", || at_work.number("beyond", "seen") == 1);
    let state = at_work.show("beyond");
    assert_eq!((&state["outside_packet"], &state["outside"]), (&1.into(), &0.into()), "{state}");
    let shown = at_work.request("show beyond").success().text();
    assert!(shown.contains("1 read outside a packet"), "{shown}");
    assert_eq!(to.recv(&mut [0; 16]).expect("it comes"), 3);
    to.set_nonblocking(true).expect("it may be so");
    assert!(to.recv(&mut [0; 16]).is_err());
}

#[test]
fn tracepoints_have_their_fields() {
    let at_work = PluginDaemon::start_idle();
    let own = std::process::id();
    // Other tests of this test program also start processes.
    let text = format!(
        "map<i32, u64> children[4096];
        on tracepoint(\"sched:sched_process_fork\") {{ if (pid() == {own}) children[child_pid] += \
            parent_pid; }}"
    );
    at_work.load("forks", &text, "");
    let words = workload("calls 1");
    let mut made = Command::new(&words[0]).args(&words[1..]).spawn().expect("it starts");
    let child = u64::from(made.id());
    made.wait().expect("it ends");
    let shown = at_work.request("show --json --top 4096 forks").success().json();
    let children = entries(&shown["plugin"], "children");
    let parent = children.iter().find(|(pid, _)| *pid == child).expect("it was seen").1;
    // The parent is the thread that forked.
    assert!(fs::exists(format!("/proc/self/task/{parent}")).expect("/proc"), "{parent}");
}

/// `filename` has no fixed length. A longer text is cut, and ends in a NUL.
#[test]
fn texts_of_tracepoints_are_read() {
    let at_work = PluginDaemon::start_idle();
    let program = at_work.path("short");
    copy(&workloads(), &program);
    let long = at_work.path(&"long".repeat(20));
    copy(&workloads(), &long);
    let beginning = &long.display().to_string()[..60];
    let text = format!(
        "u64 shorts, longs, length; on tracepoint(\"sched:sched_process_exec\") {{ if \
        (strcmp(filename, \"{}\") == 0) shorts++; if (strncmp(filename, \"{beginning}\", 60) == 0) \
        {{ longs++; length = strlen(filename); }} }}",
        program.display()
    );
    at_work.load("executed", &text, "");
    for program in [&program, &program, &long] {
        assert!(Command::new(program).args(["calls", "1"]).status().expect("it starts").success());
    }
    let state = at_work.show("executed");
    assert_eq!(["shorts", "longs", "length"].map(|name| number(&state, name)), [2, 1, 63]);
}

#[test]
fn timer_fires_repeatedly() {
    let at_work = PluginDaemon::start_idle();
    at_work.load(
        "ticks",
        "u64 ticks; u64 first, last; on timer(\"5ms\") { if (!ticks) first = now(); last = now(); \
        ticks++; }",
        "",
    );
    eventually("some ticks", || at_work.number("ticks", "ticks") >= 40);
    let state = at_work.show("ticks");
    let each_us =
        (number(&state, "last") - number(&state, "first")) / (number(&state, "ticks") - 1) / 1000;
    // A shared machine may pause for a while, but the timer must not fire too often.
    assert!(each_us >= 4_900, "{each_us}");
}
