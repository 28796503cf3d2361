//! One Tollgate process at a time loads, joins or leaves.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::error::{Doing, Error, Result};
use crate::process::is_root;

const FOLDERS: [&str; 3] = ["/run", "/var/run", "/tmp"];
const NAME: &str = "tollgate.lock";
const PLUGINS_NAME: &str = "tollgate-plugins.lock";
const TRY_AGAIN: Duration = Duration::from_millis(5);

/// Held until dropped; the kernel drops it with the process.
pub struct Lock {
    _file: File,
}

impl Lock {
    pub fn take() -> Result<Self> {
        Self::wait_for(NAME)
    }

    /// Of the chains of plugins, for some microseconds: whoever has the other one may take this one, too.
    pub fn of_plugins() -> Result<Self> {
        Self::wait_for(PLUGINS_NAME)
    }

    fn wait_for(name: &str) -> Result<Self> {
        let (file, path) = open(name)?;
        file.lock().doing(format!("lock {}", path.display()))?;
        Ok(Self { _file: file })
    }

    /// `None`: another has it.
    pub fn try_take() -> Result<Option<Self>> {
        let (file, path) = open(NAME)?;
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
