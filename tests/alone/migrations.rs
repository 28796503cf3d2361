//! Threads are migrated between cgroups only for services that are contended.

use crate::harness::eventually;
use crate::harness::scheduling::{pin, preemptions, run_first};
use crate::harness::service_limits::{competitors, end, moves, rules};
use crate::harness::services::{ActiveServices, Backend, begin, finish_tenant, own_work, programs};

/// Starts services for a back end and its two clients, which have limits.
fn services() -> ActiveServices {
    let limits = [("shop", "cpu-weight = 100"), ("blog", "cpu-weight = 100")];
    let rules =
        format!("{}[[rule]]\nexe = \"FOLDER/backend\"\nadopts-peer = true\n", rules(&limits));
    ActiveServices::start(programs(&["shop", "blog", "backend"]), &rules)
}

/// The counts of all requested migrations, including those that did not happen: the kernel may
/// refuse to migrate a real-time thread.
const REQUESTED: [&str; 4] = ["moved", "needless", "put_off", "failed"];

/// 30 requests of 10 ms.
const WORK: &str = "a 10 30 1";

#[test]
fn competing_threads_are_migrated() {
    let services = services();
    let backend = Backend::start(services.folder.path(), "backend", "0", "");
    let tenant = backend.tenant(services.folder.path(), "shop", WORK);
    let competitors = competitors(&services);
    let tenant = begin(tenant);
    own_work(&tenant);
    finish_tenant(tenant);
    end(competitors);
    assert!(moves(&services, &["moved"]) > 0);
}

/// The daemon's own threads, which migrate others, preempt the threads of services, but this is not
/// contention. Real-time priorities keep all other threads from preempting.
#[test]
fn preemption_by_the_daemon_migrates_nobody() {
    let services = services();
    let backend = Backend::start(services.folder.path(), "backend", "0", "");
    let tenant = backend.tenant(services.folder.path(), "shop", WORK);
    for (process, priority) in [(&services.daemon, 2), (&backend.running, 1), (&tenant, 1)] {
        pin(process.pid(), 0);
        run_first(process.pid(), priority);
    }
    let requested_before = moves(&services, &REQUESTED);
    let preempted_before = preemptions(backend.running.pid());
    let tenant = begin(tenant);
    eventually("the tenant's work", || {
        assert!(!tenant.is_over(), "{}", tenant.read("err"));
        // Each request wakes threads of the daemon.
        moves(&services, &REQUESTED);
        tenant.read("out").lines().count() == 2
    });
    let preemptions = preemptions(backend.running.pid()) - preempted_before;
    finish_tenant(tenant);
    let requested = moves(&services, &REQUESTED) - requested_before;
    assert!(
        preemptions > 0 && requested == 0,
        "preempted {preemptions} times, {requested} migrations requested"
    );
}
