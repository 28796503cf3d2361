//! Cgroups that tests create.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use kernel::favordynmods::{has_favordynmods, set_favordynmods};

use super::service_limits::cgroup_line_of;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A cgroup that the test creates, and removes at its end.
pub struct TestCgroup(pub PathBuf);

impl TestCgroup {
    pub fn new() -> Self {
        // cgroup v2 alone, v2 beside v1, or a hierarchy of v1.
        let roots = ["", "unified", "freezer", "pids", "cpu"];
        let root = roots
            .map(|root| Path::new("/sys/fs/cgroup").join(root))
            .into_iter()
            .find(|root| root.join("cgroup.procs").exists());
        let root = &root.expect("cgroups are mounted at /sys/fs/cgroup");
        Self::below(root)
    }

    fn below(root: &Path) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = root.join(format!("tollgate-live-{}-{number}", std::process::id()));
        fs::create_dir(&path).expect("root may make a cgroup");
        Self(path)
    }

    /// Creates a cgroup in the hierarchy of this controller, with the default settings.
    pub fn of(controller: &str) -> Self {
        let v1 = Path::new("/sys/fs/cgroup").join(controller);
        if !v1.join("cgroup.procs").exists() {
            return Self::new();
        }
        Self::below(&v1)
    }

    /// Creates a cgroup below this one.
    pub fn inner(&self, name: &str) -> Self {
        let path = self.0.join(name);
        fs::create_dir(&path).expect("root may make a cgroup");
        Self(path)
    }

    pub fn add(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).expect("it may be added");
    }
}

impl Drop for TestCgroup {
    fn drop(&mut self) {
        // The last process may not have ended completely.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Puts this process and its future children into a cgroup that outweighs the rest of the machine.
/// For this thread and its children, the cgroup is the root of its hierarchy, so Tollgate creates
/// its cgroups below it.
pub struct OutweighingCgroup {
    cgroup: PathBuf,
    /// The original cgroup of the process.
    home: PathBuf,
    /// The original cgroup and mount namespaces.
    namespaces: [File; 2],
    /// Whether to clear `favordynmods` at the end.
    favours_moves: bool,
    /// Whether to withdraw the controller from `cgroup.subtree_control` at the end.
    hands_down: bool,
}

impl OutweighingCgroup {
    pub fn start() -> Self {
        let cgroup = ManuallyDrop::new(TestCgroup::of("cpu")).0.clone();
        let root = cgroup.parent().expect("it is below the root").to_owned();
        let (controllers, was_in) = cgroup_line_of(std::process::id(), "cpu");
        let namespace =
            |name| File::open(format!("/proc/thread-self/ns/{name}")).expect("the kernel has it");
        let mut outweighing = Self {
            home: root.join(was_in.trim_start_matches('/')),
            namespaces: [namespace("cgroup"), namespace("mnt")],
            favours_moves: false,
            hands_down: false,
            cgroup,
        };
        let cgroup = &outweighing.cgroup;
        let is_v1 = cgroup.join("cpu.shares").exists();
        // The option cannot be set in a cgroup namespace.
        if !has_favordynmods() {
            set_favordynmods(true).expect("the kernel has the option");
            outweighing.favours_moves = true;
        }
        let handed_down = root.join(HANDED_DOWN);
        if !is_v1 && !fs::read_to_string(&handed_down).is_ok_and(|all| all.contains("cpu ")) {
            fs::write(&handed_down, "+cpu").expect("the controller is there");
            outweighing.hands_down = true;
        }
        // The largest weights that the kernel accepts: MAX_SHARES of kernel/sched/sched.h, and
        // CGROUP_WEIGHT_MAX.
        let (file, weight) = if is_v1 { ("cpu.shares", "262144") } else { ("cpu.weight", "10000") };
        fs::write(cgroup.join(file), weight).expect("a cgroup has a weight");
        join(cgroup).expect("a process may join a cgroup");
        let as_root = outweighing.become_root(&root, is_v1.then_some(&controllers));
        as_root.expect("a hierarchy of its own");
        if !is_v1 {
            // Only the real root may delegate controllers while it has processes.
            let rest = root.join(REST);
            fs::create_dir(&rest).and_then(|()| join(&rest)).expect("root may make a cgroup");
        }
        outweighing
    }

    /// Mounts the hierarchy in a new namespace; one of cgroup v1 by its controllers.
    fn become_root(&self, root: &Path, controllers: Option<&String>) -> io::Result<()> {
        let text = |text: &[u8]| CString::new(text).expect("it has no NUL");
        let at = text(root.as_os_str().as_bytes());
        let options = controllers.map(|names| text(names.as_bytes()));
        let kind = if options.is_some() { c"cgroup" } else { c"cgroup2" };
        let options = options.as_ref().map_or(ptr::null(), |options| options.as_ptr());
        let private = libc::MS_REC | libc::MS_PRIVATE;
        let checked =
            |result: i32| if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
        // SAFETY: texts that end in NUL; the namespaces are of this thread and what it starts.
        unsafe {
            checked(libc::unshare(libc::CLONE_NEWCGROUP | libc::CLONE_NEWNS))?;
            checked(libc::mount(ptr::null(), c"/".as_ptr(), ptr::null(), private, ptr::null()))?;
            checked(libc::umount2(at.as_ptr(), libc::MNT_DETACH))?;
            checked(libc::mount(c"none".as_ptr(), at.as_ptr(), kind.as_ptr(), 0, options.cast()))
        }
    }
}

/// A cgroup below the new root, used for cgroup v2 only.
const REST: &str = "rest";
const HANDED_DOWN: &str = "cgroup.subtree_control";

fn join(cgroup: &Path) -> io::Result<()> {
    fs::write(cgroup.join("cgroup.procs"), "0")
}

impl Drop for OutweighingCgroup {
    fn drop(&mut self) {
        // No panic here: a second panic would abort the tests.
        for namespace in &self.namespaces {
            // SAFETY: an open descriptor.
            unsafe { libc::setns(namespace.as_raw_fd(), 0) };
        }
        let _ = join(&self.home);
        if self.favours_moves {
            let _ = set_favordynmods(false);
        }
        // Processes that were just killed may not have ended completely.
        for _ in 0..100 {
            let _ = fs::remove_dir(self.cgroup.join(REST));
            if fs::remove_dir(&self.cgroup).is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        if let Some(root) = self.cgroup.parent().filter(|_| self.hands_down) {
            let _ = fs::write(root.join(HANDED_DOWN), "-cpu");
        }
    }
}
