//! Threads are moved between control groups for services that compete, and for nobody else.

use crate::harness::limits::{competitors, end, rules};
use crate::harness::services::{Backend, InForce, begin, over, own_work, programs};

/// Other work on a shared machine may make threads wait; one that is always moved is so in all attempts.
const ATTEMPTS: usize = 5;

/// By a back end with limits on whom it works for, while it has 30 requests of 10 ms.
fn moved(compete: bool) -> u64 {
    let limits = [("shop", "cpu-weight = 100"), ("blog", "cpu-weight = 100")];
    let rules = format!("{}[[rule]]\nexe = \"FOLDER/backend\"\nadopts-peer = true\n", rules(&limits));
    let services = InForce::start(programs(&["shop", "blog", "backend"]), &rules);
    let folder = services.folder.path();
    let backend = Backend::start(folder, "backend", "0", "");
    let tenant = backend.tenant(folder, "shop", "a 10 30 1");
    let competitors = compete.then(|| competitors(&services));
    let tenant = begin(tenant);
    own_work(&tenant);
    over(tenant);
    end(competitors.unwrap_or_default());
    let moved = services.ask("limit --json").json()["moves"]["moved"].as_u64().expect("a number");
    backend.end(folder, "shop");
    moved
}

#[test]
fn nobody_is_moved_without_competition() {
    let alone: Vec<_> = (0..ATTEMPTS).map(|_| moved(false)).collect();
    let beside_others = moved(true);
    eprintln!("moved alone: {alone:?}, beside others: {beside_others}");
    assert!(alone.contains(&0) && beside_others > 0, "alone {alone:?}, beside others {beside_others}");
}
