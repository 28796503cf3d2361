//! Programs of util-linux that stop themselves when a child stops.

use std::ffi::OsString;

use crate::harness::guarded_program::Guarded;
use crate::harness::{Job, words};

#[test]
fn runuser_runs_on_when_its_child_was_stopped() {
    let it = Guarded::new();
    let file = it.denouncing_plugin("getgid");
    let plugin = format!("--guard=enforce --delay-factor 10ms --plugin {}", file.display());
    for (options, workload) in [
        (plugin.as_str(), "routine 100 1"),
        ("--guard=learn --train-on-stops 10ms", "routine 200000 0"),
    ] {
        let command: Vec<OsString> = ["runuser", "-u", "nobody", "--"]
            .into_iter()
            .map(Into::into)
            .chain([it.program.clone().into()])
            .chain(words(workload))
            .collect();
        let mut job = Job::run(options, command);
        job.command.env("TOLLGATE_STORE", it.folder.path().join("store"));
        assert_eq!(job.finish().success().text(), "done\n", "{options}");
    }
}
