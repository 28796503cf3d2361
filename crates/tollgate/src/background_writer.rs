//! Writes in a thread of its own, so that the sender of an item never waits for a reader: a guard
//! must release processes in time, even if nobody reads what it logs.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How many bytes can wait to be written. It is much more than Tollgate reads from the kernel at a
/// time (a plugin's buffer holds 256 KiB, the session's 1 MiB), so nothing is lost while there is
/// a reader.
const MAX_QUEUED_BYTES: usize = 16 << 20;
/// How often a wait for the end of the queue checks whether it is to be given up.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// What the thread writes to.
pub trait WriteTarget<T>: Send + 'static {
    /// Writes an item. May block.
    fn write(&mut self, item: T);

    /// There was no room for so many items after the one that was written last.
    fn note_lost(&mut self, lost: u64);
}

/// The near end of the queue. Its thread ends after it when everything is written.
pub struct BackgroundWriter<T>(Arc<WriteQueue<T>>);

struct WriteQueue<T> {
    state: Mutex<QueueState<T>>,
    changed: Condvar,
}

struct QueueState<T> {
    entries: VecDeque<QueueEntry<T>>,
    /// The length of all items in the queue.
    bytes: usize,
    /// The thread is writing an entry that it has taken from the queue.
    is_writing: bool,
    /// Nothing is waited for any more.
    is_given_up: bool,
    /// The near end is gone.
    is_closed: bool,
}

enum QueueEntry<T> {
    /// An item and its length.
    Item(T, usize),
    Lost(u64),
}

impl<T> QueueState<T> {
    fn is_unwritten(&self) -> bool {
        self.is_writing || !self.entries.is_empty()
    }
}

impl<T> WriteQueue<T> {
    fn lock(&self) -> MutexGuard<'_, QueueState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next entry. `None` if there will be none.
    fn next(&self) -> Option<QueueEntry<T>> {
        let mut state = self.lock();
        state.is_writing = false;
        self.changed.notify_all();
        while state.entries.is_empty() && !state.is_closed {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let entry = state.entries.pop_front()?;
        if let QueueEntry::Item(_, length) = &entry {
            state.bytes -= length;
        }
        state.is_writing = true;
        Some(entry)
    }
}

impl<T: Send + 'static> BackgroundWriter<T> {
    /// Starts the thread, whose name is `name`.
    pub fn start(name: &str, mut target: impl WriteTarget<T>) -> io::Result<Self> {
        let queue = Arc::new(WriteQueue {
            state: Mutex::new(QueueState {
                entries: VecDeque::new(),
                bytes: 0,
                is_writing: false,
                is_given_up: false,
                is_closed: false,
            }),
            changed: Condvar::new(),
        });
        let entries = Arc::clone(&queue);
        thread::Builder::new().name(name.into()).spawn(move || {
            while let Some(entry) = entries.next() {
                match entry {
                    QueueEntry::Item(item, _) => target.write(item),
                    QueueEntry::Lost(lost) => target.note_lost(lost),
                }
            }
        })?;
        Ok(Self(queue))
    }
}

impl<T> BackgroundWriter<T> {
    /// Has an item of this length written. Returns whether there was room for it; otherwise, it is
    /// lost.
    pub fn send(&self, item: T, length: usize) -> bool {
        let mut state = self.0.lock();
        let has_room = state.bytes + length <= MAX_QUEUED_BYTES;
        match state.entries.back_mut() {
            _ if has_room => {
                state.bytes += length;
                state.entries.push_back(QueueEntry::Item(item, length));
            }
            Some(QueueEntry::Lost(lost)) => *lost += 1,
            _ => state.entries.push_back(QueueEntry::Lost(1)),
        }
        self.0.changed.notify_all();
        has_room
    }

    /// Waits until everything is written, until `limit` has passed, or until `gives_up` says so.
    /// Later calls then wait no more.
    pub fn wait_until_written(&self, limit: Option<Duration>, gives_up: impl FnMut() -> bool) {
        let mut state = self.wait(limit, gives_up);
        state.is_given_up |= state.is_unwritten();
    }

    /// Waits until everything is written, but no longer than `limit`.
    pub fn catch_up(&self, limit: Duration) {
        drop(self.wait(Some(limit), || false));
    }

    fn wait(
        &self,
        limit: Option<Duration>,
        mut gives_up: impl FnMut() -> bool,
    ) -> MutexGuard<'_, QueueState<T>> {
        let end = limit.map(|limit| Instant::now() + limit);
        let mut state = self.0.lock();
        while state.is_unwritten() && !state.is_given_up {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) || gives_up() {
                break;
            }
            let wait = left.unwrap_or(CHECK_INTERVAL).min(CHECK_INTERVAL);
            let waited = self.0.changed.wait_timeout(state, wait);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state
    }
}

impl<T> Drop for BackgroundWriter<T> {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// Writes an item when the other end of the channel says so.
    struct SlowTarget {
        may_write: Receiver<()>,
        written: Sender<String>,
    }

    impl WriteTarget<String> for SlowTarget {
        fn write(&mut self, item: String) {
            let _ = self.may_write.recv();
            let _ = self.written.send(item);
        }

        fn note_lost(&mut self, lost: u64) {
            let _ = self.written.send(format!("{lost} lost"));
        }
    }

    #[test]
    fn catching_up_ends_at_its_limit_and_when_all_is_written() {
        let (allow, may_write) = channel();
        let (written, lines) = channel();
        let writer = BackgroundWriter::start("writer", SlowTarget { may_write, written });
        let writer = writer.expect("a thread");
        assert!(writer.send("one".into(), 3));
        writer.catch_up(Duration::from_millis(1));
        assert!(lines.try_recv().is_err());
        allow.send(()).expect("it waits");
        writer.catch_up(Duration::from_secs(60));
        assert_eq!(lines.try_recv().as_deref(), Ok("one"));
    }

    #[test]
    fn sender_waits_for_nobody_and_losses_are_where_they_occurred() {
        let (allow, may_write) = channel();
        let (written, lines) = channel();
        let writer = BackgroundWriter::start("writer", SlowTarget { may_write, written });
        let writer = writer.expect("a thread");
        assert!(writer.send("first".into(), MAX_QUEUED_BYTES));
        // The first one is being written, and leaves its room.
        while writer.0.lock().bytes > 0 {
            thread::yield_now();
        }
        assert!(writer.send("second".into(), MAX_QUEUED_BYTES));
        assert!(!writer.send("third".into(), 1) && !writer.send("fourth".into(), 1));
        allow.send(()).expect("it writes");
        assert_eq!(lines.recv().expect("it writes"), "first");
        while writer.0.lock().bytes > 0 {
            thread::yield_now();
        }
        assert!(writer.send("fifth".into(), 1));
        // The writer is dropped first: the rest is written nevertheless.
        drop(writer);
        allow.send(()).expect("it writes");
        allow.send(()).expect("it writes");
        drop(allow);
        assert_eq!(lines.iter().collect::<Vec<_>>(), ["second", "2 lost", "fifth"]);
    }

    #[test]
    fn wait_for_a_blocked_target_is_given_up() {
        let (allow, may_write) = channel();
        let (written, lines) = channel();
        let writer = BackgroundWriter::start("writer", SlowTarget { may_write, written });
        let writer = writer.expect("a thread");
        assert!(writer.send("first".into(), 1));
        let mut asked = 0;
        writer.wait_until_written(None, || {
            asked += 1;
            asked == 2
        });
        writer.wait_until_written(None, || unreachable!("it was given up"));
        drop(allow);
        assert_eq!(lines.recv().expect("it writes"), "first");
    }
}
