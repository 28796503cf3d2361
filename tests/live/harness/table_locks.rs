//! The gate has several hundred rows and several thousand threads for all sessions, and a hook has
//! 32 slots for the plugins of all processes. A test that fills such a table excludes other tests.

use std::fs::File;

fn open(path: std::path::PathBuf) -> File {
    File::open(path).expect("what is locked exists")
}

/// A lock that excludes tests that need free rows, or all rows, also those of other test programs.
/// Held until dropped.
pub struct Rows {
    _lock: File,
}

impl Rows {
    pub fn shared() -> Self {
        let lock = open(std::env::temp_dir());
        lock.lock_shared().expect("a folder can be locked");
        Self { _lock: lock }
    }

    pub fn exclusive() -> Self {
        let lock = open(std::env::temp_dir());
        lock.lock().expect("a folder can be locked");
        Self { _lock: lock }
    }
}

/// A lock for a test that links many plugins at one hook: a session may have eight, and another
/// eight while these are retired, which takes long on a busy machine. Four such tests at once would
/// fill the hook. Held until dropped.
pub struct HookSlots {
    _lock: File,
}

impl HookSlots {
    pub fn exclusive() -> Self {
        let lock = open(std::env::current_exe().expect("the test program has a path"));
        lock.lock().expect("a program can be locked");
        Self { _lock: lock }
    }
}
