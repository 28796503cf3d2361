//! A test's result and its line of text, which `run` writes and `sum` reads.

use std::fmt;
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TestVerdict {
    Ok,
    Failed,
    Ignored,
}

#[derive(Debug, Clone, PartialEq)]
pub struct TestResult {
    /// Begins with the name of its kernel if the test ran in a VM.
    pub name: String,
    pub verdict: TestVerdict,
    /// The test had failed before, and this is its rerun by itself.
    pub is_rerun: bool,
    pub took: Option<Duration>,
}

impl fmt::Display for TestResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.is_rerun { "rerun" } else { "test" };
        let verdict = match self.verdict {
            TestVerdict::Ok => "ok",
            TestVerdict::Failed => "FAILED",
            TestVerdict::Ignored => "ignored",
        };
        write!(f, "{verb} {} ... {verdict}", self.name)?;
        self.took.map_or(Ok(()), |took| write!(f, " <{:.3}s>", took.as_secs_f64()))
    }
}

/// Splits off the name of the kernel, with which each line of a VM's console begins.
pub fn split_kernel(line: &str) -> (&str, &str) {
    match line.split_once(" | ") {
        Some((kernel, rest)) if !kernel.contains(' ') => (kernel, rest),
        _ => ("", line),
    }
}

/// Parses a line; `None` if it is not a result.
pub fn parse(line: &str) -> Option<TestResult> {
    let (kernel, line) = split_kernel(line);
    let (verb, rest) = line.trim_end().split_once(' ')?;
    let is_rerun = match verb {
        "test" => false,
        "rerun" => true,
        _ => return None,
    };
    let (name, rest) = rest.rsplit_once(" ... ")?;
    let (word, took) = match rest.split_once(" <") {
        Some((word, took)) => (word, Some(took.strip_suffix("s>")?.parse().ok()?)),
        None => (rest, None),
    };
    let verdict = match word {
        "ok" => TestVerdict::Ok,
        "FAILED" => TestVerdict::Failed,
        "ignored" => TestVerdict::Ignored,
        _ => return None,
    };
    let name = if kernel.is_empty() { name.to_owned() } else { format!("{kernel} {name}") };
    Some(TestResult { name, verdict, is_rerun, took: took.map(Duration::from_secs_f64) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_line_round_trips() {
        for verdict in [TestVerdict::Ok, TestVerdict::Failed, TestVerdict::Ignored] {
            for took in [None, Some(Duration::from_millis(1234))] {
                for is_rerun in [false, true] {
                    let result = TestResult { name: "live::a b".into(), verdict, is_rerun, took };
                    assert_eq!(parse(&result.to_string()), Some(result));
                }
            }
        }
    }

    #[test]
    fn a_line_of_a_vm_names_its_kernel() {
        let result = parse("linux-image-amd64 | test vm::a ... ok <0.500s>\r").expect("a result");
        assert_eq!(result.name, "linux-image-amd64 vm::a");
        assert_eq!(result.took, Some(Duration::from_millis(500)));
    }

    #[test]
    fn other_lines_are_no_result() {
        let lines =
            ["", "test result: ok. 3 passed", "testing a ... ok", "test a ... well", "test a"];
        assert!(lines.into_iter().all(|line| parse(line).is_none()));
    }
}
