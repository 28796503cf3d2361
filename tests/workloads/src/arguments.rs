//! The arguments after the sub-command's name, parsed one by one.

use crate::failure::{Failure, Outcome};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// The maximum number of repetitions of a sub-command.
pub const MAX_REPETITIONS: u64 = 1_000_000_000;
/// The longest duration that a sub-command accepts, in milliseconds: one hour.
pub const HOUR_MS: u64 = 3_600_000;

pub struct Arguments {
    rest: VecDeque<OsString>,
}

impl Arguments {
    pub fn new(rest: impl Iterator<Item = OsString>) -> Self {
        Arguments { rest: rest.collect() }
    }

    pub fn number(&mut self, name: &str, range: RangeInclusive<u64>) -> Result<u64, Failure> {
        match self.rest.pop_front() {
            Some(text) => parse(name, text, range),
            None => Err(missing(name)),
        }
    }

    pub fn number_or(
        &mut self,
        default: u64,
        name: &str,
        range: RangeInclusive<u64>,
    ) -> Result<u64, Failure> {
        match self.rest.pop_front() {
            Some(text) => parse(name, text, range),
            None => Ok(default),
        }
    }

    /// Parses the number after `--flag` if the flag comes next.
    pub fn flag(
        &mut self,
        flag: &str,
        name: &str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<u64>, Failure> {
        if self.rest.front().is_none_or(|text| text != flag) {
            return Ok(None);
        }
        self.rest.pop_front();
        self.number(name, range).map(Some)
    }

    pub fn path(&mut self, name: &str) -> Result<PathBuf, Failure> {
        match self.rest.pop_front() {
            Some(text) if !text.is_empty() => Ok(text.into()),
            _ => Err(missing(name)),
        }
    }

    /// Refuses arguments that are left. Every sub-command calls this before it starts to work.
    pub fn end(self) -> Outcome {
        match self.rest.front() {
            None => Ok(()),
            Some(text) => Err(Failure::Usage(format!("unexpected argument {text:?}"))),
        }
    }
}

fn missing(name: &str) -> Failure {
    Failure::Usage(format!("the argument {name} is missing"))
}

fn parse(name: &str, text: OsString, range: RangeInclusive<u64>) -> Result<u64, Failure> {
    text.to_str()
        .and_then(|text| text.parse().ok())
        .filter(|number| range.contains(number))
        .ok_or_else(|| {
            let (low, high) = range.into_inner();
            Failure::Usage(format!(
                "{name} must be a whole number from {low} to {high}, not {text:?}"
            ))
        })
}
