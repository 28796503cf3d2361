//! Source files that a user has written, with the lines and columns of their bytes.

use std::fs::File;
use std::io::{self, Read as _};
use std::ops::Range;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kernel::lease::ReadLease;

use crate::format::{printable, shown_path};

/// Ten thousand rules of services take a tenth of this; plugins have a limit of their own.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// The longest pause between two writes of a program that writes a file as a whole, on a busy
/// machine.
const WRITE_QUIET_PERIOD: Duration = Duration::from_millis(100);
/// How long to wait before the next attempt while a process has the file open for writing.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);
/// The longest wait for a writer. A daemon does no other work meanwhile.
const MAX_WAIT: Duration = Duration::from_millis(500);

/// A text with its name and the offsets of its lines.
pub struct SourceFile {
    pub name: String,
    pub text: String,
    /// The offset of each line.
    lines: Vec<usize>,
}

/// The position of the first byte that is not valid UTF-8.
#[derive(Debug, thiserror::Error)]
#[error("{}:{line} is not UTF-8 text", printable(name))]
pub struct NotText {
    pub name: String,
    pub line: usize,
    pub column: usize,
}

impl SourceFile {
    /// Reads a file; `what` is its expected kind, such as "file of services".
    pub fn read(path: &Path, what: &str) -> Result<Self> {
        let (name, read) = match path.to_str() {
            Some("-") => ("stdin".into(), read_limited(io::stdin())),
            _ => (path.display().to_string(), read_settled(path)),
        };
        let bytes =
            read.with_context(|| format!("cannot read {}", shown_path(Path::new(&name))))?;
        if bytes.len() as u64 > MAX_FILE_BYTES {
            bail!(
                "{} is larger than {} MiB, the size limit of a {what}",
                printable(&name),
                MAX_FILE_BYTES >> 20
            );
        }
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Self::new(name, text)),
            Err(error) => {
                let good = error.utf8_error().valid_up_to();
                let before = Self::new(
                    name,
                    String::from_utf8_lossy(&error.as_bytes()[..good]).into_owned(),
                );
                let (line, column) = before.line_and_column(good);
                Err(NotText { name: before.name, line, column }.into())
            }
        }
    }

    /// A text that was not read from a file.
    pub fn new(name: String, text: String) -> Self {
        let lines = [0].into_iter().chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Self { name, text, lines }
    }

    /// The line of a byte, counted from 1.
    pub fn line(&self, byte: usize) -> usize {
        self.lines.partition_point(|start| *start <= byte)
    }

    /// The range of a line's text, if there is such a line.
    pub fn span(&self, line: usize) -> Option<Range<usize>> {
        let start = *self.lines.get(line.checked_sub(1)?)?;
        let text = self.text[start..].lines().next().unwrap_or_default();
        let from = start + text.len() - text.trim_start().len();
        Some(from..from + text.trim().len())
    }

    /// The line and column of a byte, both counted from 1.
    pub fn line_and_column(&self, byte: usize) -> (usize, usize) {
        let line = self.line(byte);
        let start = self.lines[line - 1];
        let before = self.text[start..].char_indices().take_while(|(at, _)| start + at < byte);
        (line, 1 + before.count())
    }
}

fn read_limited(input: impl io::Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a file when no process has written to it for a moment, because half of a rule file may be
/// valid, too.
fn read_settled(path: &Path) -> io::Result<Vec<u8>> {
    let end = Instant::now() + MAX_WAIT;
    // One more attempt follows after the time limit, because this process may have slept for
    // longer.
    let mut is_last = false;
    while !std::mem::replace(&mut is_last, Instant::now() >= end) {
        let file = File::open(path)?;
        // A pipe can be read only once.
        if !file.metadata()?.is_file() {
            return read_limited(file);
        }
        let (before, length) = (file.metadata()?.modified()?, file.metadata()?.len());
        // A modification time in the future proves nothing, so the file counts as settled.
        let since = before.elapsed().unwrap_or(WRITE_QUIET_PERIOD);
        if since < WRITE_QUIET_PERIOD {
            thread::sleep(WRITE_QUIET_PERIOD - since);
            continue;
        }
        let lease = match ReadLease::take(&file) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                thread::sleep(RETRY_INTERVAL);
                continue;
            }
            lease => lease?,
        };
        let bytes = read_limited(&file)?;
        drop(lease);
        if (before, length) == (file.metadata()?.modified()?, file.metadata()?.len()) {
            return Ok(bytes);
        }
    }
    Err(io::Error::other("another process is writing to it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_lines_and_columns() {
        let source = SourceFile::new("a".into(), "ä = 1\n\nb".into());
        assert_eq!(
            [0, 2, 3, 7, 8, 9].map(|byte| source.line_and_column(byte)),
            [(1, 1), (1, 2), (1, 3), (2, 1), (3, 1), (3, 2)]
        );
        let source = SourceFile::new("a".into(), "a\n\t b; \n".into());
        assert_eq!(
            [0, 1, 2, 3, 4].map(|line| source.span(line)),
            [None, Some(0..1), Some(4..6), Some(8..8), None]
        );
    }
}
