//! In-band records. The workloads compare them with what they know.

use std::ffi::OsString;

use crate::harness::{Job, eventually, workload};

fn run(options: &str, command: Vec<OsString>) -> Job {
    Job::run(&format!("--in-band {options}"), command)
}

fn check(options: &str, arguments: &str) {
    let ran = run(options, workload(arguments)).finish().success();
    assert!(ran.text().contains("ok"), "{}", ran.text());
    ran.report().complete();
}

#[test]
fn records_are_those_of_the_program() {
    check("", "in-band-records");
}

#[test]
fn records_need_no_rights() {
    check("-u 65534:65534", "in-band-records");
    check("-u 65534:65534", "in-band-sleeps");
}

#[test]
fn sleeps_have_their_sites() {
    check("", "in-band-sleeps");
    // The lens does not look for sites of its own.
    check("--no-sites", "in-band-sleeps");
}

#[test]
fn all_calls_are_timed_when_the_lens_samples() {
    check("--sample", "in-band-records");
    check("--sample", "in-band-concurrent 20000");
}

#[test]
fn concurrent_reader_finds_no_torn_record() {
    check("", "in-band-concurrent 300000");
}

#[test]
fn threads_children_and_programs_have_their_own() {
    check("", "in-band-inherit");
}

#[test]
fn memory_of_others_is_out_of_reach() {
    let other = run("", workload("in-band-until-stale")).start();
    eventually("its records", || other.read("out").contains("reading"));
    let pid = other.child_running("workloads");
    for user in ["", "-u 65534:65534"] {
        check(user, &format!("in-band-isolation {pid}"));
    }
}

#[test]
fn records_of_a_killed_tollgate_are_stale() {
    let running = run("", workload("in-band-until-stale")).start();
    eventually("its records", || running.read("out").contains("reading"));
    running.signal(libc::SIGKILL);
    eventually("its end", || running.is_over());
    eventually("the end of its records", || running.read("out").contains("stale"));
}

/// Another session keeps the gate, and the command in it.
#[test]
fn records_end_with_their_session() {
    let running = run("", workload("in-band-until-stale")).start();
    eventually("its records", || running.read("out").contains("reading"));
    let pid = running.child_running("workloads");
    let lens = Job::lens(&format!("-p {pid}")).start();
    eventually("a watch", || lens.read("err").contains("watching"));
    running.signal(libc::SIGKILL);
    eventually("its end", || running.is_over());
    eventually("the end of its records", || running.read("out").contains("stale"));
    lens.signal(libc::SIGINT);
    lens.finish().success();
}

#[test]
fn program_without_tollgate_gets_an_error() {
    let ran = Job::of(workload("in-band-records")).finish();
    assert_eq!(ran.status, 1);
    assert!(ran.err.contains("TOLLGATE_IN_BAND is not set"), "{}", ran.err);
}
