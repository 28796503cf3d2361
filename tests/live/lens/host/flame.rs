//! Flame graphs of a C program whose functions call each other in a known way.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::job::folder;
use crate::harness::{Finished, Job, project, words};

/// Compiles the program as Debian compiles its packages: without frame pointers.
fn compiled(folder: &Path, name: &str, options: &str) -> PathBuf {
    let program = folder.join(name);
    let mut compiler = Command::new("gcc");
    compiler.args(words("-O2 -fomit-frame-pointer -Wall -Wextra -Werror -pthread"));
    compiler.args(words(options)).arg("-o").arg(&program);
    compiler.arg(project().join("tests/live/lens/host/chains.c"));
    assert!(compiler.status().expect("gcc is installed").success());
    program
}

/// Runs the program; returns its folded stacks and what the report says.
fn folded(program: &Path, option: &str) -> (BTreeMap<Vec<String>, u64>, Finished) {
    let folder = folder();
    let file = folder.path().join("flame");
    let options = format!("{option} {}", file.display());
    let ran = Job::run(&options, vec![program.into()]).finish().success();
    let text = std::fs::read_to_string(&file).expect("the graph was written");
    let stack = |line: &str| {
        let (frames, ns) = line.rsplit_once(' ').expect("a number at the end");
        let frames = frames.split(';').map(str::to_owned).collect();
        (frames, ns.parse().expect("nanoseconds"))
    };
    (text.lines().map(stack).collect(), ran)
}

/// The time of the stacks that have these frames one after the other.
fn time_of(stacks: &BTreeMap<Vec<String>, u64>, chain: &[&str]) -> u64 {
    let has = |stack: &[String]| stack.windows(chain.len()).any(|part| part == chain);
    stacks.iter().filter(|(stack, _)| has(stack)).map(|(_, ns)| ns).sum()
}

fn assert_chains(name: &str, options: &str) {
    let folder = folder();
    let program = compiled(folder.path(), name, options);
    let (stacks, ran) = folded(&program, "--flame-blocked");
    let report = ran.report();
    let ms = |chain: &[&str]| time_of(&stacks, chain) / 1_000_000;
    let show = || format!("{stacks:#?}\n{:?}", report.notes);

    // Each function has slept three times; on a busy machine, a sleep ends late. One vendor's
    // kernel does not report about one switch in 100, so a sleep may have no sample.
    let (long, short) = (
        ms(&["main", "rounds", "long_sleep", "innermost_sleep"]),
        ms(&["main", "rounds", "short_sleep", "innermost_sleep"]),
    );
    assert!(long >= 2 * 60 && short >= 2 * 20 - 5 && long > short, "{long} {short}: {}", show());
    assert!(ms(&["rounds", "wait_for_byte"]) >= 2 * 35, "{}", show());
    assert!(ms(&["rounds", "wait_for_word", "syscall", "futex"]) >= 2 * 35, "{}", show());
    // The thread has a stack of its own, which does not lead to main.
    let waker: Vec<_> = stacks.keys().filter(|stack| stack.contains(&"waker".to_owned())).collect();
    assert!(!waker.is_empty() && !waker.iter().any(|stack| stack.contains(&"main".to_owned())));
    // The innermost frames of a stack that is deeper than the copy are there.
    assert!(ms(&["[truncated]", "deep_sleep", "deep_sleep"]) >= 20 - 5, "{}", show());
    for (stack, _) in stacks.iter().filter(|(stack, _)| stack.contains(&"long_sleep".to_owned())) {
        assert_eq!(stack[0], name, "{stack:?}");
        assert!(stack.contains(&"clock_nanosleep".to_owned()), "{stack:?}");
        assert!(stack.last().is_some_and(|frame| frame.ends_with("_[k]")), "{stack:?}");
        assert!(!stack.contains(&"[unknown]".to_owned()), "{stack:?}");
    }

    // The widths are the times of the report.
    for call in report.calls.iter().filter(|call| call.blocked_ns > 0) {
        let is_its = |stack: &[String]| stack.contains(&call.name);
        let sum: u64 = stacks.iter().filter(|(stack, _)| is_its(stack)).map(|(_, ns)| ns).sum();
        // A function may have the name of another call.
        assert!(sum >= call.blocked_ns, "{}: {sum} of {}", call.name, call.blocked_ns);
    }
    let blocked: u64 = report.calls.iter().map(|call| call.blocked_ns).sum();
    assert_eq!(stacks.values().sum::<u64>(), blocked, "{}", show());
}

#[test]
fn blocked_stacks_of_a_position_independent_program() {
    assert_chains("chains-pie", "-pie");
}

#[test]
fn blocked_stacks_of_a_static_program() {
    assert_chains("chains-static", "-static");
}

#[test]
fn blocked_stacks_of_a_program_at_fixed_addresses() {
    assert_chains("chains-fixed", "-no-pie");
}
