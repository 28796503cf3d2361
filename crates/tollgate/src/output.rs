//! Destinations of results: a file, stdout, or (for `run`, whose stdout is the command's) stderr.

use std::fs::{self, Metadata};
use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, OnceLock};
use std::time::Duration;
use std::{process, thread};

use anyhow::{Context, Result, bail};
use kernel::signals::was_termination_requested;
use kernel::standard_stream::StandardStream;
use serde::Serialize;

use crate::background_writer::{BackgroundWriter, WriteTarget};
use crate::format::{number_of, shown_path, without_controls};
use crate::result_file::{ResultFile, descriptor};

/// The destination of a result. It is tried before the work begins, so that a bad path does not
/// waste a long run.
pub enum Output {
    Stdout,
    Stderr,
    /// A file.
    File {
        /// As the user has given it.
        path: PathBuf,
        file: ResultFile,
        /// What is written, for messages: "the result".
        what: &'static str,
    },
}

impl Output {
    /// The file at the path, stdout for "-", or `otherwise` without a path.
    pub fn open(path: Option<&Path>, otherwise: Self) -> Result<Self> {
        path.map_or(Ok(otherwise), |path| Self::at(path, "the result"))
    }

    /// The file at the path, or stdout for "-". Messages say `what` is written.
    pub fn at(path: &Path, what: &'static str) -> Result<Self> {
        match descriptor(path) {
            _ if is_stdio(path) => return Ok(Self::Stdout),
            Some(libc::STDOUT_FILENO) => return Ok(Self::Stdout),
            Some(libc::STDERR_FILENO) => return Ok(Self::Stderr),
            _ => {}
        }
        let file = ResultFile::open(path)
            .with_context(|| format!("cannot write {what} to {}", shown_path(path)))?;
        Ok(Self::File { path: path.to_owned(), file, what })
    }

    /// Fails if the result would replace one of these inputs.
    pub fn refuse_inputs<P: AsRef<Path>>(&self, inputs: impl IntoIterator<Item = P>) -> Result<()> {
        let Self::File { path, what, .. } = self else { return Ok(()) };
        let identity = |path: &Path| {
            let file = fs::metadata(path).ok().filter(Metadata::is_file)?;
            Some((file.dev(), file.ino()))
        };
        let own = identity(path);
        if own.is_some() && inputs.into_iter().any(|input| identity(input.as_ref()) == own) {
            bail!("{what} would replace the input {}; give another file", shown_path(path));
        }
        Ok(())
    }

    /// The width of the terminal, if the result goes to one.
    pub fn columns(&self) -> Option<usize> {
        match self {
            Self::Stdout => StandardStream::STDOUT.columns(),
            Self::Stderr => StandardStream::STDERR.columns(),
            Self::File { .. } => None,
        }
    }

    /// Replaces the content of a file, or appends to a stream. If a file cannot be written, the
    /// text goes to stderr: a long measurement must not be lost because a disk is full.
    pub fn write(&mut self, text: &str) -> Result<()> {
        let text = displayed(text);
        self.write_or_to_stderr(|to| to.write_all(text.as_bytes()))
    }

    /// As [`Self::write`], but never to stderr.
    pub fn write_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.write_by(|to| to.write_all(bytes))
    }

    /// Writes a document as one line, without a copy of the line in memory. Otherwise as
    /// [`Self::write`].
    pub fn write_json(&mut self, document: &impl Serialize) -> Result<()> {
        self.write_or_to_stderr(|to| {
            let mut to = BufWriter::new(to);
            serde_json::to_writer(&mut to, document)?;
            writeln!(to)?;
            to.flush()
        })
    }

    /// If stdout has no reader any more, as with `| head`, this is not an error and does not change
    /// the exit status.
    fn write_by(&self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
        // A report on a terminal follows the messages before it.
        if matches!(self, Self::Stderr) || io::stdout().is_terminal() {
            wait_for_messages(None);
        }
        match self {
            Self::Stdout => match to_stream(StandardStream::STDOUT, write) {
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
                written => written.context("cannot write the result to stdout"),
            },
            Self::Stderr => to_stream(StandardStream::STDERR, write)
                .context("cannot write the result to stderr"),
            Self::File { path, file, what } => file
                .replace(write)
                .with_context(|| format!("cannot write {what} to {}", shown_path(path))),
        }
    }

    /// If a file cannot be written, writes to stderr. This is a failure nevertheless.
    fn write_or_to_stderr(&self, write: impl Fn(&mut dyn Write) -> io::Result<()>) -> Result<()> {
        let written = self.write_by(&write);
        if written.is_err() && matches!(self, Self::File { .. }) {
            log_message("the result could not be written to the file; it follows here");
            wait_for_messages(None);
            let _ = to_stream(StandardStream::STDERR, write);
        }
        written
    }
}

fn to_stream(
    mut stream: StandardStream,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    if stream.was_closed() {
        return Err(io::Error::other("it is closed"));
    }
    write(&mut stream)
}

/// Writes a line to stdout; returns whether stdout still has a reader.
pub fn line(text: &str) -> Result<bool> {
    let line = displayed(text) + "\n";
    match to_stream(StandardStream::STDOUT, |stdout| stdout.write_all(line.as_bytes())) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true).context("cannot write to stdout"),
    }
}

/// From now on, this process ends when stdout has no reader any more. A command that follows
/// something would otherwise notice it only with its next line.
pub fn end_with_the_reader() -> Result<()> {
    let wait = || {
        StandardStream::STDOUT.wait_for_end();
        process::exit(0);
    };
    thread::Builder::new().spawn(wait).context("cannot start a thread")?;
    Ok(())
}

/// Whether the path is "-", for stdin or stdout.
pub fn is_stdio(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Fails if stdout is not a terminal. The error names `otherwise`, the command that prints the same
/// values once and exits.
pub fn needs_terminal(command: &str, otherwise: &str) -> Result<()> {
    if !io::stdout().is_terminal() {
        bail!("`{command}` needs a terminal; `{otherwise}` prints the same once");
    }
    Ok(())
}

/// The writer of messages, if [`write_messages_in_background`] has started it.
static MESSAGES: OnceLock<Option<BackgroundWriter<String>>> = OnceLock::new();
/// Messages for which it had no room.
static LOST_MESSAGES: AtomicU64 = AtomicU64::new(0);

struct MessageTarget;

impl WriteTarget<String> for MessageTarget {
    fn write(&mut self, line: String) {
        // If stderr has no reader any more, the message is lost.
        let _ = { StandardStream::STDERR }.write_all(line.as_bytes());
    }

    fn note_lost(&mut self, lost: u64) {
        let messages = number_of(lost as usize, "message");
        self.write(format!("tollgate: {messages} lost here: stderr was not read\n"));
    }
}

/// From now on, no message waits until stderr is read. If no thread can be started, messages are
/// written as before.
pub fn write_messages_in_background() {
    MESSAGES.get_or_init(|| BackgroundWriter::start("messages", MessageTarget).ok());
}

/// Waits until the messages are written, until a signal requests the end, or until the limit has
/// passed.
pub fn wait_for_messages(limit: Option<Duration>) {
    if let Some(Some(messages)) = MESSAGES.get() {
        // Only a new signal counts: an earlier one has ended the command.
        was_termination_requested();
        messages.wait_until_written(limit, was_termination_requested);
    }
}

/// Waits a moment until the messages are written. Without a reader, they are not.
pub fn let_messages_be_written() {
    /// What a busy processor takes for it. A client of the daemon waits no longer for its reply.
    const LIMIT: Duration = Duration::from_millis(20);
    if let Some(Some(messages)) = MESSAGES.get() {
        messages.catch_up(LIMIT);
    }
}

/// The number of messages that were lost because stderr was not read.
pub fn lost_messages() -> u64 {
    LOST_MESSAGES.load(Ordering::Relaxed)
}

/// Prints a message on stderr.
pub fn print_message(message: &str) -> io::Result<()> {
    let line = displayed(&without_numbers(message)) + "\n";
    match MESSAGES.get() {
        Some(Some(messages)) => {
            let length = line.len();
            if !messages.send(line, length) {
                LOST_MESSAGES.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        }
        _ => { StandardStream::STDERR }.write_all(line.as_bytes()),
    }
}

/// Logs a message; if stderr is gone, the message is lost.
pub fn log_message(message: &str) {
    let _ = print_message(&format!("tollgate: {message}"));
}

/// A text as it is written. Names in it may come from anywhere: the parts of a text escape those
/// that could forge a line, and this keeps what they missed from controlling the terminal.
fn displayed(text: &str) -> String {
    in_locale(&without_controls(text))
}

/// Replaces letters that the user's locale does not have, as locale(7) finds it. A locale that is
/// not set has them.
fn in_locale(text: &str) -> String {
    static IS_ASCII: LazyLock<bool> = LazyLock::new(|| {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        is_ascii_locale(["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set).as_deref())
    });
    if !*IS_ASCII || text.is_ascii() {
        return text.to_owned();
    }
    text.replace('…', "...").replace('×', "x").replace('±', "+-")
}

fn is_ascii_locale(locale: Option<&str>) -> bool {
    locale.is_some_and(|locale| locale == "C" || locale == "POSIX")
}

/// A message of the system without the error number that the standard library appends to it, which
/// adds nothing.
pub fn without_numbers(message: &str) -> String {
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
    fn locales_without_unicode() {
        assert!(is_ascii_locale(Some("C")) && is_ascii_locale(Some("POSIX")));
        assert!(!is_ascii_locale(Some("C.UTF-8")) && !is_ascii_locale(Some("de_DE.UTF-8")));
        assert!(!is_ascii_locale(None));
    }

    #[test]
    fn sentences_have_no_error_numbers() {
        let message =
            "cannot read x: No such file (os error 2); and y: Is a directory (os error 21)";
        assert_eq!(without_numbers(message), "cannot read x: No such file; and y: Is a directory");
        assert_eq!(without_numbers("open (os error "), "open (os error ");
    }
}
