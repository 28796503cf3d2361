//! Processes that a server starts on behalf of the process that requested them by a signal.

use std::collections::BTreeMap;

use crate::harness::job::{self, children, kill};
use crate::harness::services::{
    ActiveServices, TENANTS, assert_charged, begin, finish_tenant, own_work, programs,
};
use crate::harness::{Running, eventually};

const RULES: &str = r#"
[[rule]]
exe = "FOLDER/forker"
on = "fork"
adopts-peer = true
"#;

fn start(rules: &str, ms: u32) -> (ActiveServices, Running) {
    let services = ActiveServices::start(
        programs(&["shop", "blog", "one", "forker"]),
        &format!("{TENANTS}{rules}"),
    );
    let forker = services.program(&format!("forker signal-forker {ms}")).start();
    eventually("the forker", || forker.read("out").starts_with("ready"));
    (services, forker)
}

/// A tenant that sends requests by this signal.
fn tenant(
    services: &ActiveServices,
    name: &str,
    forker: &Running,
    signal: i32,
    times: u32,
) -> Running {
    let tenant = services
        .program(&format!("{name} request-signal-forker {} {signal} {times}", forker.pid()))
        .start();
    eventually("the tenant", || tenant.read("out").starts_with("ready"));
    tenant
}

fn sends_signals(services: &ActiveServices, name: &str, forker: &Running, signal: i32) -> Running {
    begin(tenant(services, name, forker, signal, 1))
}

/// Ends the forker; returns how many nanoseconds its children have worked for each requester.
fn end(forker: Running) -> BTreeMap<u32, u64> {
    forker.signal(libc::SIGTERM);
    let said = forker.finish().success().text();
    let lines = said.lines().filter_map(|line| line.split_once(' '));
    lines.map(|(pid, ns)| (pid.parse().expect("a number"), ns.parse().expect("a time"))).collect()
}

#[test]
fn workers_are_charged_to_the_requester() {
    let (services, forker) = start(RULES, 20);
    let new = |(name, times)| (name, tenant(&services, name, &forker, libc::SIGUSR1, times));
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
    assert_eq!(services.service_of(forker.pid()), "root");
    let worked = end(forker);
    let expected = tenants.map(|(name, pid, own)| (name, worked[&pid] + own));
    assert!(expected.iter().all(|(_, work)| *work >= 100_000_000), "{expected:?}");
    let all = expected.iter().map(|(_, work)| work).sum();
    for (name, work) in expected {
        assert_charged(name, after[name] - before[name], work, all);
    }
}

/// Longer than any test observes it.
const LONG_MS: u32 = 60_000;

/// Ends the forker's current child, and returns for which service it worked.
fn child(services: &ActiveServices, forker: &Running) -> serde_json::Value {
    eventually("a child", || children(forker.pid()).len() == 1);
    let child = children(forker.pid())[0];
    let why = services.explain(child);
    kill(child as i32, libc::SIGKILL);
    eventually("its end", || !children(forker.pid()).contains(&child));
    why
}

#[test]
fn request_signal_counts_once() {
    let (services, forker) = start(RULES, LONG_MS);
    let tenant = sends_signals(&services, "shop", &forker, libc::SIGUSR1);
    let why = child(&services, &forker);
    assert_eq!((&why["service"], &why["why"]), (&"shop".into(), &"asked".into()));
    assert_eq!((&why["borrowed"], &why["rule"]["line"]), (&true.into(), &19.into()));
    own_work(&tenant);
    finish_tenant(tenant);
    // This signal is not a request.
    let tenant = sends_signals(&services, "blog", &forker, libc::SIGHUP);
    let why = child(&services, &forker);
    assert_eq!((&why["service"], &why["why"]), (&"root".into(), &"inherited".into()));
    own_work(&tenant);
    finish_tenant(tenant);
    end(forker);
}

#[test]
fn two_requesters_are_shared() {
    let (services, forker) = start(RULES, LONG_MS);
    let first = sends_signals(&services, "shop", &forker, libc::SIGUSR1);
    eventually("a child", || children(forker.pid()).len() == 1);
    // While the forker waits for its child, two signals of the same number merge into one.
    let others =
        ["shop", "blog"].map(|name| sends_signals(&services, name, &forker, libc::SIGUSR1));
    others.iter().for_each(|other| {
        eventually("its signal", || job::is_in_call(other.pid(), libc::SYS_rt_sigtimedwait))
    });
    assert_eq!(child(&services, &forker)["service"], "shop");
    assert_eq!(child(&services, &forker)["service"], "shared");
    own_work(&first);
    finish_tenant(first);
    for other in others {
        other.signal(libc::SIGKILL);
        other.finish();
    }
    end(forker);
}

#[test]
fn without_a_rule_children_inherit() {
    let (services, forker) = start("", LONG_MS);
    let tenant = sends_signals(&services, "shop", &forker, libc::SIGUSR1);
    assert_eq!(child(&services, &forker)["service"], "root");
    own_work(&tenant);
    finish_tenant(tenant);
    end(forker);
}

#[test]
fn forked_worker_starts_with_zero_usage() {
    let rules = "[[rule]]\nexe = \"FOLDER/forker\"\non = \"fork\"\nbelongs-to = \"blog\"\n";
    let (services, forker) = start(rules, 20);
    let tenant = tenant(&services, "one", &forker, libc::SIGUSR1, 10);
    let before = services.usage_by_service("cpu_ns");
    let tenant = begin(tenant);
    own_work(&tenant);
    let pid = tenant.pid();
    finish_tenant(tenant);
    let after = services.usage_by_service("cpu_ns");
    let worked = end(forker);
    assert_charged("blog", after["blog"] - before["blog"], worked[&pid], worked[&pid]);
}
