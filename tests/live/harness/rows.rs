//! The gate has some hundred rows and some thousand threads for all sessions. Tests that count on theirs and
//! tests that take all of them exclude each other, also those of other test programs.

use std::fs::File;

/// Held until dropped.
pub struct Rows {
    _lock: File,
}

fn place() -> File {
    File::open(std::env::temp_dir()).expect("there is a folder for temporary files")
}

impl Rows {
    pub fn some() -> Self {
        let lock = place();
        lock.lock_shared().expect("a folder can be locked");
        Self { _lock: lock }
    }

    pub fn all() -> Self {
        let lock = place();
        lock.lock().expect("a folder can be locked");
        Self { _lock: lock }
    }
}
