//! The locks between Tollgate processes. One process at a time loads the gate, joins it, or changes
//! what all processes share.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorContext, Result};
use crate::process::is_root;

const FOLDERS: [&str; 3] = ["/run", "/var/run", "/tmp"];
const NAME: &str = "tollgate.lock";
const PLUGINS_NAME: &str = "tollgate-plugins.lock";
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// A lock of the whole machine, held until this is dropped or the process ends.
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Waits for the lock, however long another process holds it.
    ///
    /// # Errors
    /// If this process is not root's, or the lock file cannot be opened.
    pub fn take() -> Result<Self> {
        Self::wait_for(NAME)
    }

    /// Waits for the lock of the plugin chains, which is held for some microseconds at a time. A
    /// process that has the other lock may take this one as well.
    pub(crate) fn take_chain_lock() -> Result<Self> {
        Self::wait_for(PLUGINS_NAME)
    }

    fn wait_for(name: &str) -> Result<Self> {
        let (file, path) = open(name)?;
        file.lock().doing(format!("lock {}", path.display()))?;
        Ok(Self { _file: file })
    }

    /// Opens the lock file, and returns its path.
    pub fn file() -> Result<PathBuf> {
        Ok(open(NAME)?.1)
    }

    /// Takes the lock if it is free. Returns `None` if another process has it.
    pub fn try_take() -> Result<Option<Self>> {
        let (file, path) = open(NAME)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error).doing(format!("lock {}", path.display())),
        }
    }

    /// As [`Lock::take`], but passes the lock's path to `notice` if another process holds the lock
    /// for longer than `timeout`.
    pub fn take_with_notice(timeout: Duration, notice: impl FnOnce(&Path)) -> Result<Self> {
        let end = Instant::now() + timeout;
        while Instant::now() < end {
            if let Some(lock) = Self::try_take()? {
                return Ok(lock);
            }
            sleep(RETRY_INTERVAL);
        }
        notice(&open(NAME)?.1);
        Self::take()
    }
}

fn open(name: &str) -> Result<(File, PathBuf)> {
    if !is_root() {
        return Err(Error::NotRoot);
    }
    let folder = FOLDERS.into_iter().find(|folder| Path::new(folder).is_dir()).unwrap_or("/");
    let path = Path::new(folder).join(name);
    Ok((open_lock_file(&path)?, path))
}

/// Opens a lock file, which is created if it does not exist. A symbolic link is not followed.
pub(crate) fn open_lock_file(path: &Path) -> Result<File> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
        .map_err(|cause| match cause.kind() {
            io::ErrorKind::ReadOnlyFilesystem => Error::ReadOnly { path: path.to_owned() },
            _ => Error::Io { doing: format!("open the lock file {}", path.display()), cause },
        })
}
