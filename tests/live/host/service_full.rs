//! Services where there is no more room: what could not be kept is counted, and there is room again afterwards.

use std::net::{Ipv4Addr, UdpSocket};

use serde_json::json;

use crate::harness::eventually;
use crate::harness::job::stop;
use crate::harness::limits;
use crate::harness::report::none_lost;
use crate::harness::services::{Backend, Consumer, InForce, TENANTS, begin, over, own_work, programs};

const CONNECTIONS: &str = "messages of connections not followed (table full)";
const MOVES: &str = "threads not put in their service's control group (buffer full)";

/// `CONNECTIONS` of bpf/wire.h, at the same time.
#[test]
fn connections_beyond_the_table_are_counted() {
    const ROOM: u64 = 131_072;
    // Of each process, whose descriptors for them are below the least that systems allow root: 20,000.
    const OF_ONE: u64 = 8255;
    const PROCESSES: u64 = 16;
    const BEYOND: u64 = PROCESSES * OF_ONE - ROOM;
    let services = InForce::start(programs(&["shop", "backend", "many"]), TENANTS);
    let many: Vec<_> = (0..PROCESSES)
        .map(|_| {
            let mut many = Consumer::start(&services, "many");
            assert_eq!(many.ask(&format!("connections {OF_ONE}")), (2 * OF_ONE).to_string());
            many
        })
        .collect();
    let lost = services.report()["losses"].clone();
    let messages = lost[CONNECTIONS].as_u64().expect("it is full");
    // Who opens one is noted twice, before and when it sends. Others on this machine may have connections too.
    assert!((2 * BEYOND..5 * BEYOND).contains(&messages), "{lost}");
    many.into_iter().for_each(|mut many| drop(many.ask("close")));
    let lost = services.report()["losses"].clone();
    let folder = services.folder.path();
    let backend = Backend::start(folder, "backend", "0", "");
    let tenant = begin(backend.tenant(folder, "shop", "a 0 20"));
    own_work(&tenant);
    assert_eq!(services.service_of(backend.running.pid()), "shop");
    over(tenant);
    assert_eq!(services.report()["losses"], lost);
    backend.end(folder, "shop");
}

/// `FLOWS` of bpf/wire.h: who has sent longest ago is forgotten.
#[test]
fn a_datagram_whose_sender_is_forgotten_is_counted() {
    const ROOM: u32 = 32_768;
    let server = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let at = server.local_addr().expect("a port");
    let rule = format!("[[rule]]\nlisten = \":{}\"\nadopts-peer = true\n", at.port());
    let services = InForce::start(programs(&[]), &rule);
    let send = |number: u32| {
        let from = Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 2, 0, 1)) + number);
        let socket = UdpSocket::bind((from, 0)).expect("loopback's");
        socket.send_to(b".", at).expect("it is sent, or thrown away at the other end");
    };
    let receive = || server.recv_from(&mut [0]).map(drop).expect("a datagram");
    send(0);
    receive();
    none_lost(&services.report());
    send(0);
    (1..2 * ROOM).for_each(send);
    receive();
    assert_eq!(services.report()["losses"], json!({ CONNECTIONS: 1 }));
}

/// `PLACEMENT_BYTES` of bpf/wire.h, while nobody reads them.
#[test]
fn moves_that_nobody_can_be_asked_for_are_counted() {
    // Each takes 32 bytes of the buffer's 65,536.
    const ROOM: u64 = 2048;
    let services = limits::start(&[("few", "tasks-max = 100")]);
    stop(services.daemon.pid());
    let job = services.program(&format!("few short-processes {}", 2 * ROOM)).start();
    eventually("its processes", || job.is_over());
    job.finish().success();
    services.daemon.signal(libc::SIGCONT);
    let lost = services.report()["losses"][MOVES].as_u64().expect("it was full");
    assert!((ROOM..=2 * ROOM + 2).contains(&lost), "{lost}");
    let mut later = Consumer::start(&services, "few");
    eventually("it is in its group", || limits::group_of(later.0.pid(), "pids").starts_with("/tollgate/few"));
    assert_eq!(later.takes("fork 200").0, 99);
}
