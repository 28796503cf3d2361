//! The text of a file that a person has written, and the lines and columns of its bytes.

use std::fs::File;
use std::io::{self, Read as _};
use std::ops::Range;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kernel::lease::ReadLease;

/// Ten thousand rules of services have a tenth of it, and plugins have a limit of their own.
const LONGEST_FILE: u64 = 16 << 20;

/// Between two writes of one who writes a file as a whole, on a busy machine.
const SETTLED: Duration = Duration::from_millis(100);
/// How long to wait before looking again at a file that some process has open for writing.
const WRITTEN: Duration = Duration::from_millis(10);
/// A daemon does nothing else meanwhile.
const LONGEST_WAIT: Duration = Duration::from_millis(500);

pub struct Source {
    pub name: String,
    pub text: String,
    /// Where each line begins.
    lines: Vec<usize>,
}

/// Where the first byte is that is none of a character.
#[derive(Debug, thiserror::Error)]
#[error("{name}:{line} is not UTF-8 text")]
pub struct NotText {
    pub name: String,
    pub line: usize,
    pub column: usize,
}

impl Source {
    /// `what` it is to be: "file of services", say.
    pub fn read(path: &Path, what: &str) -> Result<Self> {
        let (name, read) = match path.to_str() {
            Some("-") => ("stdin".into(), up_to_longest(io::stdin())),
            _ => (path.display().to_string(), settled(path)),
        };
        let bytes = read.with_context(|| format!("cannot read {name}"))?;
        if bytes.len() as u64 > LONGEST_FILE {
            bail!("{name} has more than {} MiB, and is no {what}", LONGEST_FILE >> 20);
        }
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Self::new(name, text)),
            Err(error) => {
                let good = error.utf8_error().valid_up_to();
                let before = Self::new(name, String::from_utf8_lossy(&error.as_bytes()[..good]).into_owned());
                let (line, column) = before.place(good);
                Err(NotText { name: before.name, line, column }.into())
            }
        }
    }

    pub fn new(name: String, text: String) -> Self {
        let lines = [0].into_iter().chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Self { name, text, lines }
    }

    /// From 1 on.
    pub fn line(&self, byte: usize) -> usize {
        self.lines.partition_point(|start| *start <= byte)
    }

    /// Where a line's text is, if there is such a line.
    pub fn span(&self, line: usize) -> Option<Range<usize>> {
        let start = *self.lines.get(line.checked_sub(1)?)?;
        let text = self.text[start..].lines().next().unwrap_or_default();
        let from = start + text.len() - text.trim_start().len();
        Some(from..from + text.trim().len())
    }

    /// Line and column, both from 1 on.
    pub fn place(&self, byte: usize) -> (usize, usize) {
        let line = self.line(byte);
        let start = self.lines[line - 1];
        let before = self.text[start..].char_indices().take_while(|(at, _)| start + at < byte);
        (line, 1 + before.count())
    }
}

fn up_to_longest(input: impl io::Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.take(LONGEST_FILE + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The content of a file once nobody has written to it for a moment: half of it might be rules, too.
fn settled(path: &Path) -> io::Result<Vec<u8>> {
    let end = Instant::now() + LONGEST_WAIT;
    // Looked at once more after that: this process may have slept for longer.
    let mut is_last = false;
    while !std::mem::replace(&mut is_last, Instant::now() >= end) {
        let file = File::open(path)?;
        // A pipe can be read once only.
        if !file.metadata()?.is_file() {
            return up_to_longest(file);
        }
        let (before, length) = (file.metadata()?.modified()?, file.metadata()?.len());
        // Of a time that is yet to come, nothing follows.
        let since = before.elapsed().unwrap_or(SETTLED);
        if since < SETTLED {
            thread::sleep(SETTLED - since);
            continue;
        }
        let lease = match ReadLease::take(&file) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                thread::sleep(WRITTEN);
                continue;
            }
            lease => lease?,
        };
        let bytes = up_to_longest(&file)?;
        drop(lease);
        if (before, length) == (file.metadata()?.modified()?, file.metadata()?.len()) {
            return Ok(bytes);
        }
    }
    Err(io::Error::other("somebody is writing to it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_lines_and_columns() {
        let source = Source::new("a".into(), "ä = 1\n\nb".into());
        assert_eq!(
            [0, 2, 3, 7, 8, 9].map(|byte| source.place(byte)),
            [(1, 1), (1, 2), (1, 3), (2, 1), (3, 1), (3, 2)]
        );
        let source = Source::new("a".into(), "a\n\t b; \n".into());
        assert_eq!(
            [0, 1, 2, 3, 4].map(|line| source.span(line)),
            [None, Some(0..1), Some(4..6), Some(8..8), None]
        );
    }
}
