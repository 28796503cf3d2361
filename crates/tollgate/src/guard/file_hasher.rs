//! Hashes the files of programs. A user can execute a sparse file of a terabyte that occupies
//! almost no disk space. Therefore a thread hashes large files beside the guard's work, and files
//! above a limit are not hashed.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::Read as _;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SendError, Sender, channel};
use std::thread;

use kernel::wire;

use super::baseline::Digest;
use super::program_file::key;

/// Files up to this size are hashed at once, which takes some hundredths of a second.
pub const MAX_INLINE_BYTES: u64 = 16 << 20;
/// A longer file has no baseline.
const MAX_HASHED_BYTES: u64 = 1 << 30;
/// Files in the queue, each of which is open. While the queue is full, a further program gets no
/// baseline either.
const MAX_QUEUED: usize = 16;

/// A program that has started.
pub struct StartedProgram {
    pub profile_slot: u32,
    pub key: wire::guard_program,
    pub file: File,
    pub path: PathBuf,
    pub metadata: Metadata,
    /// The name of its scope.
    pub scope: Option<String>,
}

/// The program with its digest; None if the file cannot be read or is too long.
type HashedProgram = (StartedProgram, Option<Digest>);

/// Hashes files; starts its thread when it first needs one.
#[derive(Default)]
pub struct FileHasher {
    beside: Option<(Sender<StartedProgram>, Receiver<HashedProgram>)>,
    waiting: usize,
    digests: DigestCache,
}

fn start() -> (Sender<StartedProgram>, Receiver<HashedProgram>) {
    let (to, asked) = channel::<StartedProgram>();
    let (answer, from) = channel();
    let read = move || {
        for met in asked {
            let digest = digest(&met.file, &met.metadata);
            if answer.send((met, digest)).is_err() {
                break;
            }
        }
    };
    // If the thread cannot start, its receiver is dropped and sending fails.
    let _ = thread::Builder::new().spawn(read);
    (to, from)
}

impl FileHasher {
    /// Returns the result at once if the file is short. Otherwise [`FileHasher::done`] returns it
    /// later.
    pub fn read(&mut self, met: StartedProgram) -> Option<HashedProgram> {
        let length = met.metadata.len();
        if length > MAX_HASHED_BYTES {
            return Some((met, None));
        }
        if length > MAX_INLINE_BYTES && !self.digests.has(&met.metadata) {
            if self.waiting == MAX_QUEUED {
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

    /// Hashes a file of any length at once.
    pub fn digest(&mut self, file: &File, metadata: &Metadata) -> Option<Digest> {
        self.digests.get(metadata, || digest(file, metadata))
    }

    pub fn done(&mut self) -> Vec<HashedProgram> {
        let done: Vec<_> = self.beside.iter().flat_map(|(_, from)| from.try_iter()).collect();
        self.waiting -= done.len();
        for (met, digest) in &done {
            self.digests.get(&met.metadata, || *digest);
        }
        done
    }
}

/// Reads only the length in `metadata`, because the file may grow once the program has ended.
fn digest(file: &File, metadata: &Metadata) -> Option<Digest> {
    Digest::of_all(file.take(metadata.len())).ok()
}

/// Digests of files that were read, so that a file that is several programs in different scopes is
/// read once.
#[derive(Default)]
struct DigestCache {
    known: BTreeMap<(u32, u64, i64, u64), Digest>,
}

impl DigestCache {
    fn key(metadata: &Metadata) -> (u32, u64, i64, u64) {
        let wire::guard_program { inode, ctime_ns, size, device, .. } = key(metadata, 0, 0);
        (device, inode, ctime_ns, size)
    }

    fn has(&self, metadata: &Metadata) -> bool {
        self.known.contains_key(&Self::key(metadata))
    }

    fn get(
        &mut self,
        metadata: &Metadata,
        read: impl FnOnce() -> Option<Digest>,
    ) -> Option<Digest> {
        /// Most entries are of programs that have ended.
        const MAX_CACHED_DIGESTS: usize = 4096;
        let key = Self::key(metadata);
        if let Some(digest) = self.known.get(&key) {
            return Some(*digest);
        }
        if self.known.len() == MAX_CACHED_DIGESTS {
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
    fn hashing_queue_is_bounded() {
        let long = tempfile::tempfile().expect("a file");
        long.set_len(MAX_INLINE_BYTES + 1).expect("a sparse one");
        // The hasher reads from this pipe, and so not before the test writes to it.
        let (from, to) = std::io::pipe().expect("a pipe");
        let met = || {
            let file = std::os::fd::OwnedFd::from(from.try_clone().expect("a copy")).into();
            let metadata = long.metadata().expect("it is open");
            StartedProgram {
                profile_slot: 1,
                key: Default::default(),
                file,
                path: PathBuf::new(),
                metadata,
                scope: None,
            }
        };
        let mut reader = FileHasher::default();
        assert!((0..MAX_QUEUED).all(|_| reader.read(met()).is_none()), "they are read beside");
        assert!(matches!(reader.read(met()), Some((_, None))), "it has no baseline");
        assert!(reader.done().is_empty());
        drop(to);
        let mut done = 0;
        while done < MAX_QUEUED {
            let some = reader.done();
            assert!(some.iter().all(|(_, digest)| digest.is_some()));
            done += some.len();
            thread::yield_now();
        }
        assert!(matches!(reader.read(met()), Some((_, Some(_)))), "it is known by now");
        long.set_len(MAX_HASHED_BYTES + 1).expect("a longer one");
        assert!(matches!(reader.read(met()), Some((_, None))));
    }
}
