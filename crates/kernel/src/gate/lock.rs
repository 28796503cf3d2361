//! One Tollgate process at a time loads, joins or leaves.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::error::{Doing, Error, Result};

const FOLDERS: [&str; 3] = ["/run", "/var/run", "/tmp"];

/// Held until dropped; the kernel drops it with the process.
pub struct Lock {
    _file: File,
}

impl Lock {
    pub fn take() -> Result<Self> {
        // SAFETY: a plain query.
        if unsafe { libc::geteuid() } != 0 {
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
        file.lock().doing(format!("lock {}", path.display()))?;
        Ok(Self { _file: file })
    }
}
