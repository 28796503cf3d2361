//! Runs the test programs of the workspace, each test in a process of its own, and sums up the
//! results.
//!
//! `scripts/test` and `scripts/vm` call it, the latter inside the guest too.

mod execute;
mod flaky;
mod keeper;
mod leftovers;
mod programs;
mod result;
mod schedule;
mod selection;
mod summary;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

use selection::TestSelection;

#[derive(Parser)]
#[command(about = "Runs the test programs of the workspace and sums up their results")]
struct RunnerCli {
    #[command(subcommand)]
    command: RunnerCommand,
}

#[derive(Subcommand)]
enum RunnerCommand {
    /// Read cargo's JSON messages from stdin and print the test programs, one a line
    Programs,
    /// Print the tests that `run` would run
    List(SelectionArguments),
    /// Run tests, each in a process of its own
    Run {
        #[command(flatten)]
        which: SelectionArguments,
        /// Run so many tests side by side; those in a module `alone` run first, one by one
        #[arg(long, value_name = "N", default_value_t = 2)]
        workers: usize,
        /// Run tests whose name contains this one after the other, beside the others
        #[arg(long, value_name = "TEXT")]
        serial: Vec<String>,
        /// End a test that takes longer
        #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = seconds)]
        limit: Duration,
        /// Keep this program running, from when it says "ready", for the tests that run side by
        /// side
        #[arg(long, value_name = "PROGRAM")]
        keeper: Option<PathBuf>,
        /// Print the output of tests that pass, too
        #[arg(long)]
        nocapture: bool,
    },
    /// Sum up the logs of `run`; the status is 0 only if every part ran and every test passed
    Sum {
        /// The ledger of flaky tests: one that needs its rerun again counts as failed
        #[arg(long, value_name = "FILE")]
        flaky: PathBuf,
        /// The name of a part, the exit status of its command, and its log
        #[arg(value_name = "NAME:STATUS:LOG", required = true)]
        parts: Vec<summary::TestPart>,
    },
}

#[derive(Args)]
struct SelectionArguments {
    /// The list that `programs` printed
    #[arg(long, value_name = "FILE")]
    programs: PathBuf,
    /// Run the ignored tests, and no others
    #[arg(long)]
    ignored: bool,
    /// Run the tests that a file names, one a line; a line that ends in `::` names a module
    #[arg(long, value_name = "FILE")]
    only: Option<PathBuf>,
    /// Leave out tests whose name contains this
    #[arg(long, value_name = "TEXT")]
    skip: Vec<String>,
    /// Run only tests whose name contains one of these
    #[arg(long = "name", value_name = "TEXT")]
    names: Vec<String>,
    /// Take the names whole
    #[arg(long)]
    exact: bool,
    /// Test programs, by the names that the list gives them
    #[arg(value_name = "PROGRAM", required = true)]
    targets: Vec<String>,
}

impl SelectionArguments {
    fn tests(self) -> Result<schedule::Tests> {
        let programs = programs::read(&self.programs, &self.targets)?;
        let only = self.only.as_deref().map(selection::read).transpose()?;
        let selection =
            TestSelection { only, skip: self.skip, names: self.names, exact: self.exact };
        schedule::Tests::find(&programs, &selection, self.ignored)
    }
}

fn seconds(text: &str) -> Result<Duration, std::num::ParseIntError> {
    text.parse().map(Duration::from_secs)
}

fn main() -> ExitCode {
    let done = match RunnerCli::parse().command {
        RunnerCommand::Programs => programs::print(std::io::stdin().lock()).map(|()| true),
        RunnerCommand::List(which) => which.tests().map(|tests| {
            tests.names().for_each(|name| println!("{name}"));
            true
        }),
        RunnerCommand::Run { which, workers, limit, keeper, serial, nocapture } => {
            let options = schedule::RunOptions { workers, limit, keeper, serial, nocapture };
            which.tests().and_then(|tests| tests.run(&options))
        }
        RunnerCommand::Sum { flaky, parts } => summary::sum(&flaky, &parts),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("test-runner: {error:#}");
            ExitCode::from(2)
        }
    }
}
