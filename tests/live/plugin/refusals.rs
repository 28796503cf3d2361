//! Tollgate refuses plugins that need what the machine lacks or what plugins must not use.

use std::fs;

use crate::harness::Finished;
use crate::harness::plugins::PluginDaemon;

#[track_caller]
fn load(at_work: &PluginDaemon, text: &str) -> Finished {
    let file = at_work.file("refused", text);
    at_work.request(&format!("load {}", file.display())).exits_with(125)
}

#[test]
fn unknown_tracepoint() {
    let at_work = PluginDaemon::start_idle();
    for (name, help) in [
        ("sched:sched_swich", "did you mean \"sched:sched_switch\"?"),
        ("sched:no_such_event", "/sys/kernel/tracing/available_events lists the tracepoints"),
        ("sched_switch", "did you mean \"sched:sched_switch\"?"),
        ("no_such_event", "write it with its group: \"sched:sched_switch\""),
        ("../sched:sched_switch", "available_events"),
        // The kernel lists this tracepoint, but nothing can be attached to it.
        ("ftrace:function", "available_events"),
    ] {
        let refused = load(&at_work, &format!("on tracepoint(\"{name}\") {{}}"));
        refused.says(&format!("there is no tracepoint `{name}`: ")).says(help);
    }
}

#[test]
fn input_larger_than_its_array() {
    let text = "u8 input[4]; u64 input_length; on call { return input_length; }";
    let at_work = PluginDaemon::start("takes", text);
    let bytes = at_work.path("bytes");
    let call = format!("call takes --input {}", bytes.display());
    fs::write(&bytes, "1234").expect("a file");
    assert_eq!(at_work.request(&call).success().text(), "4\n");
    fs::write(&bytes, "12345").expect("a file");
    at_work.request(&call).exits_with(125).says("bytes has more than the 4");
}

#[test]
fn source_file_too_long() {
    let at_work = PluginDaemon::start_idle();
    let line = format!("/*{}*/\n", " ".repeat(251));
    let most = (4 << 20) / line.len();
    let file = at_work.file("long", &(line.repeat(most - 1) + "on call { return 3; }\n"));
    assert_eq!(at_work.request(&format!("call {}", file.display())).success().text(), "3\n");
    load(&at_work, &line.repeat(most + 1))
        .says("refused.ec is larger than 4 MiB, the size limit of a plugin");
    at_work
        .request("load /dev/zero")
        .exits_with(125)
        .says("/dev/zero is larger than ")
        .says("MiB, the size limit of a plugin");
}
