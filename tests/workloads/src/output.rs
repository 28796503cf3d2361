//! Lines of output, and the lines of stdin at which a test lets a workload go on.

use std::io::{self, Write as _};

use crate::cpu_time::process_ns;
use crate::failure::{Outcome, os_failure};

/// Prints one line to stdout, with a single write if the line is short.
pub fn print_line(line: &str) -> Outcome {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}")
        .and_then(|()| stdout.flush())
        .map_err(|error| os_failure("write to stdout", error))
}

/// Waits for a line of stdin, does the work, and prints how many nanoseconds of processor time it
/// took.
pub fn after_stdin_line(work: impl FnOnce() -> Outcome) -> Outcome {
    print_line("ready")?;
    io::stdin()
        .read_line(&mut String::new())
        .map_err(|error| os_failure("wait for stdin", error))?;
    let began = process_ns();
    work()?;
    print_line(&(process_ns() - began).to_string())
}

/// Waits for a line of stdin, or for its end.
pub fn until_stdin_ends() -> Outcome {
    let ended = io::stdin().read_line(&mut String::new());
    ended.map(drop).map_err(|error| os_failure("wait for stdin", error))
}
