//! Processes that a server starts on behalf of the process that requested them by a signal.

use std::collections::BTreeMap;

use crate::harness::job::{self, children, kill};
use crate::harness::services::{
    ActiveServices, TENANTS, assert_charged, begin, finish_tenant, own_work, programs,
};
use crate::harness::{Running, eventually};

const RULES: &str = r#"
[[rule]]
exe = "FOLDER/master"
on = "fork"
adopts-peer = true
"#;

fn start(rules: &str, ms: u32) -> (ActiveServices, Running) {
    let services = ActiveServices::start(
        programs(&["shop", "blog", "one", "master"]),
        &format!("{TENANTS}{rules}"),
    );
    let master = services.program(&format!("master master {ms}")).start();
    eventually("the master", || master.read("out").starts_with("ready"));
    (services, master)
}

/// A tenant that sends requests by this signal.
fn tenant(
    services: &ActiveServices,
    name: &str,
    master: &Running,
    signal: i32,
    times: u32,
) -> Running {
    let tenant =
        services.program(&format!("{name} ask-master {} {signal} {times}", master.pid())).start();
    eventually("the tenant", || tenant.read("out").starts_with("ready"));
    tenant
}

fn asks(services: &ActiveServices, name: &str, master: &Running, signal: i32) -> Running {
    begin(tenant(services, name, master, signal, 1))
}

/// Ends the master; returns how many nanoseconds its children have worked for each requester.
fn end(master: Running) -> BTreeMap<u32, u64> {
    master.signal(libc::SIGTERM);
    let said = master.finish().success().text();
    let lines = said.lines().filter_map(|line| line.split_once(' '));
    lines.map(|(pid, ns)| (pid.parse().expect("a number"), ns.parse().expect("a time"))).collect()
}

#[test]
fn workers_are_charged_to_the_requester() {
    let (services, master) = start(RULES, 20);
    let new = |(name, times)| (name, tenant(&services, name, &master, libc::SIGUSR1, times));
    let tenants = [("shop", 15), ("blog", 5)].map(new);
    let before = services.usage_by_service("cpu_ns");
    let tenants = tenants.map(|(name, tenant)| {
        let tenant = begin(tenant);
        (name, own_work(&tenant), tenant)
    });
    let after = services.usage_by_service("cpu_ns");
    let tenants = tenants.map(|(name, own, tenant)| {
        let pid = tenant.pid();
        finish_tenant(tenant);
        (name, pid, own)
    });
    assert_eq!(services.service_of(master.pid()), "root");
    let worked = end(master);
    let expected = tenants.map(|(name, pid, own)| (name, worked[&pid] + own));
    assert!(expected.iter().all(|(_, work)| *work >= 100_000_000), "{expected:?}");
    let all = expected.iter().map(|(_, work)| work).sum();
    for (name, work) in expected {
        assert_charged(name, after[name] - before[name], work, all);
    }
}

/// Longer than any test observes it.
const LONG_MS: u32 = 60_000;

/// Ends the master's current child, and returns for which service it worked.
fn child(services: &ActiveServices, master: &Running) -> serde_json::Value {
    eventually("a child", || children(master.pid()).len() == 1);
    let child = children(master.pid())[0];
    let why = services.explain(child);
    kill(child as i32, libc::SIGKILL);
    eventually("its end", || !children(master.pid()).contains(&child));
    why
}

#[test]
fn request_signal_counts_once() {
    let (services, master) = start(RULES, LONG_MS);
    let tenant = asks(&services, "shop", &master, libc::SIGUSR1);
    let why = child(&services, &master);
    assert_eq!((&why["service"], &why["why"]), (&"shop".into(), &"asked".into()));
    assert_eq!((&why["borrowed"], &why["rule"]["line"]), (&true.into(), &19.into()));
    own_work(&tenant);
    finish_tenant(tenant);
    // This signal is not a request.
    let tenant = asks(&services, "blog", &master, libc::SIGHUP);
    let why = child(&services, &master);
    assert_eq!((&why["service"], &why["why"]), (&"root".into(), &"inherited".into()));
    own_work(&tenant);
    finish_tenant(tenant);
    end(master);
}

#[test]
fn two_requesters_are_shared() {
    let (services, master) = start(RULES, LONG_MS);
    let first = asks(&services, "shop", &master, libc::SIGUSR1);
    eventually("a child", || children(master.pid()).len() == 1);
    // While the master waits for its child, two signals of the same number merge into one.
    let others = ["shop", "blog"].map(|name| asks(&services, name, &master, libc::SIGUSR1));
    others.iter().for_each(|other| {
        eventually("its signal", || job::is_in_call(other.pid(), libc::SYS_rt_sigtimedwait))
    });
    assert_eq!(child(&services, &master)["service"], "shop");
    assert_eq!(child(&services, &master)["service"], "shared");
    own_work(&first);
    finish_tenant(first);
    for other in others {
        other.signal(libc::SIGKILL);
        other.finish();
    }
    end(master);
}

#[test]
fn without_a_rule_children_inherit() {
    let (services, master) = start("", LONG_MS);
    let tenant = asks(&services, "shop", &master, libc::SIGUSR1);
    assert_eq!(child(&services, &master)["service"], "root");
    own_work(&tenant);
    finish_tenant(tenant);
    end(master);
}

#[test]
fn forked_worker_starts_with_zero_usage() {
    let rules = "[[rule]]\nexe = \"FOLDER/master\"\non = \"fork\"\nbelongs-to = \"blog\"\n";
    let (services, master) = start(rules, 20);
    let tenant = tenant(&services, "one", &master, libc::SIGUSR1, 10);
    let before = services.usage_by_service("cpu_ns");
    let tenant = begin(tenant);
    own_work(&tenant);
    let pid = tenant.pid();
    finish_tenant(tenant);
    let after = services.usage_by_service("cpu_ns");
    let worked = end(master);
    assert_charged("blog", after["blog"] - before["blog"], worked[&pid], worked[&pid]);
}
