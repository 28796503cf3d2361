//! A test's result, and the line that says it: written by `run`, read by `sum`.

use std::fmt;
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Verdict {
    Ok,
    Failed,
    Ignored,
}

#[derive(Debug, Clone, PartialEq)]
pub struct TestResult {
    /// With the name of its kernel before it if it ran in a VM.
    pub name: String,
    pub verdict: Verdict,
    /// The test had failed before, and ran again by itself.
    pub is_rerun: bool,
    pub took: Option<Duration>,
}

impl fmt::Display for TestResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.is_rerun { "rerun" } else { "test" };
        let verdict = match self.verdict {
            Verdict::Ok => "ok",
            Verdict::Failed => "FAILED",
            Verdict::Ignored => "ignored",
        };
        write!(f, "{verb} {} ... {verdict}", self.name)?;
        self.took.map_or(Ok(()), |took| write!(f, " <{:.3}s>", took.as_secs_f64()))
    }
}

/// The VM's console has the name of its kernel before each line.
pub fn split_kernel(line: &str) -> (&str, &str) {
    match line.split_once(" | ") {
        Some((kernel, rest)) if !kernel.contains(' ') => (kernel, rest),
        _ => ("", line),
    }
}

/// The result that a line says; `None` if it says something else.
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
        "ok" => Verdict::Ok,
        "FAILED" => Verdict::Failed,
        "ignored" => Verdict::Ignored,
        _ => return None,
    };
    let name = if kernel.is_empty() { name.to_owned() } else { format!("{kernel} {name}") };
    Some(TestResult { name, verdict, is_rerun, took: took.map(Duration::from_secs_f64) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for verdict in [Verdict::Ok, Verdict::Failed, Verdict::Ignored] {
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
    fn other_lines_say_no_result() {
        let lines = ["", "test result: ok. 3 passed", "testing a ... ok", "test a ... well", "test a"];
        assert!(lines.into_iter().all(|line| parse(line).is_none()));
    }
}
