//! Programs that bind themselves to services, with the library for C.

use std::path::Path;

use crate::harness::library::example;
use crate::harness::services::{ActiveServices, programs};
use crate::harness::{Job, words};

const RULES: &str = "[service.shop]\n[service.blog]\n";

fn run(services: &ActiveServices, program: &Path, names: &[&str]) -> Job {
    let mut job =
        Job::of([program.into()].into_iter().chain(names.iter().map(Into::into)).collect());
    job.command.env("TOLLGATE_SOCKET", services.path("control"));
    job
}

#[test]
fn program_binds_itself() {
    let services = ActiveServices::start(programs(&[]), RULES);
    let program = example("service", services.folder.path());
    let ran = run(&services, &program, &["shop", "blog", "shop"]).finish().success();
    assert_eq!(ran.text(), "shop\nblog\nshop\n");
    let cpu = services.usage_by_service("cpu_ns");
    // The program does the same work for each service; the bounds allow for a busy machine.
    assert!(cpu["shop"] > cpu["blog"] / 2 && cpu["blog"] > cpu["shop"] / 8, "{cpu:?}");
}

/// In its PID namespace, the program has other PIDs than the daemon sees.
#[test]
fn program_in_a_pid_namespace_binds_itself() {
    let services = ActiveServices::start(programs(&[]), RULES);
    let program = example("service", services.folder.path());
    let mut job = Job::of(words("unshare --pid --fork"));
    job.command
        .arg(&program)
        .args(["shop", "blog"])
        .env("TOLLGATE_SOCKET", services.path("control"));
    assert_eq!(job.finish().success().text(), "shop\nblog\n");
}

/// A program in Rust binds itself and another process.
#[test]
fn program_binds_another_process() {
    let services = ActiveServices::start(programs(&["one"]), RULES);
    let other = services.program("one calls-on-input 1").start();
    let assign = |words: &str| {
        let mut job = services.program(&format!("one assign {words}"));
        job.command.env("TOLLGATE_SOCKET", services.path("control"));
        job.finish()
    };
    assert_eq!(assign("0 shop").success().text(), "shop\n");
    assert_eq!(assign(&format!("{} blog", other.pid())).success().text(), "blog\n");
    assert_eq!(services.service_of(other.pid()), "blog");
    assign("0 nobody").exits_with(1).says("there is no service \"nobody\"");
}

#[test]
fn errors_have_sentences() {
    let services = ActiveServices::start(programs(&[]), RULES);
    let program = example("service", services.folder.path());
    let refused = run(&services, &program, &["nobody"]).finish().exits_with(1);
    refused.says("there is no service \"nobody\"");
    let mut job = run(&services, &program, &["shop"]);
    job.command.env("TOLLGATE_SOCKET", services.path("none"));
    job.finish().exits_with(1).says("cannot send a request to the daemon at").says("No such file");
}
