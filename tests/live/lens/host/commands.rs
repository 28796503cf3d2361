//! `--per command`: programs whose names are longer than the kernel's name of a thread.

use std::fs;
use std::path::Path;

use crate::harness::job::copy;
use crate::harness::{Job, words, workload};

#[test]
fn long_commands_are_told_apart() {
    let mut job = Job::run("--per command", words("sh"));
    let names = ["a-very-long-program-name-one", "a-very-long-program-name-two"];
    let script = job.path("script");
    let mut lines = String::new();
    for name in names {
        let program = job.path(name);
        copy(Path::new(&workload("exit 0")[0]), &program);
        lines += &format!("{} calls 10\n", program.display());
    }
    fs::write(&script, lines + ":\n").expect("the job's folder is ours");
    job.command.arg(script);
    let report = job.finish().success().report().complete();
    for name in names {
        let row = report.groups.iter().find(|row| row.command == name);
        assert_eq!(row.map(|row| row.count("getppid")), Some(10), "{name}: {:?}", report.groups);
    }
}
