//! Services with full tables: what could not be recorded is counted as a loss, and later there is
//! room again.

use std::net::{Ipv4Addr, UdpSocket};

use serde_json::json;

use crate::harness::eventually;
use crate::harness::job::stop;
use crate::harness::report::none_lost;
use crate::harness::service_limits;
use crate::harness::services::{
    ActiveServices, Backend, Consumer, TENANTS, begin, finish_tenant, own_work, programs,
};

const CONNECTIONS: &str = "messages not followed (connection table full)";
const MOVES: &str = "threads not moved to their service's control group (buffer full)";

/// More than `CONNECTIONS` (bpf/service/streams.bpf.h) connections at the same time.
#[test]
fn connections_beyond_the_table_are_counted_as_loss() {
    const ROOM: u64 = 131_072;
    // Connections of each process. Their descriptors stay below the smallest limit that systems
    // give root: 20,000.
    const OF_ONE: u64 = 8255;
    const PROCESSES: u64 = 16;
    const BEYOND: u64 = PROCESSES * OF_ONE - ROOM;
    let services = ActiveServices::start(programs(&["shop", "backend", "many"]), TENANTS);
    let many: Vec<_> = (0..PROCESSES)
        .map(|_| {
            let mut many = Consumer::start(&services, "many");
            assert_eq!(many.request(&format!("connections {OF_ONE}")), (2 * OF_ONE).to_string());
            many
        })
        .collect();
    let lost = services.report()["losses"].clone();
    let messages = lost[CONNECTIONS].as_u64().expect("it is full");
    // A message of the opener is recorded twice, before and when it is sent. Other processes on
    // this machine may have connections as well.
    assert!((2 * BEYOND..5 * BEYOND).contains(&messages), "{lost}");
    many.into_iter().for_each(|mut many| drop(many.request("close")));
    let lost = services.report()["losses"].clone();
    let folder = services.folder.path();
    let backend = Backend::start(folder, "backend", "0", "");
    let tenant = begin(backend.tenant(folder, "shop", "a 0 20"));
    own_work(&tenant);
    assert_eq!(services.service_of(backend.running.pid()), "shop");
    finish_tenant(tenant);
    assert_eq!(services.report()["losses"], lost);
    backend.end(folder, "shop");
}

/// `DATAGRAM_SENDERS` (bpf/service/datagrams.bpf.h) are stored: the sender that has sent longest
/// ago is evicted.
#[test]
fn datagram_with_evicted_sender_is_counted_as_loss() {
    const ROOM: u32 = 32_768;
    let server = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let at = server.local_addr().expect("a port");
    let rule = format!("[[rule]]\nlisten = \":{}\"\nadopts-peer = true\n", at.port());
    let services = ActiveServices::start(programs(&[]), &rule);
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

/// `MIGRATION_RING_BYTES` of bpf/wire/service.h, while the daemon does not read them.
#[test]
fn migrations_beyond_the_ring_are_counted_as_loss() {
    // Each record takes 32 of the buffer's 65,536 bytes.
    const ROOM: u64 = 2048;
    let services = service_limits::start(&[("few", "tasks-max = 100")]);
    stop(services.daemon.pid());
    let job = services.program(&format!("few short-processes {}", 2 * ROOM)).start();
    eventually("its processes", || job.is_over());
    job.finish().success();
    services.daemon.signal(libc::SIGCONT);
    let lost = services.report()["losses"][MOVES].as_u64().expect("it was full");
    assert!((ROOM..=2 * ROOM + 2).contains(&lost), "{lost}");
    let mut later = Consumer::start(&services, "few");
    eventually("it is in its cgroup", || {
        service_limits::cgroup_of(later.0.pid(), "pids").starts_with("/tollgate/few")
    });
    assert_eq!(later.request_counts("fork 200").0, 99);
}
