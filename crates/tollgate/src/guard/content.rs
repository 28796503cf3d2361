//! Which content a program has. Anybody may execute a file of a terabyte, most of which takes no room on any disk, so what
//! takes long is read beside the guard's work, and what takes too long is not.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::Read as _;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SendError, Sender, channel};
use std::thread;

use kernel::wire;

use super::baseline::Digest;
use super::file::key;

/// Read at once, in some hundredths of a second.
pub const SHORT: u64 = 16 << 20;
/// What is longer has no baseline.
const LONGEST: u64 = 1 << 30;
/// Files that wait, each open. What comes when there are as many has no baseline either.
const MOST_WAITING: usize = 16;

/// A program that began.
pub struct Met {
    pub place: u32,
    pub key: wire::guard_program,
    pub file: File,
    pub path: PathBuf,
    pub metadata: Metadata,
    /// The name of its scope.
    pub scope: Option<String>,
}

/// The digest, unless the file cannot be read, or is too long.
type Known = (Met, Option<Digest>);

/// With a thread, once one is needed.
#[derive(Default)]
pub struct Reader {
    beside: Option<(Sender<Met>, Receiver<Known>)>,
    waiting: usize,
    digests: Digests,
}

fn start() -> (Sender<Met>, Receiver<Known>) {
    let (to, asked) = channel::<Met>();
    let (answer, from) = channel();
    let read = move || {
        for met in asked {
            let digest = digest(&met.file, &met.metadata);
            if answer.send((met, digest)).is_err() {
                break;
            }
        }
    };
    // If there can be none, it cannot be sent anything.
    let _ = thread::Builder::new().spawn(read);
    (to, from)
}

impl Reader {
    /// At once if it is short; otherwise it is among those that are [`Reader::done`] later.
    pub fn read(&mut self, met: Met) -> Option<Known> {
        let length = met.metadata.len();
        if length > LONGEST {
            return Some((met, None));
        }
        if length > SHORT && !self.digests.has(&met.metadata) {
            if self.waiting == MOST_WAITING {
                return Some((met, None));
            }
            let (to, _) = self.beside.get_or_insert_with(start);
            let refused = to.send(met).err().map(|SendError(met)| (met, None));
            self.waiting += usize::from(refused.is_none());
            return refused;
        }
        let digest = self.digest(&met.file, &met.metadata);
        Some((met, digest))
    }

    /// However long it takes.
    pub fn digest(&mut self, file: &File, metadata: &Metadata) -> Option<Digest> {
        self.digests.get(metadata, || digest(file, metadata))
    }

    pub fn done(&mut self) -> Vec<Known> {
        let done: Vec<_> = self.beside.iter().flat_map(|(_, from)| from.try_iter()).collect();
        self.waiting -= done.len();
        for (met, digest) in &done {
            self.digests.get(&met.metadata, || *digest);
        }
        done
    }
}

/// Once it has ended, its file may grow.
fn digest(file: &File, metadata: &Metadata) -> Option<Digest> {
    Digest::of_all(file.take(metadata.len())).ok()
}

/// Of files that were read, so that one that is many programs, by their scopes, is read once.
#[derive(Default)]
struct Digests {
    known: BTreeMap<(u32, u64, i64, u64), Digest>,
}

impl Digests {
    fn key(metadata: &Metadata) -> (u32, u64, i64, u64) {
        let wire::guard_program { inode, ctime_ns, size, device, .. } = key(metadata, 0, 0);
        (device, inode, ctime_ns, size)
    }

    fn has(&self, metadata: &Metadata) -> bool {
        self.known.contains_key(&Self::key(metadata))
    }

    fn get(&mut self, metadata: &Metadata, read: impl FnOnce() -> Option<Digest>) -> Option<Digest> {
        /// Of programs that are gone, most of them.
        const MOST: usize = 4096;
        let key = Self::key(metadata);
        if let Some(digest) = self.known.get(&key) {
            return Some(*digest);
        }
        if self.known.len() == MOST {
            self.known.clear();
        }
        let digest = read()?;
        self.known.insert(key, digest);
        Some(digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_some_wait_to_be_read() {
        let long = tempfile::tempfile().expect("a file");
        long.set_len(SHORT + 1).expect("a sparse one");
        // What is read comes from here, and so not before it is to.
        let (from, to) = std::io::pipe().expect("a pipe");
        let met = || {
            let file = std::os::fd::OwnedFd::from(from.try_clone().expect("a copy")).into();
            let metadata = long.metadata().expect("it is open");
            Met { place: 1, key: Default::default(), file, path: PathBuf::new(), metadata, scope: None }
        };
        let mut reader = Reader::default();
        assert!((0..MOST_WAITING).all(|_| reader.read(met()).is_none()), "they are read beside");
        assert!(matches!(reader.read(met()), Some((_, None))), "it has no baseline");
        assert!(reader.done().is_empty());
        drop(to);
        let mut done = 0;
        while done < MOST_WAITING {
            let some = reader.done();
            assert!(some.iter().all(|(_, digest)| digest.is_some()));
            done += some.len();
            thread::yield_now();
        }
        assert!(matches!(reader.read(met()), Some((_, Some(_)))), "it is known by now");
        long.set_len(LONGEST + 1).expect("a longer one");
        assert!(matches!(reader.read(met()), Some((_, None))));
    }
}
