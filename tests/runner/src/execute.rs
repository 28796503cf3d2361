//! Runs one test in a process of its own.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::leftovers::{self, TestMark};
use crate::programs::TestProgram;

/// Interval of the checks for a test's end: a hundredth of the time that it has run, within these
/// limits.
const POLL_LIMITS: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(50)];

pub struct TestExit {
    pub is_ok: bool,
    pub took: Duration,
    /// The test's output without libtest's own lines, and how the test ended unless it ended by
    /// itself.
    pub output: String,
}

/// Runs the test at `path` of a program.
pub fn execute(program: &TestProgram, path: &str, is_ignored: bool, limit: Duration) -> TestExit {
    let began = Instant::now();
    let (is_ok, output) = match attempt(program, path, is_ignored, limit) {
        Ok(done) => done,
        Err(error) => (false, format!("{error:#}\n")),
    };
    TestExit { is_ok, took: began.elapsed(), output }
}

fn attempt(
    program: &TestProgram,
    path: &str,
    is_ignored: bool,
    limit: Duration,
) -> Result<(bool, String)> {
    // A file and not a pipe: processes that a test leaves running must not delay the runner.
    let mut file = tempfile::tempfile().context("cannot make a file for the output")?;
    let mut command = Command::new(&program.path);
    command.args(["--exact", "--show-output", path]);
    command.current_dir(&program.folder).stdin(Stdio::null());
    command.args(is_ignored.then_some("--ignored"));
    // As set by cargo; proptest, for instance, uses it to find its seeds.
    command.env("CARGO_MANIFEST_DIR", &program.folder);
    let mark = TestMark::new();
    command.env(leftovers::VARIABLE, mark.value());
    command.stdout(file.try_clone()?).stderr(file.try_clone()?);
    let mut child =
        command.spawn().with_context(|| format!("cannot start {}", program.path.display()))?;
    let status = wait(&mut child, limit);
    let left = mark.end_processes();
    let status = status?;
    let mut output = text(&mut file)?;
    // If the filter matches no test, libtest reports success.
    let has_passed = output.contains("test result: ok. 1 passed");
    output = own_lines(&output, path);
    for process in &left {
        output += &format!("it left a process running: {process}\n");
    }
    let has_ended_well = match status {
        Some(status) if status.code().is_some() => status.success() && has_passed,
        Some(status) => {
            output += &format!("it ended by itself: {status}\n");
            false
        }
        None => {
            output += &format!("it did not end within {limit:?}\n");
            false
        }
    };
    Ok((has_ended_well && left.is_empty(), output))
}

/// Waits for the child; `None` if it took longer than the limit and was killed.
fn wait(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if began.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep((began.elapsed() / 100).clamp(POLL_LIMITS[0], POLL_LIMITS[1]));
    }
}

fn text(file: &mut File) -> Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether a line is one that libtest prints around the output of the test.
fn is_libtests(line: &str) -> bool {
    let begins =
        ["running 1 test", "test result: ", "failures:", "successes:", "---- ", "stack backtrace:"];
    line.trim().is_empty()
        || begins.iter().any(|begin| line.starts_with(begin))
        || line.starts_with("test ")
            && [" ... ok", " ... FAILED"].iter().any(|end| line.ends_with(end))
        || line.starts_with("note: ") && line.contains("RUST_BACKTRACE")
}

/// Selects the test's own lines.
fn own_lines(output: &str, path: &str) -> String {
    let lines = output.lines().filter(|line| !is_libtests(line) && line.trim() != path);
    lines.map(|line| format!("{line}\n")).collect()
}

/// Returns the paths of a program's tests: the normal ones and the ignored ones.
pub fn paths(program: &TestProgram) -> Result<(Vec<String>, Vec<String>)> {
    let list = |arguments: &[&str]| {
        let mut command = Command::new(&program.path);
        command.args(["--list", "--format", "terse"]).args(arguments).current_dir(&program.folder);
        let output =
            command.output().with_context(|| format!("cannot start {}", program.path.display()))?;
        anyhow::ensure!(
            output.status.success(),
            "{} cannot list its tests: {}",
            program.name,
            output.status
        );
        let text = String::from_utf8(output.stdout).context("names of tests are text")?;
        let paths = text.lines().filter_map(|line| line.strip_suffix(": test"));
        Ok(paths.map(str::to_owned).collect::<Vec<_>>())
    };
    let ignored = list(&["--ignored"])?;
    let all = list(&[])?;
    Ok((all.into_iter().filter(|path| !ignored.contains(path)).collect(), ignored))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This test program itself.
    fn own() -> TestProgram {
        let path = std::env::current_exe().expect("it has a path");
        TestProgram { name: "own".into(), folder: "/".into(), path }
    }

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    #[ignore = "the other tests start it"]
    fn fails() {
        panic!("as it should");
    }

    #[test]
    #[ignore = "the other tests start it"]
    fn aborts() {
        std::process::abort();
    }

    #[test]
    #[ignore = "the other tests start it"]
    fn never_ends() {
        thread::sleep(Duration::from_secs(3600));
    }

    #[test]
    #[ignore = "the other tests start it"]
    fn passes() {
        println!("something");
    }

    fn of(name: &str, limit: Duration) -> TestExit {
        execute(&own(), &format!("execute::tests::{name}"), true, limit)
    }

    #[test]
    fn a_test_passes_or_fails() {
        let passed = of("passes", LIMIT);
        assert!(passed.is_ok);
        // `--nocapture` shows it.
        assert_eq!(passed.output, "something\n");
        let failed = of("fails", LIMIT);
        assert!(!failed.is_ok && failed.output.contains("as it should"), "{}", failed.output);
    }

    #[test]
    fn the_output_is_the_tests_own() {
        let failed = of("fails", LIMIT).output;
        let lines: Vec<_> = failed.lines().collect();
        assert!(lines[0].starts_with("thread '") && lines[1] == "as it should", "{failed}");
        assert_eq!(lines.len(), 2, "{failed}");
    }

    #[test]
    fn a_test_that_aborts_has_failed() {
        let aborted = of("aborts", LIMIT);
        assert!(!aborted.is_ok && aborted.output.contains("signal: 6"), "{}", aborted.output);
    }

    #[test]
    fn a_test_that_does_not_end_is_ended() {
        let ended = of("never_ends", Duration::from_millis(300));
        assert!(
            !ended.is_ok && ended.output.contains("it did not end within 300ms"),
            "{}",
            ended.output
        );
        assert!(ended.took < LIMIT);
    }

    #[test]
    #[ignore = "the other tests start it"]
    #[expect(clippy::zombie_processes, reason = "it is to be left")]
    fn leaves_a_process() {
        Command::new("sleep").arg("3600").spawn().expect("it starts");
    }

    #[test]
    fn a_test_that_leaves_a_process_has_failed() {
        let failed = of("leaves_a_process", LIMIT);
        let message = "it left a process running: ";
        let process = failed.output.lines().find_map(|line| line.strip_prefix(message));
        let (pid, command) = process.and_then(|text| text.split_once(' ')).expect("a process");
        assert!(!failed.is_ok && command == "sleep 3600", "{}", failed.output);
        let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        assert!(state.is_empty() || state.contains(" Z "), "{state}");
    }

    #[test]
    fn a_test_that_is_not_there_has_failed() {
        assert!(!of("is_nowhere", LIMIT).is_ok);
        let nowhere = TestProgram { path: "/nowhere".into(), ..own() };
        let failed = execute(&nowhere, "a", false, LIMIT);
        assert!(
            !failed.is_ok && failed.output.contains("cannot start /nowhere"),
            "{}",
            failed.output
        );
    }

    #[test]
    fn ignored_tests_are_listed_apart() {
        let (tests, ignored) = paths(&own()).expect("it lists them");
        assert!(tests.contains(&"execute::tests::ignored_tests_are_listed_apart".into()));
        assert!(ignored.contains(&"execute::tests::fails".into()));
        assert!(!tests.contains(&"execute::tests::fails".into()));
    }
}
