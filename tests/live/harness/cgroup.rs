//! Control groups.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::limits::group_of;

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

/// This process, and what it starts from here on, in a control group that outweighs the rest of the machine. For this
/// thread and what it starts the group is the root of its hierarchy, so that Tollgate makes its groups within.
pub struct Outweighing {
    /// `cgroup.procs` of where the process was.
    home: File,
    /// The group's folder and the one above it, which the namespace does not show.
    group: File,
    above: File,
    name: CString,
}

impl Outweighing {
    pub fn start() -> Self {
        let ControlGroup(path) = &*ManuallyDrop::new(ControlGroup::of("cpu"));
        let above = path.parent().expect("it is below the root");
        let is_v1 = path.join("cpu.shares").exists();
        // The largest weights that the kernel takes: kernel/sched/sched.h, MAX_SHARES, and CGROUP_WEIGHT_MAX.
        let (file, weight) = if is_v1 { ("cpu.shares", "262144") } else { ("cpu.weight", "10000") };
        if !is_v1 {
            fs::write(above.join("cgroup.subtree_control"), "+cpu").expect("the controller is there");
        }
        fs::write(path.join(file), weight).expect("a group has a weight");
        let was_in = above.join(group_of(std::process::id(), "cpu").trim_start_matches('/'));
        let open = |path: &Path| File::open(path).expect("it is there");
        let outweighing = Self {
            home: File::create(was_in.join("cgroup.procs")).expect("root may write it"),
            group: open(path),
            above: open(above),
            name: CString::new(path.file_name().expect("a name").as_bytes()).expect("it has no NUL"),
        };
        fs::write(path.join("cgroup.procs"), "0").expect("a process may join a group");
        let at = CString::new(above.as_os_str().as_bytes()).expect("it has no NUL");
        let (kind, options) = if is_v1 { (c"cgroup", c"cpu".as_ptr()) } else { (c"cgroup2", ptr::null()) };
        // SAFETY: texts that end in NUL; the namespaces are of this thread and what it starts.
        let is_root = unsafe {
            libc::unshare(libc::CLONE_NEWCGROUP | libc::CLONE_NEWNS) == 0
                && libc::mount(
                    ptr::null(),
                    c"/".as_ptr(),
                    ptr::null(),
                    libc::MS_REC | libc::MS_PRIVATE,
                    ptr::null(),
                ) == 0
                && libc::umount2(at.as_ptr(), libc::MNT_DETACH) == 0
                && libc::mount(c"none".as_ptr(), at.as_ptr(), kind.as_ptr(), 0, options.cast()) == 0
        };
        assert!(is_root, "a hierarchy of its own: {}", io::Error::last_os_error());
        if !is_v1 {
            // Only a true root hands down controllers while processes are in it.
            let rest = above.join("rest");
            fs::create_dir(&rest).expect("root may make a control group");
            fs::write(rest.join("cgroup.procs"), "0").expect("a process may join a group");
        }
        outweighing
    }
}

impl Drop for Outweighing {
    fn drop(&mut self) {
        // Processes that have just been ended may not have left yet; nobody is to panic here.
        let _ = (&self.home).write_all(b"0");
        for _ in 0..100 {
            // SAFETY: open descriptors and texts that end in NUL.
            let is_gone = unsafe {
                libc::unlinkat(self.group.as_raw_fd(), c"rest".as_ptr(), libc::AT_REMOVEDIR);
                libc::unlinkat(self.above.as_raw_fd(), self.name.as_ptr(), libc::AT_REMOVEDIR) == 0
            };
            if is_gone {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
