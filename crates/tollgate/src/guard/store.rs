//! The folder of the stored baselines, one file each. A file is replaced as a whole, so that a
//! reader without the lock, or after a power failure, finds either the old or the new one.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use super::baseline::{Baseline, Digest, FormatError, name};
use super::clock::unix_now;
use super::store_folder;
use crate::durable_file::{self, with_suffix};
use crate::format::shown_path;
use crate::output::print_message;

const SUFFIX: &str = ".baseline";
const DAMAGED: &str = ".damaged";
/// The maximum size of a file. A baseline with all pairs and 100,000 windows is smaller.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// How long to wait for the lock. A daemon may hold it while it stores thousands of baselines, at a
/// few milliseconds each.
const LOCK_TIMEOUT: Duration = Duration::from_secs(60);
const LOCK_POLL: Duration = Duration::from_millis(2);

/// A folder of baselines. It is locked for each change.
#[derive(Clone)]
pub struct Store {
    folder: PathBuf,
    lock_timeout: Duration,
    warn: fn(&str),
}

/// The store while it is locked for changes by this process.
pub struct LockedStore<'a> {
    store: &'a Store,
    /// The lock ends when the file is closed, at the latest when the process ends.
    _lock: File,
}

/// Why a file is not a baseline of the store.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error("{0}")]
    Fault(FormatError),
    #[error("it is the baseline of the file {0}{SUFFIX}")]
    Misplaced(String),
    #[error("it has {0} bytes, more than any baseline")]
    Long(u64),
    #[error("it is a symbolic link, which is not followed, or not a regular file")]
    NoFile,
    #[error("it cannot be read: {0}")]
    Io(io::Error),
}

impl ReadError {
    /// Whether the file is of no use to any version. A file that another version wrote is not
    /// damaged.
    fn is_damage(&self) -> bool {
        match self {
            Self::Fault(FormatError::Version(_)) | Self::NoFile | Self::Io(_) => false,
            Self::Fault(_) | Self::Misplaced(_) | Self::Long(_) => true,
        }
    }
}

impl Store {
    /// The store in a folder that need not exist yet.
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), lock_timeout: LOCK_TIMEOUT, warn }
    }

    /// The same store with another limit to the wait for the lock, for callers that must not wait
    /// long.
    pub fn with_lock_timeout(self, lock_timeout: Duration) -> Self {
        Self { lock_timeout, ..self }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Locks the store. Waits while another process makes a change, but only for `lock_timeout`,
    /// because that process may be stopped.
    pub fn lock(&self) -> Result<LockedStore<'_>> {
        store_folder::check(&self.folder)?;
        let context = || format!("cannot lock the store {}", shown_path(&self.folder));
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder).with_context(context)?;
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            // The open of a pipe would wait for a reader.
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(self.folder.join(".lock"))
            .with_context(context)?;
        let began = Instant::now();
        while let Err(error) = lock.try_lock() {
            match error {
                TryLockError::WouldBlock if began.elapsed() < self.lock_timeout => sleep(LOCK_POLL),
                TryLockError::WouldBlock => bail!(
                    "the store {} is locked by another process, for more than {} s: is it stopped?",
                    shown_path(&self.folder),
                    self.lock_timeout.as_secs()
                ),
                TryLockError::Error(error) => return Err(error).with_context(context),
            }
        }
        Ok(LockedStore { store: self, _lock: lock })
    }

    /// Loads all baselines that can be read, and warns about the others.
    pub fn load_all(&self) -> Result<Vec<Baseline>> {
        self.load_each(|path| self.lock()?.load_file(path))
    }

    /// Loads a baseline. `None` if it does not exist, or if it is damaged, which causes a warning.
    pub fn load(&self, digest: &Digest, scope: Option<&str>) -> Result<Option<Baseline>> {
        let path = self.path(&name(digest, scope));
        match read(&path) {
            Err(unread) if unread.is_damage() => self.lock()?.load_file(&path),
            loaded => loaded.map_err(|unread| anyhow!("{}: {unread}", shown_path(&path))),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}{SUFFIX}"))
    }

    fn load_each(
        &self,
        load_damaged: impl Fn(&Path) -> Result<Option<Baseline>>,
    ) -> Result<Vec<Baseline>> {
        let mut all = Vec::new();
        for path in self.files()? {
            let loaded = match read(&path) {
                Err(unread) if unread.is_damage() => load_damaged(&path).unwrap_or_else(|error| {
                    (self.warn)(&format!(
                        "{}: {unread}; it cannot be set aside: {error:#}",
                        shown_path(&path)
                    ));
                    None
                }),
                Err(unread) => {
                    (self.warn)(&format!("{} is skipped: {unread}", shown_path(&path)));
                    None
                }
                Ok(baseline) => baseline,
            };
            all.extend(loaded);
        }
        Ok(all)
    }

    /// The files of the baselines.
    pub fn files(&self) -> Result<Vec<PathBuf>> {
        store_folder::check(&self.folder)?;
        let context = || format!("cannot read the store {}", shown_path(&self.folder));
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.with_context(context)?,
        };
        let entries: Vec<_> = entries.collect::<Result<_, _>>().with_context(context)?;
        let mut files: Vec<_> = entries.iter().map(fs::DirEntry::path).collect();
        files.retain(|path| path.as_os_str().as_encoded_bytes().ends_with(SUFFIX.as_bytes()));
        files.sort();
        Ok(files)
    }
}

impl LockedStore<'_> {
    /// As [`Store::load_all`].
    pub fn load_all(&self) -> Result<Vec<Baseline>> {
        self.store.load_each(|path| self.load_file(path))
    }

    /// As [`Store::load`].
    pub fn load(&self, digest: &Digest, scope: Option<&str>) -> Result<Option<Baseline>> {
        self.load_file(&self.store.path(&name(digest, scope)))
    }

    /// Loads a file. Renames a damaged one, so that it is not read again.
    fn load_file(&self, path: &Path) -> Result<Option<Baseline>> {
        match read(path) {
            Err(unread) if unread.is_damage() => {
                let aside = with_suffix(path, DAMAGED);
                fs::rename(path, &aside).with_context(|| {
                    format!("cannot rename {} to {}", shown_path(path), shown_path(&aside))
                })?;
                let aside = aside.file_name().unwrap_or_default().display();
                (self.store.warn)(&format!(
                    "{}: {unread}; it was set aside as {aside}",
                    shown_path(path)
                ));
                Ok(None)
            }
            loaded => loaded.map_err(|unread| anyhow!("{}: {unread}", shown_path(path))),
        }
    }

    /// Replaces the stored baseline of the same program. If that fails, the stored one stays as it
    /// is.
    pub fn save(&self, baseline: &mut Baseline) -> Result<()> {
        // The time is later than that of the replaced baseline, because other processes detect the
        // change by it.
        baseline.saved = unix_now().max(baseline.saved + 1);
        let path = self.store.path(&baseline.name());
        let text = baseline.to_text()?;
        durable_file::replace(&path, text.as_bytes())
            .with_context(|| format!("cannot save {}", shown_path(&path)))
    }

    /// Removes the stored baseline of the same program, if there is one.
    pub fn remove(&self, baseline: &Baseline) -> Result<()> {
        let path = self.store.path(&baseline.name());
        durable_file::remove(&path).with_context(|| format!("cannot remove {}", shown_path(&path)))
    }
}

fn read(path: &Path) -> Result<Option<Baseline>, ReadError> {
    // Without O_NONBLOCK, open() would wait for the writer of a pipe.
    let options = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = match OpenOptions::new().read(true).custom_flags(options).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => return Err(ReadError::NoFile),
        Err(error) => return Err(ReadError::Io(error)),
    };
    let metadata = file.metadata().map_err(ReadError::Io)?;
    if !metadata.is_file() {
        return Err(ReadError::NoFile);
    }
    if metadata.len() > MAX_FILE_BYTES {
        return Err(ReadError::Long(metadata.len()));
    }
    let mut text = Vec::new();
    file.take(MAX_FILE_BYTES).read_to_end(&mut text).map_err(ReadError::Io)?;
    let baseline = Baseline::from_text(&text).map_err(ReadError::Fault)?;
    if path.file_name() != Some(format!("{}{SUFFIX}", baseline.name()).as_ref()) {
        return Err(ReadError::Misplaced(baseline.name()));
    }
    Ok(Some(baseline))
}

fn warn(message: &str) {
    // If the terminal is gone, no error can be printed either.
    let _ = print_message(&format!("tollgate: warning: {message}"));
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::super::baseline::tests::example;
    use super::*;

    /// Without warnings, so that the test's output shows only what went wrong.
    fn quiet(folder: &Path) -> Store {
        Store { warn: |_| (), ..Store::new(folder) }
    }

    /// A store with the example in it, and the path of its file.
    fn store() -> (tempfile::TempDir, Store, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let store = quiet(&folder.path().join("a/store"));
        let lock = store.lock().expect("locked");
        lock.save(&mut example()).expect("saved");
        let path = store.path(&example().name());
        drop(lock);
        (folder, store, path)
    }

    fn load(store: &Store) -> Result<Option<Baseline>> {
        store.lock()?.load(&example().digest, None)
    }

    fn mode(path: &Path) -> u32 {
        path.metadata().expect("it is there").permissions().mode() & 0o777
    }

    #[test]
    fn save_load_remove() {
        let (_folder, store, path) = store();
        let loaded = load(&store).expect("whole").expect("there");
        assert_eq!(loaded, Baseline { saved: loaded.saved, ..example() });
        assert!(loaded.saved > example().saved);
        assert_eq!(store.load_all().expect("whole"), [loaded]);
        assert_eq!((mode(&path), mode(store.folder())), (0o600, 0o700));

        let mut scoped = Baseline { scope: Some("script".into()), ..example() };
        store.lock().and_then(|lock| lock.save(&mut scoped)).expect("saved");
        assert_eq!(store.load_all().expect("whole").len(), 2);
        store.lock().and_then(|lock| lock.remove(&example())).expect("removed");
        assert_eq!(store.load_all().expect("whole"), [scoped]);
        assert!(load(&store).expect("whole").is_none());
    }

    #[test]
    fn a_store_that_is_not_there_is_empty_and_is_not_made_by_reading() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::new(&folder.path().join("none"));
        assert!(store.load_all().expect("nothing").is_empty());
        assert!(!store.folder().exists());
    }

    #[test]
    fn a_file_torn_anywhere_is_set_aside() {
        let (_folder, store, path) = store();
        let whole = fs::read(&path).expect("it is there");
        let aside = with_suffix(&path, DAMAGED);
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).expect("written");
            assert!(store.load_all().expect("the rest").is_empty(), "{length}");
            assert!(!path.exists());
            assert_eq!(fs::read(&aside).expect("set aside").len(), length);
        }
        fs::write(&path, &whole[1..]).expect("written");
        assert!(load(&store).expect("none").is_none());
        assert_eq!(fs::read(&aside).expect("set aside"), whole[1..]);
    }

    #[test]
    fn a_copy_under_another_name_is_set_aside() {
        let (_folder, store, path) = store();
        let copy = path.with_file_name("0123.baseline");
        fs::copy(&path, &copy).expect("copied");
        assert_eq!(store.load_all().expect("the rest").len(), 1);
        assert!(!copy.exists());
    }

    #[test]
    fn other_versions_file_is_kept() {
        let (_folder, store, path) = store();
        let text = fs::read_to_string(&path).expect("it is there").replacen("/1", "/2", 1);
        fs::write(&path, &text).expect("written");
        assert!(store.load_all().expect("the rest").is_empty());
        assert!(
            load(&store).expect_err("of another version").to_string().contains("its version is")
        );
        assert_eq!(fs::read_to_string(&path).expect("it is there"), text);
    }

    #[test]
    fn no_link_is_followed_and_no_pipe_waited_for() {
        let (folder, store, path) = store();
        let elsewhere = folder.path().join("elsewhere");
        fs::rename(&path, &elsewhere).expect("renamed");
        symlink(&elsewhere, &path).expect("linked");
        assert!(store.load_all().expect("the rest").is_empty());
        assert!(load(&store).expect_err("a link").to_string().contains("it is a symbolic link"));
        // Saved in place of the link.
        let before = fs::read(&elsewhere).expect("it is there");
        store.lock().and_then(|lock| lock.save(&mut example())).expect("saved");
        assert_eq!(fs::read(&elsewhere).expect("it is there"), before);
        assert!(path.symlink_metadata().expect("it is there").is_file());
        // A link at the path where a new file is written.
        symlink(&elsewhere, with_suffix(&path, ".new")).expect("linked");
        store.lock().and_then(|lock| lock.save(&mut example())).expect("saved");
        assert_eq!(fs::read(&elsewhere).expect("it is there"), before);

        fs::remove_file(&path).expect("removed");
        let made = std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo runs");
        assert!(made.success());
        assert!(store.load_all().expect("the rest").is_empty());
    }

    #[test]
    fn oversized_file_is_set_aside() {
        let (_folder, store, path) = store();
        File::options()
            .write(true)
            .open(&path)
            .and_then(|file| file.set_len(1 << 40))
            .expect("sparse");
        assert!(store.load(&example().digest, None).expect("none").is_none());
        assert_eq!(with_suffix(&path, DAMAGED).metadata().expect("set aside").len(), 1 << 40);
    }

    #[test]
    fn unreadable_file_is_skipped() {
        let (_folder, store, path) = store();
        // A socket cannot be opened, even by root.
        let socket = path.with_file_name("0123.baseline");
        std::os::unix::net::UnixListener::bind(&socket).expect("bound");
        assert!(matches!(read(&socket), Err(ReadError::Io(_))));
        assert_eq!(store.load_all().expect("the rest").len(), 1);
        assert!(socket.exists());
    }

    #[test]
    fn lock_wait_times_out() {
        let (_folder, store, _) = store();
        let stopped = store.lock().expect("locked");
        let other = quiet(store.folder()).with_lock_timeout(Duration::from_millis(10));
        let refusal = || other.lock().err().map(|error| error.to_string());
        assert!(refusal().is_some_and(|it| it.contains("is locked by another process")));
        drop(stopped);
        assert_eq!(refusal(), None);
    }

    #[test]
    fn a_lock_that_is_a_link_is_refused() {
        let (folder, store, _) = store();
        let lock = store.folder().join(".lock");
        fs::remove_file(&lock).expect("removed");
        symlink(folder.path().join("made"), &lock).expect("linked");
        assert!(store.lock().is_err());
        assert!(!folder.path().join("made").exists());
    }

    #[test]
    fn failed_replace_keeps_the_old_file() {
        let (_folder, store, path) = store();
        fs::remove_file(&path).expect("removed");
        fs::create_dir(&path).expect("made");
        let error =
            store.lock().and_then(|lock| lock.save(&mut example())).expect_err("a folder is there");
        assert!(error.to_string().starts_with("cannot save "));
        assert!(path.is_dir() && !with_suffix(&path, ".new").exists());
    }

    #[test]
    fn writers_are_serialized() {
        let (_folder, store, _) = store();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let store = Store::new(store.folder());
                    for _ in 0..25 {
                        let lock = store.lock().expect("locked");
                        let mut baseline =
                            lock.load(&example().digest, None).expect("whole").expect("there");
                        baseline.seen_calls += 1;
                        lock.save(&mut baseline).expect("saved");
                    }
                });
            }
            // A reader without the lock finds an intact file each time.
            for _ in 0..100 {
                assert_eq!(store.load_all().expect("whole").len(), 1);
            }
        });
        let seen = load(&store).expect("whole").expect("there").seen_calls;
        assert_eq!(seen, example().seen_calls + 100);
    }
}
