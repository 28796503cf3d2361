//! The anomaly limit: when a baseline that meets anomalies returns to training.

use super::daemon::learned;
use crate::harness::cgroup::TestCgroup;
use crate::harness::daemon::{CommandServer, GuardDaemon};
use crate::harness::eventually;
use crate::harness::guarded_program::Guarded;

/// Makes more anomalies than the limit of 30, but few among 128 calls.
fn make_anomalies(server: &mut CommandServer) {
    for _ in 0..40 {
        server.send_and_wait(b"x");
        server.send_and_wait(&[b'u'; 130]);
    }
}

fn has_anomalies(daemon: &GuardDaemon) -> bool {
    daemon.program().is_some_and(|it| it["anomalies"].as_u64() >= Some(40))
}

#[test]
fn many_anomalies_at_once_end_no_tests() {
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let (daemon, mut server) = learned(&it, &cgroup, "--guard=watch");
    make_anomalies(&mut server);
    eventually("the anomalies", || has_anomalies(&daemon));
    let program = daemon.program().expect("it is known");
    assert_eq!(
        (&program["state"], &program["counted_anomalies"], &program["retrained"]),
        (&"normal".into(), &1.into(), &0.into())
    );
    server.end();
}

/// Without a wait, every anomaly counts, as in pH.
#[test]
fn a_program_that_has_changed_is_not_delayed_for_ever() {
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let options = "--guard=enforce --delay-cap 1us --normal-wait 0s";
    let (daemon, mut server) = learned(&it, &cgroup, options);
    make_anomalies(&mut server);
    eventually("it returned to training", || {
        daemon.program().is_some_and(|it| it["retrained"].as_u64() >= Some(1))
    });
    assert!(
        daemon
            .running
            .read("err")
            .contains(" is in training again and not tested: more than 30 anomalies have counted")
    );
    assert!(daemon.events().iter().any(|event| event["retrains"] == true));
    assert!(daemon.request("status").text().contains("returned to training"));
    server.end();
}
