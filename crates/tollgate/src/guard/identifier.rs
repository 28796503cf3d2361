//! Opens and hashes the files of programs that have started, in threads of its own: a user's file
//! may be long, or on a file system that does not answer, and the guard must not wait for it.

use std::fs::{File, Metadata};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use kernel::wire;

use super::baseline::Digest;
use super::file_digests::{FileDigests, MAX_HASHED_BYTES, ReadProgress, read};
use super::filter::ProgramFilter;
use super::job_queue::{JobKind, JobQueue};
use super::program_file::{is_running, open_program, opened_path};

/// A file up to this size is hashed when it is opened, which takes a few milliseconds.
const MAX_SHORT_BYTES: u64 = 1 << 20;
/// The maximum number of files of a user that stay open until they are hashed. Further ones are
/// opened again, if they are still there.
const MAX_OPEN_FILES: usize = 16;
/// Two threads hash, and each of the others may wait for the file of another user.
const MAX_THREADS: usize = 8;
/// How often a file is tried again that another process has a lease of.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The kernel ends a lease after 45 s (/proc/sys/fs/lease-break-time).
const MAX_TRIES: u32 = 60;

/// A program that has started.
pub struct StartedProgram {
    pub record: Box<wire::guard_program_record>,
    /// The name of its scope.
    pub scope: Option<String>,
    tries: u32,
}

impl StartedProgram {
    pub fn new(record: &wire::guard_program_record, scope: Option<String>) -> Self {
        Self { record: Box::new(*record), scope, tries: 0 }
    }

    /// Whether another execution of the file may have had another content.
    fn changes_unseen(&self) -> bool {
        self.record.program.execution != 0
    }
}

/// What is known of a program's file once it is open.
pub struct FileFacts {
    pub path: PathBuf,
    pub metadata: Metadata,
    /// As [`ProgramFilter::executors`].
    pub executors: Vec<u32>,
    pub is_selected: bool,
}

/// What was found about a program.
pub enum Found {
    /// Its file is not hashed yet; it may not be needed.
    Opened(FileFacts, File),
    Hashed {
        facts: FileFacts,
        /// `None` if the file cannot be read.
        digest: Option<Digest>,
        /// The digest is that of the program, and not of a later content of the file.
        is_certain: bool,
    },
    /// The file is not there any more.
    Gone,
    /// The file cannot be opened.
    Unreadable,
    /// Another process has a lease of the file.
    Leased,
}

enum FileWork {
    Open,
    Hash(Box<FileFacts>, Option<File>),
}

type FoundProgram = (StartedProgram, Found);
type FileJob = (StartedProgram, FileWork);

struct Shared {
    queue: Mutex<(JobQueue<FileJob>, bool)>,
    /// A job has arrived or ended, or the guard has ended.
    changed: Condvar,
    selection: ProgramFilter,
    digests: FileDigests,
    progress: ReadProgress,
}

impl Shared {
    /// The queue, and whether the guard has ended.
    fn queue(&self) -> MutexGuard<'_, (JobQueue<FileJob>, bool)> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does jobs until the guard ends.
    fn work(&self, results: &Sender<FoundProgram>) {
        let mut queue = self.queue();
        while !queue.1 {
            let Some((user, kind, (program, work))) = queue.0.take() else {
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(queue);
            let found = match work {
                FileWork::Open => self.open(&program),
                FileWork::Hash(facts, file) => self.hash(&program, *facts, file),
            };
            let sent = results.send((program, found));
            queue = self.queue();
            queue.0.done(user, kind);
            self.changed.notify_one();
            if sent.is_err() {
                break;
            }
        }
    }

    fn open(&self, program: &StartedProgram) -> Found {
        let (file, metadata) = match open_program(&program.record) {
            Ok(opened) => opened,
            Err(error) => {
                return match error.kind() {
                    ErrorKind::WouldBlock => Found::Leased,
                    ErrorKind::NotFound => Found::Gone,
                    _ => Found::Unreadable,
                };
            }
        };
        let path = opened_path(&file).unwrap_or_default();
        let facts = FileFacts {
            executors: self.selection.executors(&metadata),
            is_selected: self.selection.is_selected(&path, &metadata),
            path,
            metadata,
        };
        let is_known = !program.changes_unseen() && self.digests.get(&facts.metadata).is_some();
        match facts.is_selected && (is_known || facts.metadata.len() <= MAX_SHORT_BYTES) {
            true => self.hash(program, facts, Some(file)),
            false => Found::Opened(facts, file),
        }
    }

    fn hash(&self, program: &StartedProgram, facts: FileFacts, file: Option<File>) -> Found {
        let file = match file {
            Some(file) => file,
            None => match open_program(&program.record) {
                Ok((file, _)) => file,
                Err(_) => return Found::Gone,
            },
        };
        let digest = match program.changes_unseen() {
            true => read(&file, &facts.metadata, &self.progress),
            false => self.digests.get_or_read(&file, &facts.metadata, &self.progress),
        };
        // While a program runs, nobody can write to its file.
        let is_certain =
            !program.changes_unseen() || is_running(program.record.pid, &facts.metadata);
        Found::Hashed { facts, digest, is_certain }
    }
}

/// Identifies programs.
pub struct Identifier {
    shared: Arc<Shared>,
    results: (Sender<FoundProgram>, Receiver<FoundProgram>),
    threads: usize,
    /// Jobs without a result.
    pending: usize,
    latest: Instant,
    leased: Vec<(Instant, StartedProgram)>,
}

impl Identifier {
    pub fn new(selection: ProgramFilter, digests: FileDigests) -> Self {
        let shared = Shared {
            queue: Mutex::default(),
            changed: Condvar::new(),
            selection,
            digests,
            progress: ReadProgress::default(),
        };
        Self {
            shared: Arc::new(shared),
            results: channel(),
            threads: 0,
            pending: 0,
            latest: Instant::now(),
            leased: Vec::new(),
        }
    }

    fn add(&mut self, kind: JobKind, job: FileJob) {
        self.pending += 1;
        self.latest = Instant::now();
        self.shared.queue().0.push(job.0.record.user, kind, job);
        // One more thread for each job that has no result, up to the maximum.
        if self.threads < MAX_THREADS.min(self.pending) {
            let (shared, results) = (Arc::clone(&self.shared), self.results.0.clone());
            let spawned = thread::Builder::new().spawn(move || shared.work(&results));
            self.threads += usize::from(spawned.is_ok());
        }
        self.shared.changed.notify_one();
    }

    /// Opens the file of a program.
    pub fn open(&mut self, program: StartedProgram) {
        self.add(JobKind::Open, (program, FileWork::Open));
    }

    /// Hashes the file of a program. Returns `false` if it is too long.
    pub fn hash(&mut self, program: StartedProgram, facts: FileFacts, file: File) -> bool {
        let length = facts.metadata.len();
        if length > MAX_HASHED_BYTES {
            return false;
        }
        let waiting = self.shared.queue().0.hashes_waiting(program.record.user);
        let file = (waiting < MAX_OPEN_FILES).then_some(file);
        self.add(JobKind::Hash(length), (program, FileWork::Hash(Box::new(facts), file)));
        true
    }

    /// Opens the file again later. Returns the program if it was tried often enough.
    pub fn retry(&mut self, mut program: StartedProgram) -> Option<StartedProgram> {
        program.tries += 1;
        if program.tries > MAX_TRIES {
            return Some(program);
        }
        self.leased.push((Instant::now() + RETRY_INTERVAL, program));
        None
    }

    /// What was found since the last call.
    pub fn found(&mut self) -> Vec<FoundProgram> {
        let now = Instant::now();
        while let Some(due) = self.leased.iter().position(|(at, _)| *at <= now) {
            let (_, program) = self.leased.swap_remove(due);
            self.open(program);
        }
        let found: Vec<_> = self.results.1.try_iter().collect();
        self.pending -= found.len();
        found
    }

    /// Waits until something was found. Returns `None` if nothing is being looked for, if nothing
    /// was read for the time `patience`, or at the time `until`.
    pub fn wait(&mut self, patience: Duration, until: Instant) -> Option<FoundProgram> {
        let mut before = self.shared.progress.bytes();
        while self.pending > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if let Ok(found) = self.results.1.recv_timeout(left.min(patience)) {
                self.pending -= 1;
                return Some(found);
            }
            let bytes = self.shared.progress.bytes();
            if bytes == before || Instant::now() >= until {
                break;
            }
            before = bytes;
        }
        None
    }

    /// The time until the next call of [`Self::found`]: half of the time for which the latest file
    /// has been waiting, at most `longest`.
    pub fn deadline(&self, longest: Duration) -> Duration {
        match self.pending {
            0 => longest,
            _ => (self.latest.elapsed() / 2).min(longest),
        }
    }
}

impl Drop for Identifier {
    fn drop(&mut self) {
        self.shared.queue().1 = true;
        self.shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, PipeWriter, Write as _};
    use std::os::fd::OwnedFd;

    use zerocopy::FromZeros as _;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(2);

    /// Whether a file of this length is hashed that comes from a pipe, into which `write` writes.
    fn is_hashed(length: u64, write: impl FnOnce(&mut PipeWriter) + Send + 'static) -> bool {
        let file = tempfile::tempfile().unwrap();
        file.set_len(length).unwrap();
        let facts = FileFacts {
            path: PathBuf::new(),
            metadata: file.metadata().unwrap(),
            executors: Vec::new(),
            is_selected: true,
        };
        let (reader, mut writer) = io::pipe().unwrap();
        let writing = thread::spawn(move || {
            write(&mut writer);
            writer
        });
        let program = StartedProgram::new(&wire::guard_program_record::new_zeroed(), None);
        let mut identifier = Identifier::new(ProgramFilter::default(), FileDigests::default());
        assert!(identifier.hash(program, facts, OwnedFd::from(reader).into()));
        let found = identifier.wait(PATIENCE, Instant::now() + 60 * PATIENCE);
        // Until now, the pipe was open.
        drop(writing.join());
        matches!(found, Some((_, Found::Hashed { digest: Some(_), .. })))
    }

    #[test]
    fn slow_file_is_waited_for() {
        const PARTS: u32 = 40;
        assert!(is_hashed(PARTS.into(), |writer| {
            for _ in 0..PARTS {
                writer.write_all(&[1]).unwrap();
                thread::sleep(2 * PATIENCE / PARTS);
            }
        }));
    }

    #[test]
    fn silent_file_is_not_waited_for() {
        assert!(!is_hashed(2, |writer| writer.write_all(&[1]).unwrap()));
    }
}
