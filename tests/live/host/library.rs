//! Programs that say themselves for which service they work, by the library for C.

use std::path::Path;

use crate::harness::library::example;
use crate::harness::services::{InForce, programs};
use crate::harness::{Job, words};

const RULES: &str = "[service.shop]\n[service.blog]\n";

fn run(services: &InForce, program: &Path, names: &[&str]) -> Job {
    let mut job = Job::of([program.into()].into_iter().chain(names.iter().map(Into::into)).collect());
    job.command.env("TOLLGATE_SOCKET", services.path("control"));
    job
}

#[test]
fn a_program_says_for_whom_it_works() {
    let services = InForce::start(programs(&[]), RULES);
    let program = example("service", services.folder.path());
    let ran = run(&services, &program, &["shop", "blog", "shop"]).finish().success();
    assert_eq!(ran.text(), "shop\nblog\nshop\n");
    let cpu = services.figures("cpu_ns");
    // It does the same work each time, on a machine that may be busy.
    assert!(cpu["shop"] > cpu["blog"] / 2 && cpu["blog"] > cpu["shop"] / 8, "{cpu:?}");
}

/// Its own numbers are not those that the daemon sees.
#[test]
fn a_program_in_a_container_says_for_whom_it_works() {
    let services = InForce::start(programs(&[]), RULES);
    let program = example("service", services.folder.path());
    let mut job = Job::of(words("unshare --pid --fork"));
    job.command.arg(&program).args(["shop", "blog"]).env("TOLLGATE_SOCKET", services.path("control"));
    assert_eq!(job.finish().success().text(), "shop\nblog\n");
}

/// In Rust: itself, and another one.
#[test]
fn a_program_says_for_whom_another_one_works() {
    let services = InForce::start(programs(&["one"]), RULES);
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
fn what_cannot_be_done_is_said() {
    let services = InForce::start(programs(&[]), RULES);
    let program = example("service", services.folder.path());
    let refused = run(&services, &program, &["nobody"]).finish().exits_with(1);
    refused.says("there is no service \"nobody\"");
    let mut job = run(&services, &program, &["shop"]);
    job.command.env("TOLLGATE_SOCKET", services.path("none"));
    job.finish().exits_with(1).says("cannot ask the daemon at").says("No such file");
}
