//! Control groups.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A control group of the test's own.
pub struct ControlGroup(pub PathBuf);

impl ControlGroup {
    pub fn new() -> Self {
        // Version 2 alone, version 2 beside version 1, or one of version 1.
        let roots = ["", "unified", "freezer", "pids", "cpu"];
        let root = roots
            .map(|root| Path::new("/sys/fs/cgroup").join(root))
            .into_iter()
            .find(|root| root.join("cgroup.procs").exists());
        let root = &root.expect("control groups are mounted at /sys/fs/cgroup");
        Self::below(root)
    }

    fn below(root: &Path) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = root.join(format!("tollgate-live-{}-{number}", std::process::id()));
        fs::create_dir(&path).expect("root may make a control group");
        Self(path)
    }

    /// In the hierarchy that has this controller, with what everybody has of it.
    pub fn of(controller: &str) -> Self {
        let v1 = Path::new("/sys/fs/cgroup").join(controller);
        if !v1.join("cgroup.procs").exists() {
            return Self::new();
        }
        Self::below(&v1)
    }

    /// One within it.
    pub fn inner(&self, name: &str) -> Self {
        let path = self.0.join(name);
        fs::create_dir(&path).expect("root may make a control group");
        Self(path)
    }

    pub fn add(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).expect("it may be added");
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // The last process may not have left yet.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
