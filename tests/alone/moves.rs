//! Threads are moved between control groups for services that compete, and for nobody else.

use crate::harness::eventually;
use crate::harness::limits::{competitors, end, moves, rules};
use crate::harness::processors::{pin, preemptions, run_first};
use crate::harness::services::{Backend, InForce, begin, over, own_work, programs};

/// A back end with limits on whom it works for.
fn services() -> InForce {
    let limits = [("shop", "cpu-weight = 100"), ("blog", "cpu-weight = 100")];
    let rules = format!("{}[[rule]]\nexe = \"FOLDER/backend\"\nadopts-peer = true\n", rules(&limits));
    InForce::start(programs(&["shop", "blog", "backend"]), &rules)
}

/// Also those that are not made: the kernel may refuse to move a real-time thread.
const REQUESTED: [&str; 4] = ["moved", "needless", "put_off", "failed"];

/// 30 requests of 10 ms.
const WORK: &str = "a 10 30 1";

#[test]
fn competing_threads_are_moved() {
    let services = services();
    let backend = Backend::start(services.folder.path(), "backend", "0", "");
    let tenant = backend.tenant(services.folder.path(), "shop", WORK);
    let competitors = competitors(&services);
    let tenant = begin(tenant);
    own_work(&tenant);
    over(tenant);
    end(competitors);
    assert!(moves(&services, &["moved"]) > 0);
}

/// The daemon's own threads, which move others, preempt services, but do not compete with them. Real-time
/// priorities keep all other threads from preempting.
#[test]
fn nobody_is_moved_for_the_daemon() {
    let services = services();
    let backend = Backend::start(services.folder.path(), "backend", "0", "");
    let tenant = backend.tenant(services.folder.path(), "shop", WORK);
    for (process, priority) in [(&services.daemon, 2), (&backend.running, 1), (&tenant, 1)] {
        pin(process.pid(), 0);
        run_first(process.pid(), priority);
    }
    let asked_before = moves(&services, &REQUESTED);
    let preempted_before = preemptions(backend.running.pid());
    let tenant = begin(tenant);
    eventually("the tenant's work", || {
        assert!(!tenant.is_over(), "{}", tenant.read("err"));
        // Each question wakes threads of the daemon.
        moves(&services, &REQUESTED);
        tenant.read("out").lines().count() == 2
    });
    let preemptions = preemptions(backend.running.pid()) - preempted_before;
    over(tenant);
    let asked = moves(&services, &REQUESTED) - asked_before;
    assert!(preemptions > 0 && asked == 0, "preempted {preemptions} times, to be moved {asked} times");
}
