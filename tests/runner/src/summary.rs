//! The summary of all parts: the slowest tests, those that passed only in a rerun, the failed ones,
//! and the sum.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};

use crate::flaky;
use crate::result::{self, TestResult, TestVerdict};

/// How many of the slowest tests are printed.
const SLOWEST_SHOWN: usize = 20;
/// How many lines of a failed test's output are printed, and how many characters of each line.
const SHOWN: [usize; 2] = [12, 1000];

#[derive(Debug, Clone)]
pub struct TestPart {
    name: String,
    status: i32,
    log: PathBuf,
}

impl FromStr for TestPart {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut fields = text.splitn(3, ':');
        let mut next = || fields.next().filter(|field| !field.is_empty());
        let (name, status, log) = (next(), next(), next());
        let part = name.zip(status).zip(log).and_then(|((name, status), log)| {
            Some(Self { name: name.into(), status: status.parse().ok()?, log: log.into() })
        });
        part.ok_or_else(|| anyhow!("{text} is not NAME:STATUS:LOG"))
    }
}

/// The sum of a part, or of all parts.
#[derive(Debug, Default, PartialEq)]
struct Sum {
    passed: usize,
    failed: usize,
    ignored: usize,
    /// Printed before the sum: what failed, and why.
    problems: Vec<String>,
    rerun: Vec<String>,
    times: Vec<(Duration, String)>,
}

/// Adds up the "test result:" lines, which a test program or a VM prints at its end.
fn counts(log: &str) -> [usize; 3] {
    let mut sums = [0; 3];
    for line in log.lines() {
        let Some((_, rest)) = line.split_once("test result: ") else { continue };
        // A VM's own sum has no kernel's name before it, unlike the lines of the programs that ran
        // in it.
        if !line.starts_with("test result: ") {
            continue;
        }
        let mut numbers = rest.split_whitespace().filter_map(|word| word.parse::<usize>().ok());
        sums.iter_mut().for_each(|sum| *sum += numbers.next().unwrap_or(0));
    }
    sums
}

/// Collects the output of failed tests from the lines between "---- NAME ----" and the result.
fn outputs(log: &str) -> BTreeMap<String, Vec<String>> {
    let mut all = BTreeMap::<_, Vec<_>>::new();
    let mut open = BTreeMap::new();
    for line in log.lines() {
        let (kernel, text) = result::split_kernel(line);
        if let Some(name) = text.strip_prefix("---- ").and_then(|text| text.strip_suffix(" ----")) {
            let name = if kernel.is_empty() { name.to_owned() } else { format!("{kernel} {name}") };
            open.insert(kernel, name);
        } else if result::parse(line).is_some_and(|result| open.get(kernel) == Some(&result.name)) {
            open.remove(kernel);
        } else if let Some(name) = open.get(kernel) {
            all.entry(name.clone()).or_default().push(text.chars().take(SHOWN[1]).collect());
        }
    }
    all
}

fn of_part(part: &TestPart, log: &str, ledger: &[String]) -> Sum {
    let [passed, failed, ignored] = counts(log);
    let mut sum = Sum { passed, failed, ignored, ..Default::default() };
    let results: Vec<TestResult> = log.lines().filter_map(result::parse).collect();
    let passed_again = |name: &String| {
        results.iter().any(|it| it.is_rerun && it.verdict == TestVerdict::Ok && it.name == *name)
    };
    let outputs = outputs(log);
    for it in &results {
        sum.times.extend(it.took.map(|took| (took, it.name.clone())));
        if it.is_rerun || it.verdict != TestVerdict::Failed {
            continue;
        }
        let is_listed = flaky::has(ledger, &it.name);
        if !passed_again(&it.name) {
            sum.problems.push(format!("failed: {}", it.name));
        } else if is_listed {
            sum.problems.push(format!(
                "failed: {} passed only when it ran again, and tests/flaky.md lists it already",
                it.name
            ));
            (sum.passed, sum.failed) = (sum.passed.saturating_sub(1), sum.failed + 1);
        } else {
            sum.rerun.push(it.name.clone());
        }
        let output = outputs.get(&it.name).into_iter().flatten();
        sum.problems.extend(output.take(SHOWN[0]).cloned());
    }
    if part.status != 0 && sum.failed == 0 {
        sum.failed = 1;
        sum.problems.push(match part.status {
            124 | 137 => format!("failed: the {} tests did not end in time", part.name),
            status => format!(
                "failed: the {} tests could not be run to their end (status {status}): see above",
                part.name
            ),
        });
    } else if sum.passed + sum.failed == 0 {
        sum.failed = 1;
        sum.problems.push(format!("failed: no {} test ran", part.name));
    }
    sum
}

fn add(parts: Vec<Sum>) -> Sum {
    let mut all = Sum::default();
    for part in parts {
        all.passed += part.passed;
        all.failed += part.failed;
        all.ignored += part.ignored;
        all.problems.extend(part.problems);
        all.rerun.extend(part.rerun);
        all.times.extend(part.times);
    }
    all.times.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    all
}

fn text(sum: &Sum) -> String {
    let mut lines = Vec::new();
    if !sum.times.is_empty() {
        lines.push("== the slowest tests".to_owned());
        let slowest = sum.times.iter().take(SLOWEST_SHOWN);
        lines.extend(slowest.map(|(took, name)| format!("{:8.1} s  {name}", took.as_secs_f64())));
    }
    lines.extend(sum.problems.iter().cloned());
    lines.extend(
        sum.rerun.iter().map(|name| format!("passed only when it ran again, by itself: {name}")),
    );
    let mut last = format!("{} passed, {} failed", sum.passed, sum.failed);
    if sum.ignored > 0 {
        last += &format!(", {} skipped", sum.ignored);
    }
    lines.push(last);
    lines.join("\n")
}

/// Prints the sum; returns whether every part ran and all tests passed.
pub fn sum(ledger: &Path, parts: &[TestPart]) -> Result<bool> {
    let ledger = flaky::read(ledger)?;
    let of = |part: &TestPart| {
        let log =
            fs::read(&part.log).with_context(|| format!("cannot read {}", part.log.display()))?;
        Ok(of_part(part, &String::from_utf8_lossy(&log), &ledger))
    };
    let sum = add(parts.iter().map(of).collect::<Result<_>>()?);
    println!("{}", text(&sum));
    Ok(sum.failed == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(status: i32) -> TestPart {
        format!("live:{status}:/tmp/log").parse().expect("a part")
    }

    const PASSED: &str = "test live::a ... ok <0.500s>\ntest live::b ... ok <2.000s>\n\
                          test result: ok. 2 passed; 0 failed; 1 ignored; finished in 3.00s\n";
    const AGAIN: &str = "---- live::a ----\n    it was late\ntest live::a ... FAILED <0.500s>\n\
                         rerun live::a ... ok <0.400s>\n\
                         test result: ok. 1 passed; 0 failed; 0 ignored; finished in 1.00s\n";
    const FAILED: &str = "k | ---- vm::a ----\nk |     why\nk | test vm::a ... FAILED <1.000s>\n\
                          k | test result: FAILED. 0 passed; 1 failed; 0 ignored\n\
                          test result: FAILED. 0 passed; 1 failed; 0 ignored; in the VM of k\n";

    #[test]
    fn passed_tests_are_counted_and_the_slowest_comes_first() {
        let sum = add(vec![of_part(&part(0), PASSED, &[])]);
        assert_eq!((sum.passed, sum.failed, sum.ignored), (2, 0, 1));
        assert_eq!(
            text(&sum),
            "== the slowest tests\n     2.0 s  live::b\n     0.5 s  live::a\n2 passed, 0 failed, \
            1 skipped"
        );
    }

    #[test]
    fn a_test_that_passes_when_it_runs_again_is_named() {
        let sum = of_part(&part(0), AGAIN, &[]);
        assert_eq!((sum.passed, sum.failed), (1, 0));
        assert!(text(&sum).contains(
            "    it was late\npassed only when it ran again, by itself: live::a\n1 passed"
        ));
    }

    #[test]
    fn a_listed_test_that_needs_its_rerun_has_failed() {
        let sum = of_part(&part(0), AGAIN, &["live::a".into()]);
        assert_eq!((sum.passed, sum.failed), (0, 1));
        assert!(sum.problems[0].contains("tests/flaky.md lists it already"), "{:?}", sum.problems);
        assert!(sum.rerun.is_empty());
    }

    #[test]
    fn a_listed_test_that_passes_has_passed() {
        assert_eq!(of_part(&part(0), PASSED, &["live::a".into()]).failed, 0);
    }

    #[test]
    fn a_failed_test_of_a_vm_is_named_with_its_kernel_and_counted_once() {
        let sum = of_part(&part(1), FAILED, &[]);
        assert_eq!((sum.passed, sum.failed), (0, 1));
        assert_eq!(sum.problems, ["failed: k vm::a", "    why"]);
    }

    #[test]
    fn part_that_cannot_run_counts_as_one_failure() {
        for (status, log, says) in [
            (101, "error: it does not build\n", "could not be run to their end (status 101)"),
            (1, PASSED, "could not be run to their end (status 1)"),
            (124, PASSED, "did not end in time"),
            (0, "", "no live test ran"),
            (0, "test result: ok. 0 passed; 0 failed; 3 ignored\n", "no live test ran"),
        ] {
            let sum = of_part(&part(status), log, &[]);
            assert_eq!(sum.failed, 1, "{log}");
            assert!(sum.problems[0].contains(says), "{:?}", sum.problems);
        }
    }

    #[test]
    fn a_part_has_three_fields() {
        assert!("live:0".parse::<TestPart>().is_err() && "live:x:log".parse::<TestPart>().is_err());
        assert_eq!("live:0:/a:b".parse::<TestPart>().expect("a part").log, PathBuf::from("/a:b"));
    }
}
