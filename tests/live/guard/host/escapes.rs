//! Held processes cannot free themselves, and reports count only the holds that take place.

use serde_json::Value;

use crate::harness::guarded_program::{GuardSection, Guarded};

fn restraint(event: &Value) -> &str {
    event["restraint"].as_str().unwrap_or_default()
}

fn number(event: &Value, name: &str) -> u64 {
    event[name].as_u64().unwrap_or_else(|| panic!("no {name} in {event}"))
}

/// Its Ctrl-C comes from the kernel. Only the first one frees the process, for five seconds.
#[test]
fn own_terminal_frees_a_process_once() {
    const CAP_NS: u64 = 2_000_000;
    const GRACE_NS: u64 = 5_000_000_000;
    let it = Guarded::normal(&["interrupts-itself 100 0"]);
    let options = "--guard=enforce --delay-cap 2ms --anomaly-limit 4294967295";
    // It sleeps 100 ms after each call, so that it runs for eight seconds.
    let guard = it.run(options, "interrupts-itself 100 80");
    let events = guard.events();
    let freed: Vec<_> =
        events.iter().filter(|event| restraint(event) == "requested to end").collect();
    let [first, .., last] = freed[..] else { panic!("it was never freed: {}", guard.0) };
    let lasted_ns = number(last, "at_ns") - number(first, "at_ns");
    assert!(lasted_ns < GRACE_NS + GRACE_NS / 10, "it was freed for {lasted_ns} ns");
    let latest = events.last().expect("it has events");
    assert!(number(latest, "at_ns") > number(last, "at_ns") + GRACE_NS / 5, "{latest}");

    // What the request has prevented is not counted.
    for event in &freed {
        assert_eq!((&event["action"], number(event, "held_ns")), (&"observe".into(), 0), "{event}");
    }
    let held: Vec<_> = events.iter().filter(|event| event["action"] == "delay").collect();
    assert!(held.iter().all(|event| (1..=CAP_NS).contains(&number(event, "held_ns"))));
    assert_eq!(guard.number("holds"), held.len() as u64);
    let sum: u64 = held.iter().map(|event| number(event, "held_ns")).sum();
    assert_eq!(guard.number("held_ns"), sum);
}

/// The tracer continues the process after each stop, so it is not known to be held.
#[test]
fn stops_of_a_traced_process_are_no_holds() {
    let it = Guarded::normal(&["traced-routine 100 0"]);
    let options = "--guard=enforce --respond stop --anomaly-limit 4294967295";
    let guard = it.run(options, "traced-routine 100 20");
    assert_eq!(guard.number("holds"), 0, "{}", guard.0);
    let traced = guard.events().iter().filter(|event| restraint(event) == "its tracer decides");
    assert!(traced.count() >= 20, "{}", guard.0);
}

/// A thread cannot be held at the end of a call that has no end.
#[test]
fn exit_is_not_held() {
    let it = Guarded::normal(&["routine 100 0"]);
    let ran = it.job("--guard=enforce --delay-cap 1ms", "routine 100 6").finish().success();
    let guard = GuardSection::of(&ran);
    let exit = guard.events().iter().find(|event| event["call"] == "exit_group");
    let exit = exit.unwrap_or_else(|| panic!("its exit is not anomalous: {}", guard.0));
    assert_eq!(
        (&exit["action"], restraint(exit), number(exit, "held_ns")),
        (&"observe".into(), "the call has no end", 0)
    );
    let held = guard.events().iter().filter(|event| event["action"] == "delay").count();
    assert_eq!(guard.number("holds"), held as u64, "{}", guard.0);
}
