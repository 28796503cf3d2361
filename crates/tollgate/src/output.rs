//! Destinations of results: a file, stdout, or (for `run`, whose stdout is the command's) stderr.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Serialize;

/// The destination of a result. It is tried before the work begins, so that a bad path does not
/// waste a long run.
pub enum Output {
    Stdout,
    Stderr,
    /// A file, which is open already if it existed before.
    File(Option<File>, PathBuf),
}

impl Output {
    /// The file at the path, stdout for "-", or `otherwise` without a path.
    pub fn open(path: Option<&Path>, otherwise: Self) -> Result<Self> {
        let Some(path) = path else {
            return Ok(otherwise);
        };
        if is_stdio(path) {
            return Ok(Self::Stdout);
        }
        let file = open_for_append(path)
            .with_context(|| format!("cannot write the result to {}", path.display()))?;
        Ok(Self::File(file, path.to_owned()))
    }

    /// Replaces the content of a file, or appends to a stream.
    pub fn write(&mut self, text: &str) -> Result<()> {
        self.write_bytes(text.as_bytes())
    }

    /// As [`Self::write`].
    pub fn write_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.write_by(|to| to.write_all(bytes))
    }

    /// Writes a document as one line, without a copy of the line in memory.
    pub fn write_json(&mut self, document: &impl Serialize) -> Result<()> {
        self.write_by(|to| {
            let mut to = BufWriter::new(to);
            serde_json::to_writer(&mut to, document)?;
            writeln!(to)?;
            to.flush()
        })
    }

    /// If stdout has no reader any more, as with `| head`, this is not an error and does not change
    /// the exit status.
    fn write_by(&mut self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
        match self {
            Self::Stdout => match stdout().and_then(|mut stdout| write(&mut stdout)) {
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
                written => written.context("cannot write the result to stdout"),
            },
            Self::Stderr => write(&mut io::stderr()).context("cannot write the result to stderr"),
            Self::File(file, path) => write_to(file.take(), path, write)
                .with_context(|| format!("cannot write the result to {}", path.display())),
        }
    }
}

/// Writes a line to stdout; returns whether stdout still has a reader.
pub fn line(text: &str) -> Result<bool> {
    match stdout().and_then(|mut stdout| writeln!(stdout, "{text}")) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true).context("cannot write to stdout"),
    }
}

fn stdout() -> io::Result<io::Stdout> {
    if kernel::std_fds::was_closed(libc::STDOUT_FILENO) {
        Err(io::Error::other("it is closed"))
    } else {
        Ok(io::stdout())
    }
}

/// Whether the path is "-", for stdin or stdout.
pub fn is_stdio(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Opens the file without changing it: a run that is refused or killed leaves neither an empty file
/// nor an emptied one.
fn open_for_append(path: &Path) -> io::Result<Option<File>> {
    if path.exists() {
        return OpenOptions::new().write(true).open(path).map(Some);
    }
    File::create_new(path)?;
    fs::remove_file(path)?;
    Ok(None)
}

fn write_to(
    file: Option<File>,
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let mut file = match file {
        Some(file) => file,
        None => File::create(path)?,
    };
    // Devices and pipes have no length.
    let is_file = file.metadata()?.is_file();
    if is_file {
        file.set_len(0)?;
    }
    let written = write(&mut file);
    if written.is_err() && is_file {
        // Part of a document is worse than none.
        let _ = file.set_len(0);
    }
    written
}

/// Fails if stdout is not a terminal. The error names `otherwise`, the command that prints the same
/// values once and exits.
pub fn needs_terminal(command: &str, otherwise: &str) -> Result<()> {
    if !io::stdout().is_terminal() {
        bail!("`{command}` needs a terminal; `{otherwise}` prints the same once");
    }
    Ok(())
}

/// Prints a message on stderr. The standard library appends the error number to the system's
/// messages; it is removed here because it adds nothing.
pub fn print_message(message: &str) -> io::Result<()> {
    writeln!(io::stderr(), "{}", without_numbers(message))
}

/// Logs a message; if stderr is gone, the message is lost.
pub fn log_message(message: &str) {
    let _ = print_message(&format!("tollgate: {message}"));
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
        let message =
            "cannot read x: No such file (os error 2); and y: Is a directory (os error 21)";
        assert_eq!(without_numbers(message), "cannot read x: No such file; and y: Is a directory");
        assert_eq!(without_numbers("open (os error "), "open (os error ");
    }
}
