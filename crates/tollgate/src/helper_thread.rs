//! Work on files of other users, which may never end: a file system of a network or of FUSE need
//! not answer.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

/// The maximum number of threads that wait for such files.
const MAX_THREADS: usize = 8;

static THREADS: AtomicUsize = AtomicUsize::new(0);

/// Does the work in a thread of its own. Returns what the work sends until it ends, or until it has
/// sent nothing for this time. The thread then goes on without effect. If too many threads have
/// been left in this way, nothing is done.
pub fn results_within<T: Send + 'static>(
    longest_pause: Duration,
    work: impl FnOnce(&Sender<T>) + Send + 'static,
) -> Vec<T> {
    if THREADS.fetch_add(1, Ordering::Relaxed) >= MAX_THREADS {
        THREADS.fetch_sub(1, Ordering::Relaxed);
        return Vec::new();
    }
    let (sender, receiver) = channel();
    let in_thread = move || {
        work(&sender);
        THREADS.fetch_sub(1, Ordering::Relaxed);
    };
    if thread::Builder::new().spawn(in_thread).is_err() {
        THREADS.fetch_sub(1, Ordering::Relaxed);
    }
    std::iter::from_fn(|| receiver.recv_timeout(longest_pause).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_does_not_end_is_left() {
        let (end, ended) = channel::<()>();
        let some = results_within(Duration::from_millis(50), move |to| {
            let _ = to.send(1);
            let _ = ended.recv();
            let _ = to.send(2);
        });
        assert_eq!(some, [1]);
        drop(end);
        assert_eq!(results_within(Duration::from_secs(60), |to| to.send(3).unwrap_or(())), [3]);
    }
}
