//! The folder of the stored baselines, one file each. A file is replaced as a whole, so that whoever reads it without
//! the lock, or after a power cut, finds the old or the new one.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use super::baseline::{Baseline, Digest, Fault, name};
use super::unix_now;
use crate::output::say;

const SUFFIX: &str = ".baseline";
const DAMAGED: &str = ".damaged";
/// All pairs and 100,000 windows would be shorter.
const LONGEST: u64 = 16 << 20;

/// How long a lock is waited for: a daemon stores thousands of baselines under it, some milliseconds each.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(2);

#[derive(Clone)]
pub struct Store {
    folder: PathBuf,
    patience: Duration,
    warn: fn(&str),
}

/// For changes: no other process makes one meanwhile.
pub struct Locked<'a> {
    store: &'a Store,
    /// Released when it is closed, also by the death of the process.
    _lock: File,
}

/// Why a file is not a baseline of the store.
#[derive(Debug, thiserror::Error)]
enum Unread {
    #[error("{0}")]
    Fault(Fault),
    #[error("it is the baseline that belongs into {0}{SUFFIX}")]
    Misplaced(String),
    #[error("it has {0} bytes, and no baseline has as many")]
    Long(u64),
    #[error("it is a symbolic link or no plain file, which is not followed")]
    NoFile,
    #[error("it cannot be read: {0}")]
    Io(io::Error),
}

impl Unread {
    /// Nobody can make use of it. What another version wrote is whole.
    fn is_damage(&self) -> bool {
        match self {
            Self::Fault(Fault::Version(_)) | Self::NoFile | Self::Io(_) => false,
            Self::Fault(_) | Self::Misplaced(_) | Self::Long(_) => true,
        }
    }
}

impl Store {
    /// Of a folder, which need not be there yet.
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), patience: PATIENCE, warn }
    }

    /// For those who have something else to do in time.
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Waits while another process changes something, but not for one that was stopped meanwhile.
    pub fn lock(&self) -> Result<Locked<'_>> {
        let context = || format!("cannot lock the store {}", self.folder.display());
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder).with_context(context)?;
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(self.folder.join(".lock"))
            .with_context(context)?;
        let began = Instant::now();
        while let Err(error) = lock.try_lock() {
            match error {
                TryLockError::WouldBlock if began.elapsed() < self.patience => sleep(LOOK),
                TryLockError::WouldBlock => bail!(
                    "the store {} is locked by another process, for more than {} s: is it stopped?",
                    self.folder.display(),
                    self.patience.as_secs()
                ),
                TryLockError::Error(error) => return Err(error).with_context(context),
            }
        }
        Ok(Locked { store: self, _lock: lock })
    }

    /// All that can be read; of the rest a warning tells.
    pub fn load_all(&self) -> Result<Vec<Baseline>> {
        self.load_each(|path| self.lock()?.load_file(path))
    }

    /// None if there is none, or if it was damaged, of which a warning tells.
    pub fn load(&self, digest: &Digest, scope: Option<&str>) -> Result<Option<Baseline>> {
        let path = self.path(&name(digest, scope));
        match read(&path) {
            Err(unread) if unread.is_damage() => self.lock()?.load_file(&path),
            loaded => loaded.map_err(|unread| anyhow!("{}: {unread}", path.display())),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}{SUFFIX}"))
    }

    fn load_each(&self, load_damaged: impl Fn(&Path) -> Result<Option<Baseline>>) -> Result<Vec<Baseline>> {
        let mut all = Vec::new();
        for path in self.files()? {
            let loaded = match read(&path) {
                Err(unread) if unread.is_damage() => load_damaged(&path).unwrap_or_else(|error| {
                    (self.warn)(&format!("{}: {unread}; it cannot be set aside: {error:#}", path.display()));
                    None
                }),
                Err(unread) => {
                    (self.warn)(&format!("{} is left out: {unread}", path.display()));
                    None
                }
                Ok(baseline) => baseline,
            };
            all.extend(loaded);
        }
        Ok(all)
    }

    fn files(&self) -> Result<Vec<PathBuf>> {
        let context = || format!("cannot read the store {}", self.folder.display());
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

impl Locked<'_> {
    pub fn load_all(&self) -> Result<Vec<Baseline>> {
        self.store.load_each(|path| self.load_file(path))
    }

    /// As [`Store::load`].
    pub fn load(&self, digest: &Digest, scope: Option<&str>) -> Result<Option<Baseline>> {
        self.load_file(&self.store.path(&name(digest, scope)))
    }

    /// What is damaged is set aside.
    fn load_file(&self, path: &Path) -> Result<Option<Baseline>> {
        match read(path) {
            Err(unread) if unread.is_damage() => {
                let aside = with_suffix(path, DAMAGED);
                fs::rename(path, &aside)
                    .with_context(|| format!("cannot rename {} to {}", path.display(), aside.display()))?;
                let aside = aside.file_name().unwrap_or_default().display();
                (self.store.warn)(&format!("{}: {unread}; it was set aside as {aside}", path.display()));
                Ok(None)
            }
            loaded => loaded.map_err(|unread| anyhow!("{}: {unread}", path.display())),
        }
    }

    /// In place of what was stored of the same program; if that fails, what was stored stays as it is.
    pub fn save(&self, baseline: &mut Baseline) -> Result<()> {
        // Later than what it replaces: by this, others know that it is another one.
        baseline.saved = unix_now().max(baseline.saved + 1);
        let path = self.store.path(&baseline.name());
        let text = baseline.to_text()?;
        self.replace(&path, text.as_bytes()).with_context(|| format!("cannot save {}", path.display()))
    }

    fn replace(&self, path: &Path, text: &[u8]) -> io::Result<()> {
        let new = with_suffix(path, ".new");
        // Left by a process that was killed; nobody else writes it, under the lock.
        remove_if_there(&new)?;
        let written = write_through(&new, text).and_then(|()| fs::rename(&new, path));
        if written.is_err() {
            let _ = fs::remove_file(&new);
        }
        written?;
        self.sync()
    }

    pub fn remove(&self, baseline: &Baseline) -> Result<()> {
        let path = self.store.path(&baseline.name());
        remove_if_there(&path)
            .and_then(|()| self.sync())
            .with_context(|| format!("cannot remove {}", path.display()))
    }

    /// Until then a power cut may undo a rename.
    fn sync(&self) -> io::Result<()> {
        File::open(&self.store.folder)?.sync_all()
    }
}

fn read(path: &Path) -> Result<Option<Baseline>, Unread> {
    let options = libc::O_NOFOLLOW | libc::O_NONBLOCK; // The latter for pipes, which open() would wait for.
    let file = match OpenOptions::new().read(true).custom_flags(options).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => return Err(Unread::NoFile),
        Err(error) => return Err(Unread::Io(error)),
    };
    let metadata = file.metadata().map_err(Unread::Io)?;
    if !metadata.is_file() {
        return Err(Unread::NoFile);
    }
    if metadata.len() > LONGEST {
        return Err(Unread::Long(metadata.len()));
    }
    let mut text = Vec::new();
    file.take(LONGEST).read_to_end(&mut text).map_err(Unread::Io)?;
    let baseline = Baseline::from_text(&text).map_err(Unread::Fault)?;
    if path.file_name() != Some(format!("{}{SUFFIX}", baseline.name()).as_ref()) {
        return Err(Unread::Misplaced(baseline.name()));
    }
    Ok(Some(baseline))
}

fn write_through(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text)?;
    file.sync_all()
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

fn warn(message: &str) {
    // A terminal that is gone leaves nobody to tell.
    let _ = say(&format!("tollgate: warning: {message}"));
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::super::baseline::tests::example;
    use super::*;

    /// The test's output is for what went wrong.
    fn quiet(folder: &Path) -> Store {
        Store { warn: |_| (), ..Store::new(folder) }
    }

    /// With the example in it, at the path.
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
    fn what_was_saved_is_loaded_until_it_is_removed() {
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
    fn what_another_version_wrote_stays_where_it_is() {
        let (_folder, store, path) = store();
        let text = fs::read_to_string(&path).expect("it is there").replacen("/1", "/2", 1);
        fs::write(&path, &text).expect("written");
        assert!(store.load_all().expect("the rest").is_empty());
        assert!(load(&store).expect_err("of another version").to_string().contains("it is of version"));
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
        // What lies where a new file is written.
        symlink(&elsewhere, with_suffix(&path, ".new")).expect("linked");
        store.lock().and_then(|lock| lock.save(&mut example())).expect("saved");
        assert_eq!(fs::read(&elsewhere).expect("it is there"), before);

        fs::remove_file(&path).expect("removed");
        let made = std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo runs");
        assert!(made.success());
        assert!(store.load_all().expect("the rest").is_empty());
    }

    #[test]
    fn what_is_too_long_is_set_aside_unread() {
        let (_folder, store, path) = store();
        File::options().write(true).open(&path).and_then(|file| file.set_len(1 << 40)).expect("sparse");
        assert!(store.load(&example().digest, None).expect("none").is_none());
        assert_eq!(with_suffix(&path, DAMAGED).metadata().expect("set aside").len(), 1 << 40);
    }

    #[test]
    fn what_cannot_be_read_is_left_out() {
        let (_folder, store, path) = store();
        // A socket cannot be opened, even by root.
        let socket = path.with_file_name("0123.baseline");
        std::os::unix::net::UnixListener::bind(&socket).expect("bound");
        assert!(matches!(read(&socket), Err(Unread::Io(_))));
        assert_eq!(store.load_all().expect("the rest").len(), 1);
        assert!(socket.exists());
    }

    #[test]
    fn a_lock_that_is_not_given_back_is_not_waited_for_without_end() {
        let (_folder, store, _) = store();
        let stopped = store.lock().expect("locked");
        let other = quiet(store.folder()).with_patience(Duration::from_millis(10));
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
    fn what_cannot_be_replaced_stays_and_leaves_nothing_behind() {
        let (_folder, store, path) = store();
        fs::remove_file(&path).expect("removed");
        fs::create_dir(&path).expect("made");
        let error = store.lock().and_then(|lock| lock.save(&mut example())).expect_err("a folder is there");
        assert!(error.to_string().starts_with("cannot save "));
        assert!(path.is_dir() && !with_suffix(&path, ".new").exists());
    }

    #[test]
    fn changes_wait_for_each_other() {
        let (_folder, store, _) = store();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let store = Store::new(store.folder());
                    for _ in 0..25 {
                        let lock = store.lock().expect("locked");
                        let mut baseline = lock.load(&example().digest, None).expect("whole").expect("there");
                        baseline.seen_calls += 1;
                        lock.save(&mut baseline).expect("saved");
                    }
                });
            }
            // Who reads without the lock finds a whole one each time.
            for _ in 0..100 {
                assert_eq!(store.load_all().expect("whole").len(), 1);
            }
        });
        let seen = load(&store).expect("whole").expect("there").seen_calls;
        assert_eq!(seen, example().seen_calls + 100);
    }
}
