//! Hashes the files of programs. A user can execute a sparse file of a terabyte that occupies
//! almost no disk space. Therefore large files are hashed by a thread, so that the guard does not
//! wait for them, and files above a limit are not hashed.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::Read as _;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SendError, Sender, channel};
use std::thread;

use kernel::wire;

use super::baseline::Digest;
use super::program_file::key;

/// Files up to this size are hashed without the thread. Hashing such a file takes some hundredths
/// of a second.
pub const MAX_INLINE_BYTES: u64 = 16 << 20;
/// A longer file has no baseline.
const MAX_HASHED_BYTES: u64 = 1 << 30;
/// The maximum number of files in the queue. Each of them is open. While the queue is full, a
/// further program gets no baseline.
const MAX_QUEUED: usize = 16;

/// A program that has started.
pub struct StartedProgram {
    pub profile_slot: u32,
    pub pid: u32,
    pub key: wire::guard_program,
    pub file: File,
    pub path: PathBuf,
    pub metadata: Metadata,
    /// The name of its scope.
    pub scope: Option<String>,
}

impl StartedProgram {
    /// Whether another execution of the file may have had another content.
    pub fn changes_unseen(&self) -> bool {
        self.key.execution != 0
    }
}

/// The program with its digest. `None` if the file cannot be read or is too long.
type HashedProgram = (StartedProgram, Option<Digest>);

/// Hashes files. It starts its thread for the first large file.
#[derive(Default)]
pub struct FileHasher {
    thread: Option<(Sender<StartedProgram>, Receiver<HashedProgram>)>,
    queued: usize,
    digests: DigestCache,
}

fn start() -> (Sender<StartedProgram>, Receiver<HashedProgram>) {
    let (to_thread, from_guard) = channel::<StartedProgram>();
    let (to_guard, from_thread) = channel();
    let hash_all = move || {
        for program in from_guard {
            let digest = digest(&program.file, &program.metadata);
            if to_guard.send((program, digest)).is_err() {
                break;
            }
        }
    };
    // If the thread cannot start, its receiver is dropped and sending fails.
    let _ = thread::Builder::new().spawn(hash_all);
    (to_thread, from_thread)
}

impl FileHasher {
    /// Hashes the file of a program. Returns the result at once if the file is short. Otherwise
    /// [`FileHasher::finished`] returns it later.
    pub fn hash(&mut self, program: StartedProgram) -> Option<HashedProgram> {
        let length = program.metadata.len();
        if length > MAX_HASHED_BYTES {
            return Some((program, None));
        }
        let is_known = !program.changes_unseen() && self.digests.has(&program.metadata);
        if length > MAX_INLINE_BYTES && !is_known {
            if self.queued == MAX_QUEUED {
                return Some((program, None));
            }
            let (to, _) = self.thread.get_or_insert_with(start);
            let refused = to.send(program).err().map(|SendError(program)| (program, None));
            self.queued += usize::from(refused.is_none());
            return refused;
        }
        let digest = match program.changes_unseen() {
            true => digest(&program.file, &program.metadata),
            false => self.digest(&program.file, &program.metadata),
        };
        Some((program, digest))
    }

    /// Hashes a file of any length at once.
    pub fn digest(&mut self, file: &File, metadata: &Metadata) -> Option<Digest> {
        self.digests.get(metadata, || digest(file, metadata))
    }

    /// The programs whose files the thread has hashed since the last call.
    pub fn finished(&mut self) -> Vec<HashedProgram> {
        let finished: Vec<_> = self.thread.iter().flat_map(|(_, from)| from.try_iter()).collect();
        self.queued -= finished.len();
        for (program, digest) in finished.iter().filter(|(program, _)| !program.changes_unseen()) {
            self.digests.get(&program.metadata, || *digest);
        }
        finished
    }
}

/// Reads only the length in `metadata`, because the file may grow once the program has ended.
fn digest(file: &File, metadata: &Metadata) -> Option<Digest> {
    Digest::of_all(file.take(metadata.len())).ok()
}

/// The digests of files by their metadata. A file that is run in several scopes is read only once.
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
        hash: impl FnOnce() -> Option<Digest>,
    ) -> Option<Digest> {
        /// The cache is cleared at this size. Most of its entries are then of programs that have
        /// ended.
        const MAX_CACHED_DIGESTS: usize = 4096;
        let key = Self::key(metadata);
        if let Some(digest) = self.known.get(&key) {
            return Some(*digest);
        }
        if self.known.len() == MAX_CACHED_DIGESTS {
            self.known.clear();
        }
        let digest = hash()?;
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
        // The thread reads from this pipe, so it waits until the test closes the other end.
        let (from, to) = std::io::pipe().expect("a pipe");
        let program = || {
            let file = std::os::fd::OwnedFd::from(from.try_clone().expect("a copy")).into();
            let metadata = long.metadata().expect("it is open");
            StartedProgram {
                profile_slot: 1,
                pid: 1,
                key: Default::default(),
                file,
                path: PathBuf::new(),
                metadata,
                scope: None,
            }
        };
        let mut hasher = FileHasher::default();
        assert!(
            (0..MAX_QUEUED).all(|_| hasher.hash(program()).is_none()),
            "the thread hashes them"
        );
        assert!(matches!(hasher.hash(program()), Some((_, None))), "it has no baseline");
        assert!(hasher.finished().is_empty());
        drop(to);
        let mut finished = 0;
        while finished < MAX_QUEUED {
            let some = hasher.finished();
            assert!(some.iter().all(|(_, digest)| digest.is_some()));
            finished += some.len();
            thread::yield_now();
        }
        assert!(matches!(hasher.hash(program()), Some((_, Some(_)))), "it is known by now");
        long.set_len(MAX_HASHED_BYTES + 1).expect("a longer one");
        assert!(matches!(hasher.hash(program()), Some((_, None))));
    }
}
