//! The order of the tests: first those in a module `alone`, one by one, then the others in
//! parallel. After each of the two phases, its failed tests run once more.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::execute::{self, TestExit};
use crate::keeper::Keeper;
use crate::programs::TestProgram;
use crate::result::{TestResult, TestVerdict};
use crate::selection::TestSelection;

/// Tests in a program or module of this name need the machine for themselves.
const ALONE: &str = "alone";
/// If more tests of a phase fail, this is not chance, and none of them runs again.
const MAX_RERUNS: usize = 3;

pub struct RunOptions {
    pub workers: usize,
    pub limit: Duration,
    /// A program that runs during the parallel tests.
    pub keeper: Option<PathBuf>,
    /// Two tests whose names contain one of these texts do not run at the same time.
    pub serial: Vec<String>,
    pub nocapture: bool,
}

struct Test {
    program: TestProgram,
    path: String,
    is_ignored: bool,
}

pub struct Tests {
    tests: Vec<Test>,
    /// Tests that do not run because they are marked so.
    ignored: Vec<String>,
}

impl Test {
    fn name(&self) -> String {
        format!("{}::{}", self.program.name, self.path)
    }

    fn is_alone(&self) -> bool {
        self.name().split("::").any(|part| part == ALONE)
    }

    fn run(&self, is_rerun: bool, options: &RunOptions) -> bool {
        let TestExit { is_ok, took, output } =
            execute::execute(&self.program, &self.path, self.is_ignored, options.limit);
        let verdict = if is_ok { TestVerdict::Ok } else { TestVerdict::Failed };
        let result = TestResult { name: self.name(), verdict, is_rerun, took: Some(took) };
        // Printed in one call, because other tests print at the same time.
        if is_ok && !options.nocapture {
            println!("{result}");
        } else {
            // Indented, because the output may contain lines of the form of results.
            let output: String = output.lines().map(|line| format!("    {line}\n")).collect();
            println!("---- {} ----\n{output}{result}", result.name);
        }
        is_ok
    }
}

impl Tests {
    /// Finds the selected tests of the programs: the ignored ones, or the others.
    pub fn find(
        programs: &[TestProgram],
        selection: &TestSelection,
        ignored: bool,
    ) -> Result<Self> {
        let (mut names, mut found) = (Vec::new(), Self { tests: Vec::new(), ignored: Vec::new() });
        for program in programs {
            let (plain_paths, ignored_paths) = execute::paths(program)?;
            for (paths, is_ignored) in [(plain_paths, false), (ignored_paths, true)] {
                for path in paths {
                    let test = Test { program: program.clone(), path, is_ignored };
                    let name = test.name();
                    if selection.takes(&name) {
                        match is_ignored == ignored {
                            true => found.tests.push(test),
                            false if is_ignored => found.ignored.push(name.clone()),
                            false => {}
                        }
                    }
                    names.push(name);
                }
            }
        }
        let of: Vec<_> = programs.iter().map(|program| program.name.as_str()).collect();
        selection.ensure_complete(&of, &names)?;
        Ok(found)
    }

    pub fn names(&self) -> impl Iterator<Item = String> {
        self.tests.iter().map(Test::name)
    }

    /// Runs the tests; returns whether all have passed, some perhaps only in a rerun.
    pub fn run(&self, options: &RunOptions) -> Result<bool> {
        ensure!(!self.tests.is_empty(), "no test is selected");
        let began = Instant::now();
        for name in &self.ignored {
            let (name, verdict) = (name.clone(), TestVerdict::Ignored);
            println!("{}", TestResult { name, verdict, is_rerun: false, took: None });
        }
        let (alone, others): (Vec<_>, Vec<_>) = self.tests.iter().partition(|test| test.is_alone());
        let mut failed = phase(&alone, 1, options);
        if !others.is_empty() {
            let _keeper = options.keeper.as_deref().map(Keeper::start).transpose()?;
            failed += phase(&others, options.workers, options);
        }
        println!(
            "test result: {}. {} passed; {failed} failed; {} ignored; finished in {:.2}s",
            if failed == 0 { "ok" } else { "FAILED" },
            self.tests.len() - failed,
            self.ignored.len(),
            began.elapsed().as_secs_f64()
        );
        Ok(failed == 0)
    }
}

/// Runs the tests of a phase; returns how many fail, also when they run again.
fn phase(tests: &[&Test], workers: usize, options: &RunOptions) -> usize {
    let failed = side_by_side(tests, workers, options);
    let again = if failed.len() <= MAX_RERUNS { &failed[..] } else { &[] };
    failed.len() - again.iter().filter(|test| test.run(true, options)).count()
}

/// The waiting tests; at any time, at most one worker runs a serial test.
struct Queue<'a> {
    serial: VecDeque<&'a Test>,
    is_serial_busy: bool,
    others: VecDeque<&'a Test>,
}

impl<'a> Queue<'a> {
    /// Returns the next test, and whether it is a serial one. Serial tests come first because
    /// together they take longest.
    fn next(&mut self) -> Option<(&'a Test, bool)> {
        if !self.is_serial_busy
            && let Some(test) = self.serial.pop_front()
        {
            self.is_serial_busy = true;
            return Some((test, true));
        }
        self.others.pop_front().map(|test| (test, false))
    }
}

/// Runs tests in parallel, and returns those that fail.
fn side_by_side<'a>(tests: &[&'a Test], workers: usize, options: &RunOptions) -> Vec<&'a Test> {
    let is_serial = |test: &&Test| options.serial.iter().any(|text| test.name().contains(text));
    let (serial, others) = tests.iter().copied().partition(is_serial);
    let queue = Mutex::new(Queue { serial, is_serial_busy: false, others });
    let failed = Mutex::new(Vec::new());
    let work = || {
        loop {
            let next = queue.lock().expect("no worker panics").next();
            let Some((test, is_serial)) = next else { return };
            if !test.run(false, options) {
                failed.lock().expect("no worker panics").push(test);
            }
            if is_serial {
                queue.lock().expect("no worker panics").is_serial_busy = false;
            }
        }
    };
    thread::scope(|scope| {
        (0..workers.max(1)).for_each(|_| drop(scope.spawn(work)));
    });
    failed.into_inner().expect("no worker panics")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> TestProgram {
        let path = std::env::current_exe().expect("it has a path");
        TestProgram { name: "own".into(), folder: "/".into(), path }
    }

    fn find(names: &[&str], ignored: bool) -> Result<Tests> {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        let selection = TestSelection { names, ..Default::default() };
        Tests::find(&[own()], &selection, ignored)
    }

    fn test(path: &str) -> Test {
        Test { program: own(), path: path.into(), is_ignored: true }
    }

    fn options(serial: &[&str]) -> RunOptions {
        RunOptions {
            workers: 4,
            limit: Duration::from_secs(60),
            keeper: None,
            serial: serial.iter().map(|text| (*text).to_owned()).collect(),
            nocapture: false,
        }
    }

    #[test]
    fn ignored_tests_run_only_on_request() {
        let own = find(&["execute::tests::"], false).expect("there are some");
        assert!(own.ignored.contains(&"own::execute::tests::fails".into()));
        assert!(own.names().all(|name| !name.ends_with("::fails")));
        let ignored = find(&["execute::tests::"], true).expect("there are some");
        assert!(ignored.names().any(|name| name.ends_with("::fails")));
        assert!(ignored.ignored.is_empty());
    }

    #[test]
    fn a_selection_without_a_test_does_not_run() {
        let none = find(&["nowhere"], false).expect("it can be listed");
        assert_eq!(none.names().count(), 0);
        assert!(none.run(&options(&[])).is_err());
    }

    #[test]
    fn only_modules_of_that_name_are_alone() {
        assert!(test("host::alone::a").is_alone() && test("alone::a").is_alone());
        assert!(!test("host::left_alone::a").is_alone() && !test("host::alone_a").is_alone());
    }

    #[test]
    fn side_by_side_each_test_runs_and_the_failed_ones_are_returned() {
        let [passes, fails] =
            ["passes", "fails"].map(|name| test(&format!("execute::tests::{name}")));
        for workers in [0, 1, 2, 9] {
            for serial in [&[][..], &["passes"], &["own::"]] {
                let failed = side_by_side(&[&passes, &fails, &passes], workers, &options(serial));
                assert_eq!(failed.iter().map(|test| &test.path).collect::<Vec<_>>(), [&fails.path]);
            }
        }
        assert!(side_by_side(&[], 2, &options(&[])).is_empty());
    }

    #[test]
    fn one_serial_test_runs_at_a_time() {
        let [a, b, c] = ["a", "b", "c"].map(test);
        let mut queue =
            Queue { serial: [&a, &b].into(), is_serial_busy: false, others: [&c].into() };
        let mut next = |is_over: bool| {
            queue.is_serial_busy &= !is_over;
            queue.next().map(|(test, is_serial)| (test.path.as_str(), is_serial))
        };
        assert_eq!(next(false), Some(("a", true)));
        assert_eq!(next(false), Some(("c", false)));
        assert_eq!(next(false), None);
        assert_eq!(next(true), Some(("b", true)));
        assert_eq!(next(true), None);
    }
}
