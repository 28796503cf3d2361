//! `tollgate lens diff`: two reports side by side.

use crate::harness::{Job, workload};

#[test]
fn two_runs() {
    let run = |calls| Job::run("", workload(&format!("calls {calls}"))).finish();
    let (before, after) = (run(1000).success(), run(2500).success());
    let diff = |options: &[&str]| {
        let mut job = Job::from_command_line("lens diff");
        job.command.args(options);
        job.command.args([before.path("report"), after.path("report")]);
        job.finish().success()
    };
    let json = diff(&["--json"]).json();
    let calls = json["calls"].as_array().expect("a list");
    let getppid = calls.iter().find(|call| call["name"] == "getppid");
    let getppid = getppid.expect("both have made it");
    assert_eq!(getppid["count"], serde_json::json!([1000, 2500]));
    let (report, row) = (after.report(), &getppid["wall_ns"][1]);
    assert_eq!(row.as_u64(), Some(report.call("getppid").wall_ns));
    let text = diff(&[]).text();
    let line = text.lines().find(|line| line.starts_with("getppid"));
    let line = line.unwrap_or_else(|| panic!("no getppid in {text}"));
    assert!(line.contains("1,000 > 2,500"), "{text}");
    let text = diff(&["--top", "1"]).text();
    assert!(text.contains("--top "), "{text}");
}

#[test]
fn not_a_report() {
    let ran = Job::from_command_line("lens diff /dev/null /no/such/report").finish();
    ran.exits_with(125).says("/dev/null is not a document written by `tollgate run --json`");
    let ran = Job::from_command_line("lens diff /no/such/report /dev/null").finish();
    ran.exits_with(125).says("cannot read /no/such/report");
}
