//! Threads are moved between control groups for services that compete, and for nobody else.

use crate::harness::eventually;
use crate::harness::limits::{competitors, end, rules};
use crate::harness::processors::{pin, preemptions, run_first};
use crate::harness::services::{Backend, InForce, begin, over, own_work, programs};

/// A back end with limits on whom it works for.
fn services() -> InForce {
    let limits = [("shop", "cpu-weight = 100"), ("blog", "cpu-weight = 100")];
    let rules = format!("{}[[rule]]\nexe = \"FOLDER/backend\"\nadopts-peer = true\n", rules(&limits));
    InForce::start(programs(&["shop", "blog", "backend"]), &rules)
}

/// How many moves were made, and how many were requested.
fn moves(services: &InForce) -> [u64; 2] {
    let moves = services.ask("limit --json").json()["moves"].clone();
    let sum = |names: &[&str]| names.iter().map(|name| moves[name].as_u64().expect("a number")).sum();
    [sum(&["moved"]), sum(&["moved", "needless", "put_off", "failed"])]
}

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
    assert!(moves(&services)[0] > 0);
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
    let (asked_before, preempted_before) = (moves(&services)[1], preemptions(backend.running.pid()));
    let tenant = begin(tenant);
    eventually("the tenant's work", || {
        assert!(!tenant.is_over(), "{}", tenant.read("err"));
        // Each question wakes threads of the daemon.
        moves(&services);
        tenant.read("out").lines().count() == 2
    });
    let preemptions = preemptions(backend.running.pid()) - preempted_before;
    over(tenant);
    // Not only those that are made: the kernel may refuse to move a real-time thread.
    let asked = moves(&services)[1] - asked_before;
    assert!(preemptions > 0 && asked == 0, "preempted {preemptions} times, to be moved {asked} times");
}
