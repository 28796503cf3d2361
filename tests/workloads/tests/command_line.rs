//! The output and exit statuses of the workloads.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

fn run(command: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_workloads"))
        .args(command.split_whitespace())
        .output()
        .expect("workloads is built")
}

fn stdout(command: &str) -> String {
    let finished = run(command);
    assert!(finished.status.success(), "{command}: {finished:?}");
    String::from_utf8(finished.stdout).expect("output is text")
}

/// The number after `"name":` in a line of JSON.
fn member(json: &str, name: &str) -> u64 {
    let (_, rest) = json.split_once(&format!("\"{name}\":")).expect(json);
    let end = rest.find(|c: char| !c.is_ascii_digit()).expect(json);
    rest[..end].parse().expect(json)
}

#[test]
fn wrong_arguments_exit_with_2_and_a_sentence() {
    for (command, sentence) in [
        ("nothing", "workloads: no sub-command \"nothing\": `workloads --help` lists them"),
        ("calls", "workloads calls: the argument N is missing"),
        (
            "calls many",
            "workloads calls: N must be a whole number from 0 to 1000000000, not \"many\"",
        ),
        ("calls 1 2", "workloads calls: unexpected argument \"2\""),
        ("calls 1 --threads", "workloads calls: the argument T is missing"),
        (
            "calls 1 --threads 0",
            "workloads calls: T must be a whole number from 1 to 20000, not \"0\"",
        ),
        ("exit 256", "workloads exit: N must be a whole number from 0 to 255, not \"256\""),
        ("elf32", "workloads elf32: the argument FILE is missing"),
    ] {
        let finished = run(command);
        assert_eq!(finished.status.code(), Some(2), "{command}");
        assert_eq!(String::from_utf8_lossy(&finished.stderr).trim_end(), sentence);
        assert!(finished.stdout.is_empty(), "{command}");
    }
}

#[test]
fn failure_exits_with_1_and_a_message() {
    let finished = run("slow-open /nonexistent");
    assert_eq!(finished.status.code(), Some(1));
    let message = String::from_utf8_lossy(&finished.stderr);
    assert!(message.starts_with("workloads slow-open: cannot make a FIFO at /nonexistent/"));
}

#[test]
fn no_argument_prints_the_help() {
    let finished = run("");
    assert_eq!(finished.status.code(), Some(2));
    assert_eq!(String::from_utf8_lossy(&finished.stderr), stdout("--help"));
}

#[test]
fn statuses_and_signals_arrive() {
    assert_eq!(run("exit 0").status.code(), Some(0));
    assert_eq!(run("exit 7").status.code(), Some(7));
    assert_eq!(run("kill-self 13").status.signal(), Some(13));
    assert_eq!(run("kill-self 11").status.signal(), Some(11));
    assert!(!run("kill-self 11").status.core_dumped());
    // SIGSYS
    assert_eq!(run("seccomp-kill").status.signal(), Some(31));
}

#[test]
fn printed_numbers_are_plausible() {
    let slept = stdout("sleep 20 2");
    assert!(member(&slept, "wall_ns") >= 40_000_000, "{slept}");
    assert!(member(&slept, "cpu_ns") < 40_000_000, "{slept}");

    let blocked = stdout("pipe-block 10 3");
    assert!(member(&blocked, "blocked_ns") >= 20_000_000, "{blocked}");

    let faults = stdout("faults 1000");
    assert!(member(&faults, "minor_faults") >= 1000, "{faults}");

    // The thread never blocks: it runs or waits to run.
    let starved = stdout("starved 1000 0");
    let [wall, cpu, wait] = ["wall_ns", "cpu_ns", "wait_ns"].map(|name| member(&starved, name));
    assert!(wall.abs_diff(cpu + wait) < wall / 10, "{starved}");
    assert!(wait > cpu, "{starved}");

    let daemon = stdout("daemon 10");
    assert!(daemon.trim_end().parse::<u32>().is_ok(), "{daemon}");
    assert!(stdout("busy-writer 10").trim_end().parse::<u64>().is_ok());
}
