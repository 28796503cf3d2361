//! A lens in namespaces of its own, as in a container.

use std::os::unix::process::CommandExt as _;

use crate::harness::services::{ActiveServices, TENANTS, programs};
use crate::harness::{Job, eventually, tollgate, words, workload};

/// A job that runs a script of sh below unshare(1). `$0` is Tollgate.
fn unshared(options: &str, script: &str) -> Job {
    let mut job = Job::of(words(&format!("unshare {options} sh -c"))).with_row_lock_shared();
    let report = job.path("report");
    job.command.arg(script).arg(tollgate()).env("REPORT", report);
    job
}

#[test]
fn all_means_all_of_the_container() {
    // A process of the host that starts others all the time.
    let mut outside = Job::of(words("sh -c"));
    outside.command.arg("while :; do /bin/true; done").process_group(0);
    let outside = outside.start();
    eventually("it runs", || !outside.is_over());
    let script = "(while :; do sleep 0.02; done) & inside=$!
        \"$0\" lens --all --for 500ms --per process --no-toll --json -o \"$REPORT\"
        kill $inside";
    // In a chroot, "/" is not a mount point; /proc is one, and is made private.
    let ran = unshared("--pid --fork --mount-proc --propagation unchanged", script).finish();
    let report = ran.success().report();
    let commands: Vec<_> = report.groups.iter().map(|row| row.command.as_str()).collect();
    assert!(commands.contains(&"sleep"), "{commands:?}");
    assert!(!commands.contains(&"true"), "{commands:?}");
    // The numbers are those of the container, in which few processes have started.
    assert!(report.groups.iter().all(|row| row.pid < 1000), "{:?}", report.groups);
}

/// The watch in the container is the latest one for all processes, but the others are not its own.
#[test]
fn services_have_new_processes_while_a_container_is_watched() {
    let services = ActiveServices::start(programs(&["shop"]), TENANTS);
    let script = "\"$0\" lens --all --for 60s --no-toll -o \"$REPORT\"";
    let watch = unshared("--pid --fork --mount-proc --propagation unchanged", script).start();
    eventually("a watch", || watch.read("err").contains("watching"));
    let outside = services.program("shop hang").start();
    eventually("its service", || services.service_of(outside.pid()) == "shop");
    assert!(!watch.is_over());
    watch.signal_group(libc::SIGINT);
    watch.finish();
    outside.signal(libc::SIGKILL);
    outside.finish();
}

#[test]
fn times_are_those_of_the_gate_in_a_time_namespace() {
    let command = workload("sleep 80").remove(0).into_string().expect("UTF-8");
    let script = format!(
        "\"$0\" run --slower-than 50ms --no-toll --json -o \"$REPORT\" -- {command} sleep 80"
    );
    let ran = unshared("--time --monotonic 100000 --fork", &script).finish();
    let report = ran.success().report().complete();
    let sleep = report.slow.iter().find(|call| call.name == "nanosleep").expect("it was slow");
    assert!(sleep.at_ns < report.elapsed_ns, "{sleep:?}");
    assert!(report.elapsed_ns < 100_000_000_000_000, "{}", report.elapsed_ns);
}

#[test]
fn root_of_a_user_namespace_is_not_enough() {
    let script = "\"$0\" run -o \"$REPORT\" -- true";
    let ran = unshared("--user --map-root-user", script).finish().exits_with(125);
    ran.says("root of a user namespace is not enough");
}
