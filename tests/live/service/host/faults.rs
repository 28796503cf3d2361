//! Services under heavy load, and after faults.

use std::fs::{self, File, Permissions};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::FromRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::harness::report::none_lost;
use crate::harness::services::{
    ActiveServices, Backend, TENANTS, begin, finish_tenant, own_work, program, programs,
};
use crate::harness::{Finished, Job, LIMIT, NOBODY, eventually};

#[track_caller]
fn said(done: Finished, words: &str) {
    let text = done.text();
    assert!(text.contains(words), "{text}");
}

fn ten_thousand_rules() -> String {
    let rules = (0..10_000).map(|n| {
        format!("[[rule]]\nexe = \"FOLDER/other{n}\"\nuser = \"{n}\"\nbelongs-to = \"blog\"\n")
    });
    format!("{TENANTS}{}", rules.collect::<String>())
}

#[test]
fn ten_thousand_rules_are_active() {
    let services =
        ActiveServices::start(programs(&["shop", "backend", "other0", "other9"]), TENANTS);
    said(services.apply(&ten_thousand_rules()), "10,003 rules are active");
    let folder = services.folder.path();
    let backend = Backend::start(folder, "backend", "0", "");
    let tenant = begin(backend.tenant(folder, "shop", "a 1 5"));
    own_work(&tenant);
    assert_eq!(services.service_of(tenant.pid()), "shop");
    assert_eq!(services.service_of(backend.running.pid()), "shop");
    // The rules have a second condition, which only the rule of `other0` meets: user 0.
    let others =
        ["other0", "other9"].map(|name| program(folder, &format!("{name} tenant 1 a 0 1")).start());
    let found = others.each_ref().map(|other| services.service_of(other.pid()));
    assert_eq!(found, ["blog", "root"]);
    finish_tenant(tenant);
    said(services.apply(TENANTS), "3 rules are active");
    none_lost(&services.report());
}

/// Sets the flag also if the test fails.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Whatever the daemon reads while the file is written, it does not activate half a file.
#[test]
fn half_written_file_is_not_applied() {
    let services = ActiveServices::start(programs(&[]), TENANTS);
    let path = services.path("services.toml");
    let more = (0..2_000).map(|n| format!("[[rule]]\nexe = \"/none{n}\"\nbelongs-to = \"blog\"\n"));
    let contents =
        [TENANTS.replace("FOLDER", ""), format!("[service.blog]\n{}", more.collect::<String>())];
    let is_over = AtomicBool::new(false);
    let write = || {
        for content in contents.iter().cycle().take_while(|_| !is_over.load(Ordering::SeqCst)) {
            let mut file = File::create(&path).expect("a file");
            for part in content.as_bytes().chunks(content.len() / 20 + 1) {
                file.write_all(part).expect("a file");
            }
        }
    };
    let done = std::thread::scope(|scope| {
        let _end = SetAtEnd(&is_over);
        scope.spawn(write);
        let done = [(); 10].map(|()| services.client_job("apply").start());
        let done = done.map(|apply| {
            eventually("a reply", || apply.is_over());
            apply
        });
        done.map(|apply| apply.read("out") + &apply.read("err"))
    });
    for said in done {
        let known =
            ["3 rules are active", "2,000 rules are active", "another process is writing to it"];
        assert!(known.iter().any(|words| said.contains(words)), "{said}");
    }
    fs::write(&path, &contents[0]).expect("a file");
    said(services.request("apply"), "3 rules are active");
}

/// A server that accepts the connection later still works for the client.
#[test]
fn client_that_exits_before_accept_is_charged() {
    let services = ActiveServices::start(programs(&["shop"]), TENANTS);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("a port").port();
    let rule = format!("[[rule]]\nlisten = \":{port}\"\nadopts-peer = true\n");
    services.apply(&format!("{TENANTS}{rule}"));
    let tenant =
        begin(program(services.folder.path(), &format!("shop tenant {port} a 1 1")).start());
    // Waits until the tenant waits for its reply, in recvfrom of
    // arch/x86/entry/syscalls/syscall_64.tbl.
    let waits = || {
        fs::read_to_string(format!("/proc/{}/syscall", tenant.pid()))
            .is_ok_and(|call| call.starts_with("45 "))
    };
    eventually("its request", waits);
    tenant.signal(libc::SIGKILL);
    tenant.finish();
    let own = std::thread::spawn(move || {
        let mut connection = listener.accept().expect("a connection").0;
        let mut request = [0; 16];
        assert!(connection.read(&mut request).expect("it was sent") > 0);
        // SAFETY: a plain query.
        let tid = unsafe { libc::gettid() } as u32;
        let threads = services.request(&format!("explain --json {}", std::process::id())).json();
        let threads = threads["threads"].as_array().expect("threads").clone();
        let why = threads.into_iter().find(|thread| thread["tid"] == tid).expect("this one");
        assert_eq!((&why["service"], &why["why"]), (&"shop".into(), &"receive".into()));
        services.report()
    });
    none_lost(&own.join().expect("it does"));
}

/// 100,000 connections, made as fast as possible, in less than a minute.
#[test]
fn hundred_thousand_connections_leak_nothing() {
    const CONNECTIONS_EACH: u32 = 50_000;
    let services = ActiveServices::start(programs(&["shop", "blog", "backend"]), TENANTS);
    let folder = services.folder.path();
    let backend = Backend::start(folder, "backend", "0", "");
    let tenants = ["shop", "blog"].map(|name| {
        backend.tenant(
            folder,
            name,
            &format!("{} 0 {CONNECTIONS_EACH} 1", &name[..1]).replace('s', "a"),
        )
    });
    let began = Instant::now();
    tenants.map(begin).into_iter().for_each(|tenant| {
        eventually("the tenant's work", || tenant.read("out").lines().count() == 2);
        finish_tenant(tenant);
    });
    let a_minute = f64::from(2 * CONNECTIONS_EACH) * 60.0 / began.elapsed().as_secs_f64();
    assert!(a_minute > 100_000.0, "{a_minute} connections a minute");
    none_lost(&services.report());
    let left = services.request(&format!("explain --json :{}", backend.endpoint)).json();
    assert_eq!(left["connections"], serde_json::json!([]));
    let received = services.usage_by_service("received_bytes");
    // A request has four bytes and a reply five. The server receives the request, and then works
    // for the tenant.
    for name in ["shop", "blog"] {
        assert_eq!(received[name], u64::from(CONNECTIONS_EACH) * (4 + 5), "{received:?}");
    }
    backend.end(folder, "shop");
}

/// Sends one request from an address of the loopback network.
fn request_once(from: Ipv4Addr, port: u16) {
    let address = |ip: Ipv4Addr, port: u16| libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(ip).to_be() },
        sin_zero: [0; 8],
    };
    let size = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    let (own, other) = (address(from, 0), address(Ipv4Addr::LOCALHOST, port));
    // SAFETY: two valid addresses, and a descriptor that nothing else owns.
    let mut stream = unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        let stream = TcpStream::from_raw_fd(socket);
        assert_eq!(libc::bind(socket, (&raw const own).cast(), size), 0, "{from} is loopback's");
        assert_eq!(libc::connect(socket, (&raw const other).cast(), size), 0, "it listens");
        stream
    };
    stream.set_read_timeout(Some(LIMIT)).expect("it is no nothing");
    stream.write_all(b"a 0\n").expect("it reads");
    stream.read_exact(&mut [0; 5]).expect("it replies");
}

/// Starts more dynamic services than the maximum.
#[test]
fn dynamic_services_until_exhaustion() {
    const MAX_DYNAMIC: u32 = 2048;
    const BEYOND: u32 = 10;
    let rules = "[service.clients]\n[[rule]]\nexe = \"FOLDER/backend\"\nstarts-below = \
        \"clients\"\neach = \"client\"\n";
    let services = ActiveServices::start(programs(&["backend"]), rules);
    let backend = Backend::start(services.folder.path(), "backend", "0", "");
    let port = backend.endpoint.parse().expect("a port");
    let client = |number: u32| Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 1, 0, 1)) + number);
    (0..MAX_DYNAMIC + BEYOND).for_each(|number| request_once(client(number), port));
    // A client that has a service keeps it.
    request_once(client(0), port);
    assert_eq!(services.service_of(backend.running.pid()), format!("clients:{}", client(0)));
    let received = services.usage_by_service("received_bytes");
    let of = |number: u32| received.get(&format!("clients:{}", client(number))).copied();
    let without: Vec<_> = (0..MAX_DYNAMIC).filter(|number| of(*number).is_none()).collect();
    assert_eq!(without, [0_u32; 0], "losses: {}", services.report()["losses"]);
    assert_eq!(
        (of(0), of(1), of(MAX_DYNAMIC - 1), of(MAX_DYNAMIC)),
        (Some(8), Some(4), Some(4), None)
    );
    assert_eq!(received["clients"], u64::from(4 * BEYOND));
    const LOST: &str = "work charged to a parent because no service could be started (table full)";
    assert_eq!(services.report()["losses"], serde_json::json!({ LOST: BEYOND }));
    said(services.request("report"), LOST);
}

/// This holds even if the mode of the socket allows the connection. Otherwise a process could have
/// its work charged to any service.
#[test]
fn non_root_cannot_bind_itself() {
    let services = ActiveServices::start(programs(&["shop"]), TENANTS);
    for path in [services.folder.path(), &services.path("control")] {
        fs::set_permissions(path, Permissions::from_mode(0o777)).expect("it is ours");
    }
    let own = std::process::id();
    for command in [
        "report",
        "list",
        "apply",
        "limit shop --cpu-max 1%",
        &format!("assign {own} shop"),
        &format!("explain {own}"),
    ] {
        let mut job = services.client_job(command);
        job.command.uid(NOBODY).gid(NOBODY);
        job.finish().exits_with(125).says("only root may");
    }
    assert_eq!(services.service_of(own), "root");
    assert_eq!(services.request("limit --json").json()["services"], serde_json::json!([]));
}

/// cgroup v1 does not admit the process to a cgroup without room for its memory; v2 kills it there.
#[test]
fn command_that_cannot_enter_its_cgroup_is_not_started() {
    let services = ActiveServices::start(programs(&["shop"]), TENANTS);
    services.request("limit shop --memory-max 4096");
    let mut job = Job::from_command_line("run --service shop --");
    job.command.arg(services.path("shop")).args(["calls", "1"]);
    job.command.env("TOLLGATE_SOCKET", services.path("control"));
    let ran = job.finish();
    let is_killed = ran.status == 128 + libc::SIGKILL;
    assert!(
        is_killed || ran.err.contains("under the limits of shop"),
        "{} {}",
        ran.status,
        ran.err
    );
    assert!(is_killed || ran.status == 125, "{}", ran.status);
}
