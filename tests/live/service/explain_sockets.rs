//! `service explain` of sockets: for which services a connection is used.

use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;

use serde_json::Value;

use crate::harness::services::{
    ActiveServices, Backend, begin, finish_tenant, own_work, program, programs,
};
use crate::harness::{Running, eventually};

const RULES: &str = r#"
[service.shop]

[[rule]]
exe = "FOLDER/shop"
belongs-to = "shop"

[[rule]]
name = "works for others"
exe = "FOLDER/backend"
adopts-peer = true
"#;

fn connections(services: &ActiveServices, socket: &str) -> Vec<Value> {
    let explanation = services.request(&format!("explain --json {socket}")).json();
    assert_eq!(explanation["schema"], "tollgate.service.explain-socket/1");
    explanation["connections"].as_array().expect("a list").clone()
}

fn is_explained(address: &str) {
    let services = ActiveServices::start(programs(&["shop", "backend"]), RULES);
    let folder = services.folder.path();
    let backend = Backend::start(folder, "backend", address, "");
    let socket = match address {
        "0" => format!("127.0.0.1:{}", backend.endpoint),
        _ => backend.endpoint.clone(),
    };
    assert_eq!(connections(&services, &socket), Vec::<Value>::new());
    let tenant = begin(backend.tenant(folder, "shop", "a 5 100000 100000"));
    let has_reply =
        || connections(&services, &socket).first().is_some_and(|ends| ends[1]["rule"].is_object());
    eventually("a message and its reply", has_reply);

    let explanation = services.request(&format!("explain --json {socket}")).json();
    let pid = |processes: &Value| processes[0]["pid"].clone();
    assert_eq!(explanation["listeners"][0]["socket"], socket);
    assert_eq!(pid(&explanation["listeners"][0]["processes"]), backend.running.pid());
    let [opened, accepted] = [0, 1].map(|end| explanation["connections"][0][end].clone());
    assert_eq!((&opened["role"], &opened["sends_for"]), (&"opened".into(), &"shop".into()));
    assert_eq!(
        (&accepted["role"], &accepted["socket"]),
        (&"accepted".into(), &socket.as_str().into())
    );
    assert_eq!(pid(&opened["processes"]), tenant.pid());
    assert_eq!(opened["sender"], tenant.pid());
    assert_eq!(pid(&accepted["processes"]), backend.running.pid());
    assert_eq!(accepted["sends_for"], "shop");
    assert_eq!(accepted["rule"]["name"], "works for others");
    assert_eq!(explanation["connections"].as_array().map(Vec::len), Some(1));
    let said = services.request(&format!("explain {socket}")).text();
    assert!(
        said.contains(&format!("{} backend listens at {socket}\n", backend.running.pid())),
        "{said}"
    );
    assert!(said.contains("last sent for shop"), "{said}");
    tenant.signal(libc::SIGKILL);
    tenant.finish();
    eventually("its end", || connections(&services, &socket).is_empty());
}

#[test]
fn explain_tcp_connection() {
    is_explained("0");
}

#[test]
fn explain_unix_connection() {
    is_explained("socket");
}

/// An unconnected socket of a server has all its clients.
#[test]
fn explain_datagrams() {
    let services = ActiveServices::start(programs(&["shop", "backend"]), RULES);
    let folder = services.folder.path();
    let backend = Backend::start(folder, "backend", "sendto:127.0.0.1:0", "");
    let tenant = begin(backend.tenant(folder, "shop", "a 0 5"));
    own_work(&tenant);
    let (_, socket) = backend.endpoint.split_once(':').expect("a kind and an address");
    let all = connections(&services, socket);
    let ends = all.first().and_then(Value::as_array).expect("it has received");
    let [server] = &ends[..] else { panic!("{ends:?}") };
    assert_eq!(server["socket"], socket);
    assert_eq!(server["processes"][0]["pid"], backend.running.pid());
    assert_eq!(server["sends_for"], "shop");
    finish_tenant(tenant);
    backend.end(folder, "shop");
}

#[test]
fn listener_in_another_netns() {
    let services = ActiveServices::start(programs(&["backend"]), RULES);
    // SAFETY: a plain system call.
    let unshare = || match unsafe { libc::unshare(libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    };
    let backend = services.program("backend backend 0").before_exec(unshare).start();
    eventually("the backend", || backend.read("out").ends_with('\n'));
    let socket = format!("127.0.0.1:{}", backend.read("out").trim());
    let explanation = services.request(&format!("explain --json {socket}")).json();
    assert_eq!(explanation["listeners"][0]["processes"][0]["pid"], backend.pid(), "{explanation}");
}

#[test]
fn unknown_socket() {
    let services = ActiveServices::start(programs(&[]), RULES);
    let said = services.request("explain @nobody").text();
    assert!(said.contains("no process listens at @nobody"), "{said}");
    services
        .client_job("explain nowhere")
        .finish()
        .exits_with(125)
        .says("expected a process ID, or a socket");
}

/// Starts a program that inherits this socket; in the command, FD stands for its number.
fn with_socket(services: &ActiveServices, command: &str, socket: &UnixStream) -> Running {
    let fd = socket.as_raw_fd();
    // SAFETY: a plain system call.
    let keep = move || match unsafe { libc::fcntl(fd, libc::F_SETFD, 0) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    };
    let command = command.replace("FD", &fd.to_string());
    program(services.folder.path(), &command).before_exec(keep).start()
}

/// Neither end has accepted the connection, so requests and replies cannot be distinguished.
#[test]
fn socketpair_message_is_shared() {
    let services = ActiveServices::start(programs(&["shop", "backend"]), RULES);
    let (here, there) = UnixStream::pair().expect("a pair");
    let backend = with_socket(&services, "backend backend fd:FD", &there);
    let tenant = begin(with_socket(&services, "shop tenant fd:FD a 50 4 4", &here));
    own_work(&tenant);
    let why = services.explain(backend.pid());
    assert_eq!(
        (&why["service"], &why["why"], &why["rule"]["name"]),
        (&"shared".into(), &"receive".into(), &"works for others".into())
    );
    assert_eq!(services.service_of(tenant.pid()), "shop");
    let cpu = services.usage_by_service("cpu_ns");
    // The first message may have arrived before its sender was recorded.
    assert!(cpu["shared"] >= 150_000_000 && cpu["shop"] < 100_000_000, "{cpu:?}");
    finish_tenant(tenant);
    backend.signal(libc::SIGKILL);
    backend.finish();
}
