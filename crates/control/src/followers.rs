//! Followers: clients that get further lines after the reply, as they come.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
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
    /// What comes after all other lines. It exists as long as the follower reads.
    last_lines: Arc<LastLines>,
}

/// The sending side of an [`EventReceiver`].
pub struct EventSender {
    lines: SyncSender<Arc<str>>,
    last_lines: Weak<LastLines>,
}

/// The lines with which a sender ends. They have room even if the follower is behind.
#[derive(Default)]
struct LastLines(Mutex<VecDeque<Arc<str>>>);

impl LastLines {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<str>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EventReceiver {
    /// Waits for the next line. Fails if none comes within the limit, or if the sender is gone.
    pub fn next_line(&self, limit: Duration) -> Result<Arc<str>, RecvTimeoutError> {
        self.lines.recv_timeout(limit).or_else(|error| match error {
            RecvTimeoutError::Disconnected => self.last_lines.lock().pop_front().ok_or(error),
            RecvTimeoutError::Timeout => Err(error),
        })
    }
}

impl EventSender {
    /// A channel of [`MAX_QUEUED_LINES`] lines; while it is full, further lines are lost.
    pub fn new() -> (Self, EventReceiver) {
        let (to, lines) = sync_channel(MAX_QUEUED_LINES);
        let last_lines = Arc::new(LastLines::default());
        let sender = Self { lines: to, last_lines: Arc::downgrade(&last_lines) };
        (sender, EventReceiver { lines, last_lines })
    }

    /// Whether the follower still reads.
    pub fn is_followed(&self) -> bool {
        self.last_lines.strong_count() > 0
    }

    /// Sends a line. Returns whether there was room for it.
    pub fn send_line(&self, line: &Arc<str>) -> bool {
        self.lines.try_send(Arc::clone(line)).is_ok()
    }

    /// Ends with these lines, which come after all lines that were sent, and are never lost.
    pub fn end_with(self, lines: impl IntoIterator<Item = Arc<str>>) {
        if let Some(last_lines) = self.last_lines.upgrade() {
            last_lines.lock().extend(lines);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_lines_reach_a_follower_that_is_behind() {
        let (sender, receiver) = EventSender::new();
        let line = Arc::from("line");
        while sender.send_line(&line) {}
        sender.end_with(["lost".into(), "end".into()]);
        let lines: Vec<_> =
            std::iter::from_fn(|| receiver.next_line(Duration::from_secs(10)).ok()).collect();
        assert_eq!(lines.len(), MAX_QUEUED_LINES + 2);
        assert_eq!(lines[MAX_QUEUED_LINES..].join(" "), "lost end");
    }
}
