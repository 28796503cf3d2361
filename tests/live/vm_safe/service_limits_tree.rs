//! Limits of services that are below others: each thread is under its own service's and under those above.

use crate::harness::eventually;
use crate::harness::limits::{group_of, limit, rules};
use crate::harness::services::{Consumer, InForce, programs};

#[test]
fn limits_hold_for_those_below_together() {
    let text = rules(&[("one", "parent = \"both\""), ("other", "parent = \"both\"\nsockets-max = 2")]);
    let services =
        InForce::start(programs(&["one", "other"]), &format!("[service.both]\nsockets-max = 5\n\n{text}"));
    let [mut one, mut other] = ["one", "other"].map(|name| Consumer::start(&services, name));
    assert_eq!(other.takes("sockets 5"), (2, libc::EAGAIN));
    assert_eq!(one.takes("sockets 5"), (3, libc::EAGAIN));
    let sockets = services.figures("sockets");
    assert_eq!((sockets["both"], sockets["one"], sockets["other"]), (5, 3, 2));
    // Where they are counted does not change with the tree.
    services.apply(&rules(&[("one", ""), ("other", "")]));
    one.ask("close");
    other.ask("close");
    eventually("closed sockets", || {
        let sockets = services.figures("sockets");
        (sockets["one"], sockets["other"]) == (0, 0)
    });
    assert_eq!(one.takes("sockets 9"), (9, 0));
}

const TREE: [&str; 2] = ["one", "other"];

/// Two services below one with this limit, of which `other` has one of its own.
fn below(both: &str, other: &str) -> (InForce, [Consumer; 2]) {
    let text = rules(&[("one", "parent = \"both\""), ("other", &format!("parent = \"both\"\n{other}"))]);
    let services = InForce::start(programs(&TREE), &format!("[service.both]\n{both}\n\n{text}"));
    let consumers = TREE.map(|name| Consumer::start(&services, name));
    (services, consumers)
}

#[test]
fn tasks_are_counted_for_those_above_as_well() {
    let (services, [mut one, mut other]) = below("tasks-max = 7", "tasks-max = 3");
    for (consumer, group) in [(&one, "/tollgate/both/%2F"), (&other, "/tollgate/both/other/%2F")] {
        eventually("it is in its group", || group_of(consumer.0.pid(), "pids").starts_with(group));
    }
    assert_eq!(other.takes("fork 9"), (2, libc::EAGAIN));
    assert_eq!(one.takes("fork 9"), (3, libc::EAGAIN));
    assert_eq!(limit(&services, "both")["tasks"], 7);
    assert_eq!(limit(&services, "other")["tasks"], 3);
    // Without its own limit, it has what its parent has.
    services.ask("limit other --tasks-max none");
    services.ask("limit both --tasks-max 9");
    assert_eq!(other.takes("fork 9"), (2, libc::EAGAIN));
}

#[test]
fn memory_is_that_of_all_below() {
    let (services, [mut one, mut other]) = below("memory-max = \"64M\"", "memory-max = \"16M\"");
    for (consumer, group) in [(&one, "/tollgate/both/%2F"), (&other, "/tollgate/both/other/%2F")] {
        eventually("it is in its group", || group_of(consumer.0.pid(), "memory").starts_with(group));
    }
    // More than the other one may have.
    assert_eq!(one.ask("memory 32000000"), "1");
    assert_eq!(other.ask("memory 4000000"), "1");
    assert!(limit(&services, "both")["memory_bytes"].as_u64() >= Some(36_000_000));
    other.tell("memory 32000000");
    other.0.finish().exits_with(128 + libc::SIGKILL);
    one.tell("memory 64000000");
    one.0.finish().exits_with(128 + libc::SIGKILL);
}
