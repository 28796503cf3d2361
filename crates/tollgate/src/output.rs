//! Where results go: a file, stdout, or (for `run`, whose stdout is the command's) stderr.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The place of a result, opened before the work begins, so that a bad path costs nobody a long run.
pub enum Output {
    Stdout,
    Stderr,
    File(File, PathBuf),
}

impl Output {
    pub fn open(path: Option<&Path>, otherwise: Self) -> Result<Self> {
        let Some(path) = path else {
            return Ok(otherwise);
        };
        let file = OpenOptions::new()
            .create(true)
            // Only when there is something to put in its place.
            .truncate(false)
            .write(true)
            .open(path)
            .with_context(|| format!("cannot write the result to {}", path.display()))?;
        Ok(Self::File(file, path.to_owned()))
    }

    pub fn write(&mut self, text: &str) -> Result<()> {
        match self {
            Self::Stdout => {
                io::stdout().write_all(text.as_bytes()).context("cannot write the result to stdout")
            }
            Self::Stderr => {
                io::stderr().write_all(text.as_bytes()).context("cannot write the result to stderr")
            }
            Self::File(file, path) => {
                replace(file, text).with_context(|| format!("cannot write the result to {}", path.display()))
            }
        }
    }
}

fn replace(file: &mut File, text: &str) -> io::Result<()> {
    // Devices and pipes have no length.
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    let written = file.write_all(text.as_bytes());
    if written.is_err() && file.metadata()?.is_file() {
        // Half a document is worse than none.
        let _ = file.set_len(0);
    }
    written
}

/// A message to the person, on stderr. The standard library ends the system's sentences with their number,
/// which says nothing more.
pub fn say(message: &str) -> io::Result<()> {
    writeln!(io::stderr(), "{}", without_numbers(message))
}

fn without_numbers(message: &str) -> String {
    let mut text = message.to_owned();
    while let Some(begin) = text.find(" (os error ") {
        let Some(length) = text[begin..].find(')') else { break };
        text.replace_range(begin..=begin + length, "");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_have_no_error_numbers() {
        let message = "cannot read x: No such file (os error 2); and y: Is a directory (os error 21)";
        assert_eq!(without_numbers(message), "cannot read x: No such file; and y: Is a directory");
        assert_eq!(without_numbers("open (os error "), "open (os error ");
    }
}
