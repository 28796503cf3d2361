//! What the machine has not, or what is not for a plugin, is refused with a sentence.

use std::fs;

use crate::harness::Finished;
use crate::harness::plugins::AtWork;

#[track_caller]
fn load(at_work: &AtWork, text: &str) -> Finished {
    let file = at_work.file("refused", text);
    at_work.ask(&format!("load {}", file.display())).exits_with(125)
}

#[test]
fn tracepoints_that_are_not_there() {
    let at_work = AtWork::start_idle();
    for (name, help) in [
        ("sched:sched_swich", "/sys/kernel/tracing/available_events has those that there are"),
        ("sched_switch", "it is written with its group: \"sched:sched_switch\""),
        ("../sched:sched_switch", "available_events"),
        // Described by the kernel, and not to be attached to.
        ("ftrace:function", "available_events"),
    ] {
        let refused = load(&at_work, &format!("on tracepoint(\"{name}\") {{}}"));
        refused.says(&format!("there is no tracepoint `{name}`: ")).says(help);
    }
}

#[test]
fn more_bytes_than_a_plugin_takes() {
    let text = "u8 input[4]; u64 input_length; on call { return input_length; }";
    let at_work = AtWork::start("takes", text);
    let bytes = at_work.path("bytes");
    let call = format!("call takes --input {}", bytes.display());
    fs::write(&bytes, "1234").expect("a file");
    assert_eq!(at_work.ask(&call).success().text(), "4\n");
    fs::write(&bytes, "12345").expect("a file");
    at_work.ask(&call).exits_with(125).says("bytes has more bytes than `input` has room for, 4");
}

#[test]
fn files_that_are_too_long() {
    let at_work = AtWork::start_idle();
    let line = format!("/*{}*/\n", " ".repeat(251));
    let most = (4 << 20) / line.len();
    let file = at_work.file("long", &(line.repeat(most - 1) + "on call { return 3; }\n"));
    assert_eq!(at_work.ask(&format!("call {}", file.display())).success().text(), "3\n");
    load(&at_work, &line.repeat(most + 1)).says("refused.ec has more than 4 MiB, and is no plugin");
    at_work
        .ask("load /dev/zero")
        .exits_with(125)
        .says("/dev/zero has more than ")
        .says("MiB, and is no plugin");
}
