//! Tests the runner as `scripts/test` calls it; the runner runs this same test program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

#[test]
#[ignore = "the other tests have the runner run it"]
fn passes() {}

#[test]
#[ignore = "the other tests have the runner run it"]
fn fails() {
    panic!("as it should");
}

/// Fails the first time, when a file in the runner's folder does not exist yet.
#[test]
#[ignore = "the other tests have the runner run it"]
fn passes_the_second_time() {
    let file = PathBuf::from(std::env::var_os("SEEN").expect("where to note it"));
    let is_seen = file.exists();
    fs::write(file, "").expect("a file can be written");
    assert!(is_seen, "not seen yet");
}

struct Runner {
    folder: TempDir,
}

impl Runner {
    fn new(ledger: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let own = std::env::current_exe().expect("it has a path");
        let programs = format!("own\t{}\t{}\n", folder.path().display(), own.display());
        fs::write(folder.path().join("programs"), programs).expect("a list can be written");
        fs::write(folder.path().join("flaky.md"), ledger).expect("a ledger can be written");
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn start(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_test-runner"));
        command.args(arguments).current_dir(self.folder.path()).env("SEEN", self.path("seen"));
        command.output().expect("the runner starts")
    }

    /// Runs the test, writes the output to a log, and sums it up.
    fn run(&self, test: &str) -> (bool, String) {
        let name = format!("own::{test}");
        let ran = self.start(&[
            "run",
            "--programs",
            "programs",
            "--ignored",
            "--exact",
            "--name",
            &name,
            "own",
        ]);
        let status = ran.status.code().expect("it ends by itself");
        fs::write(self.path("log"), &ran.stdout).expect("a log can be written");
        let part = format!("live:{status}:log");
        let sum = self.start(&["sum", "--flaky", "flaky.md", &part]);
        (sum.status.success(), String::from_utf8(sum.stdout).expect("text"))
    }
}

fn last(text: &str) -> &str {
    text.lines().last().unwrap_or_default()
}

#[test]
fn a_test_that_passes_is_summed_up() {
    let (is_ok, text) = Runner::new("").run("passes");
    assert!(
        is_ok && text.contains("== the slowest tests") && text.contains("s  own::passes\n"),
        "{text}"
    );
    assert_eq!(last(&text), "1 passed, 0 failed");
}

#[test]
fn a_test_that_fails_twice_fails_the_run() {
    let (is_ok, text) = Runner::new("").run("fails");
    assert!(
        !is_ok && text.contains("failed: own::fails\n") && text.contains("as it should"),
        "{text}"
    );
    assert_eq!(last(&text), "0 passed, 1 failed");
}

#[test]
fn rerun_passes_are_named_and_listed_ones_fail() {
    let test = "passes_the_second_time";
    let (is_ok, text) = Runner::new("").run(test);
    let named =
        format!("passed only when it ran again, by itself: own::{test}\n1 passed, 0 failed\n");
    assert!(is_ok && text.ends_with(&named), "{text}");
    let (is_ok, text) = Runner::new(&format!("| `own::{test}` | 2026-11-26 |\n")).run(test);
    assert!(!is_ok && text.contains("tests/flaky.md lists it already"), "{text}");
    assert_eq!(last(&text), "0 passed, 1 failed");
}

#[test]
fn a_test_that_the_list_does_not_have_is_refused() {
    let runner = Runner::new("");
    let refused = runner.start(&["run", "--programs", "programs", "elsewhere"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("lists no test program elsewhere"));
    fs::write(runner.path("only"), "own::nowhere\n").expect("a file can be written");
    let refused = runner.start(&["list", "--programs", "programs", "--only", "only", "own"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("there is no test own::nowhere"));
}

#[test]
fn cargos_messages_become_a_list() {
    let output = Command::new("sh")
        .args(["-c", r#"printf '%s\n' "$1" | "$2" programs"#, "sh"])
        .arg(concat!(
            r#"{"reason":"compiler-artifact","manifest_path":"/w/a/Cargo.toml","#,
            r#""target":{"kind":["test"],"name":"live"},"profile":{"test":true},"#,
            r#""executable":"/w/target/live"}"#
        ))
        .arg(Path::new(env!("CARGO_BIN_EXE_test-runner")))
        .output()
        .expect("sh starts");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "live\t/w/a\t/w/target/live\n");
}
