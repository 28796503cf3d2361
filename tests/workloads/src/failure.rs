//! Failures of a workload: exit status 2 for wrong arguments, 1 for everything else.

use std::fmt::Display;
use std::io;

#[derive(Debug)]
pub enum Failure {
    /// The command line is wrong.
    Usage(String),
    /// The command line was right, but the work could not be done or gave a wrong result.
    Failed(String),
}

pub type Outcome = Result<(), Failure>;

impl Failure {
    pub fn exit_status(&self) -> i32 {
        match self {
            Failure::Usage(_) => 2,
            Failure::Failed(_) => 1,
        }
    }

    pub fn message(&self) -> &str {
        match self {
            Failure::Usage(message) | Failure::Failed(message) => message,
        }
    }
}

pub fn failed(message: impl Into<String>) -> Failure {
    Failure::Failed(message.into())
}

/// Describes an error of the operating system and the action that failed.
pub fn os_failure(doing: impl Display, error: io::Error) -> Failure {
    Failure::Failed(format!("cannot {doing}: {error}"))
}

/// Turns the C convention, -1 with `errno` set, into a failure that names the action.
pub fn check<T: Copy + Into<i64>>(returned: T, doing: impl Display) -> Result<T, Failure> {
    if returned.into() == -1 {
        Err(os_failure(doing, io::Error::last_os_error()))
    } else {
        Ok(returned)
    }
}
