//! Limits of nested services: each thread is under the limits of its own service and of the
//! ancestors.

use crate::harness::eventually;
use crate::harness::service_limits::{cgroup_of, limit, rules};
use crate::harness::services::{ActiveServices, Consumer, programs};

#[test]
fn limit_covers_descendants() {
    let text =
        rules(&[("one", "parent = \"both\""), ("other", "parent = \"both\"\nsockets-max = 2")]);
    let services = ActiveServices::start(
        programs(&["one", "other"]),
        &format!("[service.both]\nsockets-max = 5\n\n{text}"),
    );
    let [mut one, mut other] = ["one", "other"].map(|name| Consumer::start(&services, name));
    assert_eq!(other.request_counts("sockets 5"), (2, libc::EAGAIN));
    assert_eq!(one.request_counts("sockets 5"), (3, libc::EAGAIN));
    let sockets = services.usage_by_service("sockets");
    assert_eq!((sockets["both"], sockets["one"], sockets["other"]), (5, 3, 2));
    // A change of the tree does not change where sockets are counted.
    services.apply(&rules(&[("one", ""), ("other", "")]));
    one.request("close");
    other.request("close");
    eventually("closed sockets", || {
        let sockets = services.usage_by_service("sockets");
        (sockets["one"], sockets["other"]) == (0, 0)
    });
    assert_eq!(one.request_counts("sockets 9"), (9, 0));
}

const TREE: [&str; 2] = ["one", "other"];

/// Starts two services below one with this limit, of which `other` has a limit of its own.
fn below(both: &str, other: &str) -> (ActiveServices, [Consumer; 2]) {
    let text =
        rules(&[("one", "parent = \"both\""), ("other", &format!("parent = \"both\"\n{other}"))]);
    let services =
        ActiveServices::start(programs(&TREE), &format!("[service.both]\n{both}\n\n{text}"));
    let consumers = TREE.map(|name| Consumer::start(&services, name));
    (services, consumers)
}

#[test]
fn tasks_count_for_ancestors() {
    let (services, [mut one, mut other]) = below("tasks-max = 7", "tasks-max = 3");
    for (consumer, cgroup) in [(&one, "/tollgate/both/%2F"), (&other, "/tollgate/both/other/%2F")] {
        eventually("it is in its cgroup", || {
            cgroup_of(consumer.0.pid(), "pids").starts_with(cgroup)
        });
    }
    assert_eq!(other.request_counts("fork 9"), (2, libc::EAGAIN));
    assert_eq!(one.request_counts("fork 9"), (3, libc::EAGAIN));
    assert_eq!(limit(&services, "both")["tasks"], 7);
    assert_eq!(limit(&services, "other")["tasks"], 3);
    // Without a limit of its own, it has its parent's.
    services.request("limit other --tasks-max none");
    services.request("limit both --tasks-max 9");
    assert_eq!(other.request_counts("fork 9"), (2, libc::EAGAIN));
}

#[test]
fn memory_covers_descendants() {
    let (services, [mut one, mut other]) = below("memory-max = \"64M\"", "memory-max = \"16M\"");
    for (consumer, cgroup) in [(&one, "/tollgate/both/%2F"), (&other, "/tollgate/both/other/%2F")] {
        eventually("it is in its cgroup", || {
            cgroup_of(consumer.0.pid(), "memory").starts_with(cgroup)
        });
    }
    // More than the other service may use.
    assert_eq!(one.request("memory 32000000"), "1");
    assert_eq!(other.request("memory 4000000"), "1");
    assert!(limit(&services, "both")["memory_bytes"].as_u64() >= Some(36_000_000));
    other.send("memory 32000000");
    other.0.finish().exits_with(128 + libc::SIGKILL);
    one.send("memory 64000000");
    one.0.finish().exits_with(128 + libc::SIGKILL);
}
