//! Flame graphs of programs without symbols. `host/flame.rs` tests those with symbols.

use std::fs;

use crate::harness::job::folder;
use crate::harness::{Job, Report, workload};

/// The folded stacks of a workload: their frames, and nanoseconds.
fn folded(option: &str, arguments: &str) -> (Vec<(Vec<String>, u64)>, Report) {
    let folder = folder();
    let file = folder.path().join("stacks");
    let options = format!("{option} {}", file.display());
    // The samples of a slow machine may be lost. Those of the others are scaled.
    let report = Job::run(&options, workload(arguments)).finish().success().report();
    let text = fs::read_to_string(file).expect("the graph was written");
    let stack = |line: &str| {
        let (frames, ns) = line.rsplit_once(' ').expect("a number at the end");
        (frames.split(';').map(str::to_owned).collect(), ns.parse().expect("nanoseconds"))
    };
    (text.lines().map(stack).collect(), report)
}

/// The functions of the program in a stack of this call: from its beginning to the call.
fn functions<'a>(stack: &'a [String], call: &str) -> &'a [String] {
    let call = stack.iter().position(|frame| frame == call).expect("it is the call's");
    &stack[1..call]
}

#[track_caller]
fn assert_unwound(stack: &[String], call: &str) {
    let functions = functions(stack, call);
    assert_eq!(stack[0], "workloads", "{stack:?}");
    assert!(functions.len() >= 3, "{stack:?}");
    assert!(functions.iter().all(|name| name.starts_with("workloads+0x")), "{stack:?}");
}

#[test]
fn blocked_time_has_the_stacks_of_sleeps() {
    let (stacks, report) = folded("--flame-blocked", "sleep 20 50");
    let is_sleep = |stack: &[String]| stack.iter().any(|frame| frame == "nanosleep");
    let sleeps: Vec<_> = stacks.iter().filter(|(stack, _)| is_sleep(stack)).collect();
    let time: u64 = sleeps.iter().map(|(_, ns)| ns).sum();
    assert_eq!(time, report.call("nanosleep").blocked_ns);
    for (stack, _) in &sleeps {
        assert_unwound(stack, "nanosleep");
        let is_kernel = |frame: &String| frame.starts_with("hrtimer_nanosleep_[k]");
        assert!(stack.iter().any(is_kernel), "{stack:?}");
    }
    let all: u64 = stacks.iter().map(|(_, ns)| ns).sum();
    assert_eq!(all, report.calls.iter().map(|call| call.blocked_ns).sum::<u64>());
}

#[test]
fn processor_time_has_the_stacks_of_long_reads() {
    // It lives until Tollgate has read its mappings, also on a busy machine.
    let (stacks, report) = folded("--flame-cpu", "spin-read-then-sleep 10 2000");
    let is_read = |stack: &[String]| stack.iter().any(|frame| frame == "read");
    let is_zeroed =
        |stack: &[String]| is_read(stack) && stack.iter().any(|frame| frame == "read_zero_[k]");
    let time = |is: &dyn Fn(&[String]) -> bool| -> u64 {
        stacks.iter().filter(|(stack, _)| is(stack)).map(|(_, ns)| ns).sum()
    };
    assert_eq!(time(&is_read), report.call("read").cpu_ns);
    // The rest is in interrupts, and in faults of the buffer.
    assert!(time(&is_zeroed) > time(&is_read) / 2, "{stacks:?}");
    for (stack, _) in stacks.iter().filter(|(stack, _)| is_zeroed(stack)) {
        assert_unwound(stack, "read");
    }
}

#[test]
fn picture_is_whole_and_noted() {
    let folder = folder();
    let file = folder.path().join("blocked.SVG");
    let options = format!("--flame-blocked {}", file.display());
    let report = Job::run(&options, workload("sleep 20")).finish().success().report().complete();
    let text = fs::read_to_string(&file).expect("the picture was written");
    assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"), "{text}");
    assert!(text.contains("Blocked time in system calls: ") && text.contains(">nanosleep ("));
    let is_its = |note: &String| note.starts_with("flame graph in ") && note.contains("sample");
    assert!(report.notes.iter().any(is_its), "{:?}", report.notes);
}
