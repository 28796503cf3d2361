//! The digests of files by their metadata. A file that is run in several scopes is read only once.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kernel::wire;

use super::baseline::Digest;
use super::program_file::key;

/// A longer file has no baseline. A user can execute a sparse file of a terabyte that occupies
/// almost no disk space.
pub const MAX_HASHED_BYTES: u64 = 1 << 30;

type FileKey = (u32, u64, i64, u64);

/// The known digests, which all threads share.
#[derive(Clone, Default)]
pub struct FileDigests {
    known: Arc<Mutex<BTreeMap<FileKey, Digest>>>,
}

impl FileDigests {
    fn known(&self) -> MutexGuard<'_, BTreeMap<FileKey, Digest>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The digest of the file, if it is known.
    pub fn get(&self, metadata: &Metadata) -> Option<Digest> {
        self.known().get(&file_key(metadata)).copied()
    }

    /// The digest of the file, which is read if its digest is not known. `None` if it cannot be
    /// read.
    pub fn get_or_read(
        &self,
        file: &File,
        metadata: &Metadata,
        progress: &ReadProgress,
    ) -> Option<Digest> {
        /// All are dropped at this number. Most of them are then of programs that have ended.
        const MAX_KNOWN: usize = 4096;
        if let Some(digest) = self.get(metadata) {
            return Some(digest);
        }
        let digest = read(file, metadata, progress)?;
        let mut known = self.known();
        if known.len() == MAX_KNOWN {
            known.clear();
        }
        known.insert(file_key(metadata), digest);
        Some(digest)
    }
}

fn file_key(metadata: &Metadata) -> FileKey {
    let wire::guard_program { inode, ctime_ns, size, device, .. } = key(metadata, 0, 0);
    (device, inode, ctime_ns, size)
}

/// How much of files was read.
#[derive(Default)]
pub struct ReadProgress(AtomicU64);

impl ReadProgress {
    /// The number of bytes so far.
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A reader that counts what it reads.
struct CountedReader<'a, R>(R, &'a ReadProgress);

impl<R: Read> Read for CountedReader<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.0.read(buffer)?;
        self.1.0.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(bytes)
    }
}

/// Reads only the length in `metadata`, because the file may grow once the program has ended.
pub fn read(file: &File, metadata: &Metadata, progress: &ReadProgress) -> Option<Digest> {
    Digest::of_all(CountedReader(file.take(metadata.len()), progress)).ok()
}
