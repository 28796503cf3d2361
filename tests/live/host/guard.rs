//! The guard and many calls, children and threads.

use crate::harness::guarded::Guarded;

#[test]
fn signal_handlers_are_no_anomalies() {
    let it = Guarded::normal(&["alarms 60000", "alarms 60000"]);
    let guard = it.run("--guard=watch", "alarms 250000");
    assert!(guard.number("calls") > 1_000_000);
    assert_eq!(guard.number("anomalies"), 0, "{:?}", guard.events());
}

#[test]
fn ten_thousand_children_are_all_judged() {
    let it = Guarded::normal(&["fork 100"]);
    let guard = it.run("--guard=watch", "fork 10000");
    // fork, wait and the child's end.
    assert!(guard.number("calls") >= 30_000, "{}", guard.0);
    assert_eq!(guard.number("anomalies"), 0, "{:?}", guard.events().first());
}

#[test]
fn two_thousand_threads_count_every_call() {
    let guard = Guarded::new().run("--guard=learn", "threads 2000 100");
    assert!(guard.number("calls") >= 200_000, "{}", guard.0);
}
