//! Scopes: one program that is many, by its script, its unit or its container.

use std::fs;

use serde_json::Value;

use crate::harness::Job;
use crate::harness::cgroup::ControlGroup;
use crate::harness::guarded::{Guard, Guarded};

/// Named as an interpreter, it takes its first word for its script.
fn script(name: &str) -> String {
    format!("script:{}/{name}", std::env::current_dir().expect("a folder").display())
}

fn numbers<const N: usize>(program: &Value, names: [&str; N]) -> [u64; N] {
    names.map(|name| program[name].as_u64().unwrap_or_else(|| panic!("no {name} in {program}")))
}

#[test]
fn each_script_has_a_baseline_of_its_own() {
    let it = Guarded::named("python3.11");
    let (routine, fork) = (script("routine"), script("fork"));
    it.run("--guard=learn --scope script", "routine 100 0");
    it.run("--guard=learn --scope script", "fork 3");
    it.change_of("normalize", "python3.11[routine]");

    let usual = it.run("--guard=watch --scope script", "routine 100 0");
    let known = usual.in_scope(Some(&routine));
    assert_eq!((numbers(known, ["anomalies", "early_calls"]), &known["state"]), ([0, 0], &"normal".into()));
    let unusual = it.run("--guard=watch --scope script", "routine 100 6");
    let known = unusual.in_scope(Some(&routine));
    assert!(numbers(known, ["anomalies"])[0] >= 6, "{known}");
    assert_eq!(unusual.events()[0]["scope"].as_str(), Some(&*routine));
    // The other one still learns, and what either does is nothing to the program without a scope.
    let other = it.run("--guard=watch --scope script", "fork 3");
    let known = other.in_scope(Some(&fork));
    assert_eq!((numbers(known, ["anomalies"]), &known["state"]), ([0], &"training".into()));
    it.run("--guard=learn", "routine 100 0");
    it.change_of("normalize", "python3.11");
    let alone = it.run("--guard=watch", "fork 3");
    assert!(numbers(alone.in_scope(None), ["anomalies"])[0] > 0, "{}", alone.0);
}

/// A run in this control group.
fn run_in(group: &ControlGroup, it: &Guarded, options: &str) -> Guard {
    let procs = group.0.join("cgroup.procs");
    let job: Job = it.job(options, "routine 100 6");
    let joined = job.before_exec(move || fs::write(&procs, "0"));
    Guard::of(&joined.finish().success())
}

#[test]
fn each_unit_has_a_baseline_of_its_own() {
    let it = Guarded::new();
    let outer = ControlGroup::new();
    let [one, two] = ["one.service", "two.service"].map(|name| outer.inner(name));
    let (within, session) = (one.inner("worker"), outer.inner("session-3.scope"));
    it.run("--guard=learn", "routine 100 0");
    it.change("normalize");
    run_in(&one, &it, "--guard=learn --scope unit");
    it.change_of("normalize", "guarded[one]");
    for group in [&one, &within] {
        let known = run_in(group, &it, "--guard=watch --scope unit");
        let known = known.in_scope(Some("unit:one.service"));
        assert_eq!(
            (numbers(known, ["anomalies", "early_calls"]), &known["state"]),
            ([0, 0], &"normal".into())
        );
    }
    let other = run_in(&two, &it, "--guard=watch --scope unit");
    let known = other.in_scope(Some("unit:two.service"));
    assert_eq!((numbers(known, ["anomalies"]), &known["state"]), ([0], &"training".into()));
    // What is no service is judged by what the program itself does.
    let none = run_in(&session, &it, "--guard=watch --scope unit");
    assert!(numbers(none.in_scope(None), ["anomalies"])[0] >= 6, "{}", none.0);
}

#[test]
fn a_container_whose_image_nobody_knows_stands_for_itself() {
    let it = Guarded::new();
    let digits = "3f2a".repeat(16);
    let outer = ControlGroup::new();
    let container = outer.inner(&format!("docker-{digits}.scope"));
    let known = run_in(&container, &it, "--guard=learn --scope image");
    known.in_scope(Some(&format!("container:{digits}")));
    let long = outer.inner(&"x".repeat(100));
    run_in(&long, &it, "--guard=learn --scope image").in_scope(None);
}
