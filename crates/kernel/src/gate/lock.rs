//! One Tollgate process at a time loads, joins or leaves.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::error::{Doing, Error, Result};
use crate::process::is_root;

const FOLDERS: [&str; 3] = ["/run", "/var/run", "/tmp"];
const TRY_AGAIN: Duration = Duration::from_millis(5);

/// Held until dropped; the kernel drops it with the process.
pub struct Lock {
    _file: File,
}

impl Lock {
    pub fn take() -> Result<Self> {
        let (file, path) = open()?;
        file.lock().doing(format!("lock {}", path.display()))?;
        Ok(Self { _file: file })
    }

    /// `None`: another has it.
    pub fn try_take() -> Result<Option<Self>> {
        let (file, path) = open()?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error).doing(format!("lock {}", path.display())),
        }
    }

    /// As [`Lock::take`], but first tells `notice` the lock's path if another holds it for that long.
    pub fn take_with_notice(patience: Duration, notice: impl FnOnce(&Path)) -> Result<Self> {
        let end = Instant::now() + patience;
        while Instant::now() < end {
            if let Some(lock) = Self::try_take()? {
                return Ok(lock);
            }
            sleep(TRY_AGAIN);
        }
        notice(&open()?.1);
        Self::take()
    }
}

fn open() -> Result<(File, PathBuf)> {
    if !is_root() {
        return Err(Error::NotRoot);
    }
    let folder = FOLDERS.into_iter().find(|folder| Path::new(folder).is_dir()).unwrap_or("/");
    let path = Path::new(folder).join("tollgate.lock");
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&path)
        .doing(format!("open the lock file {}", path.display()))?;
    Ok((file, path))
}
