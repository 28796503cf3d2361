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
            .truncate(true)
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
            Self::File(file, path) => file
                .write_all(text.as_bytes())
                .with_context(|| format!("cannot write the result to {}", path.display())),
        }
    }
}

/// A message to the person, on stderr.
pub fn say(message: &str) -> io::Result<()> {
    writeln!(io::stderr(), "{message}")
}
