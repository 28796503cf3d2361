//! Followers: clients that get further lines after the reply, as they come.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use serde_json::Value;

/// How many lines can wait for a follower to read them. Further lines are lost.
const MAX_QUEUED_LINES: usize = 10_000;

/// What the daemon replies to a request.
pub enum Response {
    /// One value, and nothing more.
    Value(Value),
    /// The lines that exist and, for a follower, the receiver of new ones.
    Lines(Vec<Arc<str>>, Option<EventReceiver>),
}

/// The receiving side of a follower's events.
pub struct EventReceiver {
    lines: Receiver<Arc<str>>,
    /// Exists as long as the follower reads.
    _reads: Arc<()>,
}

/// The sending side of an [`EventReceiver`].
pub struct EventSender {
    lines: SyncSender<Arc<str>>,
    reads: Weak<()>,
}

impl EventReceiver {
    /// Waits for the next line. Fails if none comes within the limit, or if the sender is gone.
    pub fn next_line(&self, limit: Duration) -> Result<Arc<str>, RecvTimeoutError> {
        self.lines.recv_timeout(limit)
    }
}

impl EventSender {
    /// A channel of [`MAX_QUEUED_LINES`] lines; while it is full, further lines are lost.
    pub fn new() -> (Self, EventReceiver) {
        let (to, lines) = sync_channel(MAX_QUEUED_LINES);
        let reads = Arc::new(());
        (Self { lines: to, reads: Arc::downgrade(&reads) }, EventReceiver { lines, _reads: reads })
    }

    /// Whether the follower still reads.
    pub fn is_followed(&self) -> bool {
        self.reads.strong_count() > 0
    }

    /// Sends a line. Returns whether there was room for it.
    pub fn send_line(&self, line: &Arc<str>) -> bool {
        self.lines.try_send(Arc::clone(line)).is_ok()
    }
}
