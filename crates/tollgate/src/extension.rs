//! The contract between a session and the extensions that take part in it.
//!
//! A command describes each extension with an [`ExtensionSetup`]. The runner of the session
//! (`session_runner.rs`) collects what the setups need, starts the session, and makes an
//! [`Extension`] of each. It calls the extensions in the order in which the command lists them.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use control::Response;
use kernel::gate::{Gate, Lock};
use kernel::losses::LOSS_REASONS;
use kernel::session::{LiveThread, Session, SessionOptions};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::report::Section;

/// The reply to a request that cannot be parsed, or that is for no extension.
pub const NOT_UNDERSTOOD: &str = "the daemon does not understand this request";

/// Losses by reason.
pub type Losses = BTreeMap<String, u64>;

/// What an extension works on, lent for one call of a method.
pub struct SessionContext<'a> {
    pub gate: &'a mut Gate,
    pub session: &'a Session,
}

/// Tasks that are about to join the session.
pub enum Joining<'a> {
    /// Tasks that join later, whose programs are not known yet.
    Later,
    /// A command, which has not started.
    Command { program: &'a Path, words: &'a [OsString] },
    /// Running processes. An extension may add the scope of a process, by its PID.
    Processes { pids: &'a [u32], scopes: &'a mut BTreeMap<u32, u64> },
}

/// A request to a daemon.
pub struct Request {
    /// The process that sent it.
    pub process: u32,
    pub value: Value,
    /// Reads the losses of the session, for replies that include them.
    pub losses: LossReader,
}

impl Request {
    /// The request as the extension's type, and the reader of the losses.
    pub fn parse<T: DeserializeOwned>(self) -> Result<(T, LossReader)> {
        let request = serde_json::from_value(self.value).context(NOT_UNDERSTOOD)?;
        Ok((request, self.losses))
    }
}

/// A loss that Tollgate counts itself: times in which no generation of the gate was active.
pub const GAPS: &str = "gaps after the process that held the gate was killed";
/// A loss that Tollgate counts itself: records for which a plugin's buffer had no room.
pub const PLUGIN_RECORDS_LOST: &str = "plugin records lost (buffer full)";
/// A loss that Tollgate counts itself: events of the guard that `daemon --events` could not append.
pub const EVENTS_NOT_WRITTEN: &str = "guard events not written to the file of --events";
/// A loss that Tollgate counts itself: messages, and output of plugins, beyond what can wait for a
/// reader of stderr.
pub const MESSAGES_NOT_WRITTEN: &str = "messages not written (stderr was not read)";

/// A loss that Tollgate counts itself: calls that a session within this one has counted.
pub const CALLS_OF_INNER_SESSIONS: &str =
    "calls only in the tables (another session watched their threads)";

/// A loss that Tollgate counts itself: programs whose files the guard did not hash.
pub const PROGRAMS_NOT_IDENTIFIED: &str = "programs not identified (file not hashed)";

/// Reads the losses of a session when they are needed.
pub struct LossReader {
    pub session: u32,
    /// Losses that the gate does not count.
    pub others: Losses,
}

impl LossReader {
    /// All losses that have occurred.
    pub fn read(self, gate: &Gate) -> Result<Losses> {
        let counted = LOSS_REASONS.iter().zip(gate.losses(self.session)?);
        let mut losses: Losses = counted
            .map(|(reason, n)| (reason.text.to_owned(), n))
            .filter(|(_, n)| *n > 0)
            .collect();
        losses.extend(self.others);
        Ok(losses)
    }
}

/// An extension before its session has started.
pub trait ExtensionSetup {
    /// Adds what the extension needs to the options of the session.
    fn configure(&self, options: &mut SessionOptions);

    /// Starts the extension. The session exists and has no tasks.
    fn start(self: Box<Self>, context: &mut SessionContext<'_>) -> Result<Box<dyn Extension>>;
}

/// An extension of a running session.
pub trait Extension {
    /// Prepares for tasks before they join.
    fn prepare(
        &mut self,
        _context: &mut SessionContext<'_>,
        _joining: &mut Joining<'_>,
    ) -> Result<()> {
        Ok(())
    }

    /// Sets the time from which the report counts. Called when everything is prepared.
    fn begin(&mut self, _began_ns: u64) {}

    /// What a daemon logs about the extension when it has started. `processes` is the number of
    /// processes that joined, or `None` if the session has every process of the machine.
    fn summary(&self, _processes: Option<usize>) -> Option<String> {
        None
    }

    /// Processes a record of the session's ring. Returns whether the record belongs to the
    /// extension.
    fn on_record(&mut self, _context: &mut SessionContext<'_>, _record: &[u8]) -> Result<bool> {
        Ok(false)
    }

    /// Does what is due. Called after each round of records, at the latest when
    /// [`Self::deadline`] has passed.
    fn tend(&mut self, _context: &mut SessionContext<'_>) -> Result<()> {
        Ok(())
    }

    /// Finishes what is in progress, within about a second. Called at the end of a session, before
    /// anything is saved.
    fn settle(&mut self, _context: &mut SessionContext<'_>) -> Result<()> {
        Ok(())
    }

    /// The time until the next call of [`Self::tend`], at most `longest`.
    fn deadline(&self, longest: Duration) -> Duration {
        longest
    }

    /// Does what is due twice a second in a daemon. The daemon logs a failure and continues.
    fn refresh(&mut self, _context: &mut SessionContext<'_>) -> Result<()> {
        Ok(())
    }

    /// Reads rows that have ended, before they are freed.
    fn finish_rows(
        &mut self,
        _context: &mut SessionContext<'_>,
        _lock: &Lock,
        _rows: &BTreeSet<u32>,
    ) -> Result<()> {
        Ok(())
    }

    /// The key of the requests that the extension replies to.
    fn request_key(&self) -> Option<&'static str> {
        None
    }

    /// Notes that a process has sent a request to the daemon, whatever its key.
    fn note_client(&mut self, _context: &mut SessionContext<'_>, _process: u32) {}

    /// Carries out a request that has [`Self::request_key`].
    fn reply(&mut self, _context: &mut SessionContext<'_>, _request: Request) -> Result<Response> {
        bail!("this extension takes no requests")
    }

    /// Losses that the gate does not count.
    fn losses(&self) -> Losses {
        Losses::new()
    }

    /// Writes the extension's metrics.
    fn metrics(
        &mut self,
        _context: &mut SessionContext<'_>,
        _losses: &Losses,
        _page: &mut String,
    ) -> Result<()> {
        Ok(())
    }

    /// Keeps what would be lost with the tasks. Called for a report, just before the tasks are
    /// detached. `live` are the threads of the session.
    fn before_detach(&mut self, _live: &[LiveThread]) {}

    /// Reads what other sessions could change. Called after [`Self::save`], with the gate locked
    /// until the tasks are detached, so that no other session takes tasks over.
    fn at_detach(&mut self, _context: &mut SessionContext<'_>, _lock: &Lock) -> Result<()> {
        Ok(())
    }

    /// Sets the time from which on nothing counts. Called for a report.
    fn stop(&mut self, _ended_ns: u64) {}

    /// Saves what must outlast the session. Called at its end.
    fn save(&mut self) -> Result<()> {
        Ok(())
    }

    /// Returns the extension's section of the report, and adds notes about it. Called when nothing
    /// is counted any more.
    fn section(
        &mut self,
        _context: &mut SessionContext<'_>,
        _notes: &mut Vec<String>,
    ) -> Result<Option<Box<dyn Section>>> {
        Ok(None)
    }

    /// Whether a file that the user asked for, besides the report, could not be written. A note
    /// says which one. Called after [`Self::section`].
    fn has_unwritten_file(&self) -> bool {
        false
    }

    /// Frees what belongs to the session's number, which another session may get next.
    fn leave(&mut self) {}

    /// The session has ended, and no task is held any more.
    fn end(&mut self) {}
}
