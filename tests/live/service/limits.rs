//! Limits of services: what a service may use, what happens beyond a limit, and in which cgroups
//! its threads are.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::thread;

use crate::harness::service_limits::{cgroup_of, competitors, end, limit, rules, start};
use crate::harness::services::{ActiveServices, Backend, Consumer, begin, finish_tenant, programs};
use crate::harness::{Job, eventually};

#[test]
fn tasks_max() {
    // Each cgroup of v1 has a file of that name.
    let services = start(&[("tasks", "tasks-max = 5")]);
    let mut few = Consumer::start(&services, "tasks");
    eventually("it is in its cgroup", || {
        cgroup_of(few.0.pid(), "pids").starts_with("/tollgate/%tasks/")
    });
    assert_eq!(few.request_counts("fork 10"), (4, libc::EAGAIN));
    assert_eq!(limit(&services, "tasks")["tasks"], 5);
    assert!(services.request("limit").text().contains(" 5/5 "));
    services.request("limit tasks --tasks-max 7");
    assert_eq!(few.request_counts("fork 10"), (2, libc::EAGAIN));
}

/// The limits apply to the first actions of a command as well.
#[test]
fn run_service_is_limited_from_the_start() {
    let services = start(&[("few", "tasks-max = 3")]);
    let mut job = Job::from_command_line("run --service few --");
    job.command.arg(services.path("few")).arg("consumer");
    job.command
        .env("TOLLGATE_SOCKET", services.path("control"))
        .stdin(std::process::Stdio::piped());
    let mut running = job.start();
    writeln!(running.input(), "fork 10").expect("it listens");
    eventually("a reply", || running.read("out").ends_with('\n'));
    assert_eq!(running.read("out"), format!("2 {}\n", libc::EAGAIN));
}

#[test]
fn memory_max() {
    let services = start(&[("small", "memory-max = \"32M\"")]);
    let mut small = Consumer::start(&services, "small");
    eventually("it is in its cgroup", || {
        cgroup_of(small.0.pid(), "memory").starts_with("/tollgate/small/")
    });
    assert_eq!(small.request("memory 8000000"), "1");
    small.send("memory 100000000");
    small.0.finish().exits_with(128 + libc::SIGKILL);
}

#[test]
fn sockets_max() {
    let services =
        start(&[("some", "sockets-max = 5\nover-limit-errno = \"EMFILE\""), ("free", "")]);
    let [mut some, mut free] = ["some", "free"].map(|name| Consumer::start(&services, name));
    assert_eq!(some.request_counts("sockets 8"), (5, libc::EMFILE));
    assert_eq!(free.request_counts("sockets 8"), (8, 0));
    assert_eq!(
        (
            services.usage_by_service("sockets")["some"],
            services.usage_by_service("sockets")["free"]
        ),
        (5, 8)
    );
    assert_eq!(limit(&services, "some")["refused"], 1);
    // Sockets of an ended process do not count.
    let mut other = Consumer::start(&services, "some");
    assert_eq!(other.request_counts("sockets 1"), (0, libc::EMFILE));
    some.request("close");
    eventually("closed sockets", || services.usage_by_service("sockets")["some"] == 0);
    assert_eq!(other.request_counts("sockets 3"), (3, 0));
    assert_eq!(some.request_counts("sockets 3"), (2, libc::EMFILE));
    drop(other);
    services.request("limit some --sockets-max none");
    assert_eq!(some.request_counts("sockets 30"), (30, 0));
}

#[test]
fn connections_max() {
    let services = start(&[("some", "connections-max = 3\nover-limit-errno = \"ECONNREFUSED\"")]);
    let mut some = Consumer::start(&services, "some");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("a port").port();
    assert_eq!(some.request_counts(&format!("connect {port} 5")), (3, libc::ECONNREFUSED));
    // Unconnected sockets do not count as connections.
    assert_eq!(some.request_counts("sockets 5"), (5, 0));
    some.request("close");
    assert_eq!(some.request_counts(&format!("connect {port} 2")), (2, 0));
    assert_eq!(limit(&services, "some")["connections"], 2);
}

#[test]
fn over_limit_service() {
    let services = start(&[
        ("some", "sockets-max = 2\nover-limit-service = \"bulk\""),
        ("bulk", "sockets-max = 3\nover-limit-errno = \"ENOBUFS\""),
    ]);
    let mut some = Consumer::start(&services, "some");
    assert_eq!(some.request_counts("sockets 9"), (5, libc::ENOBUFS));
    assert_eq!(services.service_of(some.0.pid()), "bulk");
    assert_eq!(services.explain(some.0.pid())["why"], "limit");
    assert_eq!(limit(&services, "some")["went_over"], 1);
    // If the other service is at its limit as well, the request is refused.
    let mut other = Consumer::start(&services, "some");
    assert_eq!(other.request_counts("sockets 9"), (0, libc::EAGAIN));
}

/// This includes processes whose cgroups have to be created anew.
#[test]
fn limits_survive_changes_of_others() {
    let services = start(&[("capped", "cpu-max = \"20%\""), ("other", "")]);
    let mut capped = Consumer::start(&services, "capped");
    let is_capped = |capped: &mut Consumer| {
        capped.request("burn 500");
        // While the process burns time on its only processor, the daemon may not get to run.
        eventually("it is in its cgroup", || {
            cgroup_of(capped.0.pid(), "cpu").starts_with("/tollgate/capped/")
        });
    };
    is_capped(&mut capped);
    services.request("limit other --tasks-max 100");
    is_capped(&mut capped);
    services.request("limit capped --cpu-max none");
    assert_eq!(cgroup_of(capped.0.pid(), "cpu"), cgroup_of(std::process::id(), "cpu"));
    services.request("limit capped --cpu-max 20%");
    is_capped(&mut capped);
}

#[test]
fn reassigned_thread_leaves_the_cgroup() {
    let services = start(&[("few", "tasks-max = 3"), ("free", "")]);
    let mut few = Consumer::start(&services, "few");
    eventually("it is in its cgroup", || {
        cgroup_of(few.0.pid(), "pids").starts_with("/tollgate/few/")
    });
    assert_eq!(few.request_counts("fork 9"), (2, libc::EAGAIN));
    services.request(&format!("assign {} free", few.0.pid()));
    assert_eq!(cgroup_of(few.0.pid(), "pids"), cgroup_of(std::process::id(), "pids"));
    assert_eq!(few.request_counts("fork 9"), (9, 0));
}

/// An explicitly assigned thread is under all limits of its service, including later ones, whatever
/// changes in others.
#[test]
fn assigned_thread_gets_later_limits() {
    let services = start(&[("few", ""), ("other", "")]);
    let text = "[service.few]\n[service.other]\n[[rule]]\nexe = \"FOLDER/other\"\nbelongs-to = \
        \"other\"\n";
    services.apply(text);
    let mut given = Consumer::start(&services, "few");
    services.request(&format!("assign {} few", given.0.pid()));
    assert_eq!(given.request_counts("fork 1"), (1, 0));
    services.request("limit few --tasks-max 4");
    let is_limited = |when: &str| {
        let cgroup = cgroup_of(given.0.pid(), "pids");
        assert!(cgroup.starts_with("/tollgate/few/"), "{when}: {cgroup}");
    };
    is_limited("at first");
    services.request("limit other --memory-max 100M");
    is_limited("with another hierarchy");
    services.client_job("limit other --memory-max 1").finish();
    is_limited("after a change that may be refused");
    services.request("limit other --memory-max none");
    is_limited("without the other hierarchy");
    let (took, errno) = given.request_counts("fork 9");
    assert!(took < 4 && errno == libc::EAGAIN, "{took} {errno}");
    assert_eq!(services.explain(given.0.pid())["borrowed"], true);
}

#[test]
fn network_max() {
    let services = start(&[("slow", "network-max = \"1M\""), ("free", "")]);
    let [mut slow, mut free] = ["slow", "free"].map(|name| Consumer::start(&services, name));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("a port").port();
    // The test reads the other end and replies, because sent data may still be in a buffer.
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut stream = stream;
                let _ = std::io::copy(&mut stream, &mut std::io::sink());
                let _ = stream.write_all(b"had");
                let _ = stream.read(&mut [0; 1]);
            });
        }
    });
    let bytes = 3_000_000;
    let ns: u64 = slow.request(&format!("send {port} {bytes}")).parse().expect("a time");
    assert!((2_200_000_000..9_000_000_000).contains(&ns), "{bytes} bytes went in {ns} ns");
    let free_ns: u64 = free.request(&format!("send {port} {bytes}")).parse().expect("a time");
    assert!(free_ns < ns / 2, "{free_ns} ns without a limit, {ns} ns with one");
    let row = limit(&services, "slow");
    let notified =
        row["slowed_packets"].as_u64().unwrap_or(0) + row["dropped_packets"].as_u64().unwrap_or(0);
    assert!(notified > 0, "{row}");
}

/// While it works and the services are contended, a back end's thread is in its client's cgroup. It
/// returns when it has slept after its reply.
#[test]
fn backend_thread_returns_to_its_cgroup() {
    let text = rules(&[("shop", "cpu-weight = 100"), ("blog", "cpu-weight = 100")]);
    let services = ActiveServices::start(
        programs(&["shop", "blog", "backend"]),
        &format!("{text}[[rule]]\nexe = \"FOLDER/backend\"\nadopts-peer = true\n"),
    );
    let folder = services.folder.path();
    let home = cgroup_of(std::process::id(), "cpu");
    let backend = Backend::start(folder, "backend", "0", "");
    let tenant = backend.tenant(folder, "shop", "a 2000 1");
    let competitors = competitors(&services);
    let tenant = begin(tenant);
    eventually("it is its client's", || {
        cgroup_of(backend.running.pid(), "cpu").starts_with("/tollgate/shop/%2F")
    });
    let moves = services.request("limit --json").json()["moves"].clone();
    let [moved, longest, total] =
        ["moved", "longest_ns", "total_ns"].map(|name| moves[name].as_u64().expect("a number"));
    assert!(moved > 0 && longest > 0 && longest * moved >= total && longest <= total, "{moves}");
    eventually("the reply", || tenant.read("out").lines().count() == 2);
    eventually("it is its own", || cgroup_of(backend.running.pid(), "cpu") == home);
    finish_tenant(tenant);
    end(competitors);
    backend.end(folder, "shop");
}

#[test]
fn apply_changes_limits() {
    let services = start(&[("few", "tasks-max = 4"), ("other", "")]);
    let mut few = Consumer::start(&services, "few");
    let mut other = Consumer::start(&services, "other");
    eventually("it is in its cgroup", || {
        cgroup_of(few.0.pid(), "pids").starts_with("/tollgate/few/")
    });
    services.apply(&rules(&[("few", ""), ("other", "tasks-max = 3")]));
    // Both changes take effect together.
    assert_eq!(few.request_counts("fork 9"), (9, 0));
    assert_eq!(other.request_counts("fork 9"), (2, libc::EAGAIN));
    let said = services.request("limit").text();
    assert!(said.contains("other") && !said.contains("few"), "{said}");
}

#[test]
fn invalid_limit_is_refused() {
    let services = start(&[("few", "tasks-max = 4")]);
    for (command, words) in [
        ("limit nobody --cpu-max 10%", "there is no service \"nobody\""),
        ("limit few --over-limit few", "must be neither that service nor one below it"),
        ("limit root --cpu-max 10%", "root cannot have limits"),
    ] {
        services.client_job(command).finish().exits_with(125).says(words);
    }
    // The limits of the other service do not change.
    assert_eq!(limit(&services, "few")["tasks_max"], 4);
}
