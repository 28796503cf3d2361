//! Scopes: separate baselines of one program by script, unit or container.

use std::fs;

use serde_json::Value;

use crate::harness::Job;
use crate::harness::cgroup::TestCgroup;
use crate::harness::guarded_program::{GuardSection, Guarded};

/// The scope of a workload whose copy is named like an interpreter: its first argument counts as
/// the script.
fn script(name: &str) -> String {
    format!("script:{}", std::env::current_dir().expect("a folder").join(name).display())
}

fn numbers<const N: usize>(program: &Value, names: [&str; N]) -> [u64; N] {
    names.map(|name| program[name].as_u64().unwrap_or_else(|| panic!("no {name} in {program}")))
}

#[test]
fn baseline_per_script() {
    let it = Guarded::named("python3.11");
    let (routine, fork) = (script("routine"), script("fork"));
    it.run("--guard=learn --scope script", "routine 100 0");
    it.run_transition_on("normalize", "python3.11[routine]");
    let anomalous = it.run("--guard=watch --scope script", "routine 100 6");
    let known = anomalous.in_scope(Some(&routine));
    let [anomalies, early_calls] = numbers(known, ["anomalies", "early_calls"]);
    assert!(anomalies >= 6 && early_calls == 0 && known["state"] == "normal", "{known}");
    assert_eq!(anomalous.events()[0]["scope"].as_str(), Some(&*routine));
    // The other script is still in training.
    let other = it.run("--guard=watch --scope script", "fork 3");
    let known = other.in_scope(Some(&fork));
    assert_eq!((numbers(known, ["anomalies"]), &known["state"]), ([0], &"training".into()));
}

/// A relative script is named by the path of its folder, of which twelve components are stored. If
/// there are twelve, the kernel side does not check whether the root comes next; user space names
/// it the same way.
#[test]
fn deep_script_path_has_one_name() {
    let it = Guarded::named("python3.11");
    for depth in [11, 12, 13] {
        let mut folder = it.folder.path().to_path_buf();
        while folder.components().count() - 1 < depth {
            folder.push("in");
        }
        fs::create_dir_all(&folder).expect("folders");
        let name = format!("script:{}/", folder.display());
        let begins = if depth < 12 { name.as_str() } else { "script:…/" };
        let mut job = it.job("--guard=watch --scope script", "routine 1 0");
        job.command.current_dir(&folder);
        let guard = GuardSection::of(&job.finish().success());
        let scope = guard.0["programs"][0]["scope"].as_str().expect("it has one").to_owned();
        assert!(scope.starts_with(begins) && scope.ends_with("/in/routine"), "{depth}: {scope}");
    }
}

/// A run in this cgroup.
fn run_in(cgroup: &TestCgroup, it: &Guarded, options: &str) -> GuardSection {
    let procs = cgroup.0.join("cgroup.procs");
    let job: Job = it.job(options, "routine 100 6");
    let joined = job.before_exec(move || fs::write(&procs, "0"));
    GuardSection::of(&joined.finish().success())
}

#[test]
fn baseline_per_unit() {
    let it = Guarded::new();
    let outer = TestCgroup::new();
    let [one, two] = ["one.service", "two.service"].map(|name| outer.inner(name));
    let (within, session) = (one.inner("worker"), outer.inner("session-3.scope"));
    run_in(&one, &it, "--guard=learn --scope unit");
    it.run_transition_on("normalize", "guarded[one]");
    let known = run_in(&within, &it, "--guard=watch --scope unit");
    let known = known.in_scope(Some("unit:one.service"));
    assert_eq!(
        (numbers(known, ["anomalies", "early_calls"]), &known["state"]),
        ([0, 0], &"normal".into())
    );
    for (cgroup, scope) in [(&two, Some("unit:two.service")), (&session, None)] {
        let other = run_in(cgroup, &it, "--guard=watch --scope unit");
        let known = other.in_scope(scope);
        assert_eq!((numbers(known, ["anomalies"]), &known["state"]), ([0], &"training".into()));
    }
}

#[test]
fn container_with_unknown_image() {
    let it = Guarded::new();
    let digits = "3f2a".repeat(16);
    let outer = TestCgroup::new();
    let container = outer.inner(&format!("docker-{digits}.scope"));
    let known = run_in(&container, &it, "--guard=learn --scope image");
    known.in_scope(Some(&format!("container:{digits}")));
    let long = outer.inner(&"x".repeat(100));
    run_in(&long, &it, "--guard=learn --scope image").in_scope(None);
}
