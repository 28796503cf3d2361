//! The table of holds is pinned in the BPF file system, so that any process can release what a
//! guard holds. It outlives the guard's process, in case the watchdog is killed as well. Links are
//! not pinned, so that the gate itself is detached when its last process ends.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use libbpf_rs::{MapCore as _, MapHandle};

use crate::cpus;
use crate::error::{ErrorContext, Result};
use crate::gate::{Gate, Lock, is_gate_of_map_attached};
use crate::guard::holds::Holds;
use crate::mapped_array::MappedArray;
use crate::process::{self, own_pid_namespace};
use crate::wire;

const BPF_FS: &str = "/sys/fs/bpf";
/// include/uapi/linux/magic.h
const BPF_FS_MAGIC: libc::c_long = 0xcafe_4a11;
const PREFIX: &str = "tollgate";
/// How often a folder is made at most, if another user puts something in its place each time.
const ATTEMPTS: u32 = 100;
/// The maps that form the table: their file names, and their names in the gate.
const TABLES: [(&str, &str); 3] =
    [("threads", ".bss.threads"), ("guard", ".bss.guard"), ("sessions", "sessions")];

/// A guard whose table of holds is pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct HoldOwner {
    /// The guard's process, as `namespace` numbers it.
    process: u32,
    /// A PID namespace.
    namespace: u32,
    /// The build that made the table.
    build: u32,
}

impl HoldOwner {
    /// A process of this build, as this process's PID namespace numbers it.
    fn here(process: u32) -> Result<Self> {
        Ok(Self { process, namespace: own_pid_namespace()?, build: wire::BUILD })
    }

    /// The owner of a folder with the name "tollgate-PROCESS-NAMESPACE-BUILD".
    fn of(folder: &str) -> Option<Self> {
        let mut numbers =
            folder.strip_prefix(PREFIX)?.strip_prefix('-')?.splitn(3, '-').map(str::parse);
        let mut next = || numbers.next()?.ok();
        Some(Self { process: next()?, namespace: next()?, build: next()? })
    }

    fn folder(self) -> PathBuf {
        let Self { process, namespace, build } = self;
        Path::new(BPF_FS).join(format!("{PREFIX}-{process}-{namespace}-{build}"))
    }

    /// Whether this process can read the table and knows processes by the same numbers.
    fn is_same_build_and_namespace(self) -> bool {
        Self::here(self.process).is_ok_and(|here| here == self)
    }
}

/// The pinned table of this process's guard. It is removed when this is dropped.
pub struct PinnedHolds {
    folder: PathBuf,
}

fn is_mounted() -> bool {
    let path = CString::new(BPF_FS).expect("no NUL in it");
    // SAFETY: all bytes of a statfs may be zero.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `path` is NUL-terminated, and `found` is a valid destination.
    unsafe { libc::statfs(path.as_ptr(), &raw mut found) == 0 && found.f_type == BPF_FS_MAGIC }
}

/// Mounts the BPF file system. systemd does this at boot; on other systems, the programs that need
/// it do so.
fn mount() -> io::Result<()> {
    let (kind, path) = (c"bpf", CString::new(BPF_FS)?);
    // SAFETY: NUL-terminated strings.
    match unsafe { libc::mount(kind.as_ptr(), path.as_ptr(), kind.as_ptr(), 0, std::ptr::null()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn remove(folder: &Path) {
    if !is_own(folder) {
        return;
    }
    for (name, _) in TABLES {
        let _ = fs::remove_file(folder.join(name));
    }
    let _ = fs::remove_dir(folder);
}

/// Makes a folder. Unless the BPF file system is mounted with mode=700, as systemd does, any user
/// can make entries there, also with this name; and a killed process of the same number may have
/// left one.
fn make(folder: &Path) -> io::Result<()> {
    for _ in 1..ATTEMPTS {
        match fs::create_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // Root may remove the entries of all users. A link is removed, and not followed.
                let _ = fs::remove_dir_all(folder).or_else(|_| fs::remove_file(folder));
            }
            made => return made,
        }
    }
    fs::create_dir(folder)
}

/// Whether a folder is Tollgate's, and not another user's.
fn is_own(folder: &Path) -> bool {
    fs::symlink_metadata(folder)
        .is_ok_and(|found| found.is_dir() && found.uid() == process::effective_user())
}

impl PinnedHolds {
    /// Pins the table of holds. The lock keeps two processes from mounting the file system at the
    /// same time.
    ///
    /// # Errors
    /// If the BPF file system can be neither found nor mounted, or does not accept the files.
    pub fn new(gate: &Gate, _lock: &Lock) -> Result<Self> {
        if !is_mounted() {
            mount().doing("mount the BPF file system")?;
        }
        let folder = HoldOwner::here(std::process::id())?.folder();
        make(&folder).doing("make a folder in the BPF file system")?;
        let pinned = Self { folder };
        for (name, map) in TABLES {
            let id = gate.maps.id(map)?;
            let mut map = MapHandle::from_map_id(id).doing("opening the gate's maps")?;
            map.pin(pinned.folder.join(name)).doing("pinning the table of holds")?;
        }
        Ok(pinned)
    }
}

impl Drop for PinnedHolds {
    fn drop(&mut self) {
        remove(&self.folder);
    }
}

/// The processes that were released, and the guards that held them.
#[derive(Default)]
pub struct ReleaseSummary {
    /// The number of processes that were released because their guard had been killed.
    pub of_killed: usize,
    /// For each guard that is still running: its PID, and the number of processes that it held.
    pub of_living: Vec<(u32, usize)>,
    /// What could not be done, in sentences.
    pub failures: Vec<String>,
}

/// Releases the processes of guards that were killed. With `also_living`, also switches off all
/// other guards of the machine: they release their processes and hold none from then on.
///
/// # Errors
/// If the BPF file system cannot be read. The failures of single guards are in the result.
pub fn release_orphaned_holds(also_living: bool) -> Result<ReleaseSummary> {
    let mut released = ReleaseSummary::default();
    if !is_mounted() {
        if also_living {
            released.failures.push(format!(
                "{BPF_FS}, which lists the guards of this machine, is not mounted here"
            ));
        }
        return Ok(released);
    }
    let entries = fs::read_dir(BPF_FS).doing("read the BPF file system")?.flatten();
    let own = entries.filter(|entry| is_own(&entry.path()));
    for owner in own.filter_map(|entry| HoldOwner::of(entry.file_name().to_str()?)) {
        let process = owner.process;
        if !owner.is_same_build_and_namespace() {
            if process::is_own_pid_namespace(owner.namespace) && process::is_ending(process) {
                released.failures.push(format!(
                    "process {process}, a guard of another version of Tollgate, was killed: \
                    use `kill -CONT` to continue the processes that it left stopped"
                ));
                remove(&owner.folder());
            } else if also_living {
                released.failures.push(format!(
                    "the guard of process {process} belongs to another PID namespace or another \
                    version of Tollgate: run `guard off` in that namespace, or with that version"
                ));
            }
        } else if process::is_ending(process) {
            match release_of_dead_owner(owner) {
                Ok(processes) => released.of_killed += processes,
                Err(error) => released.failures.push(error.to_string()),
            }
            remove(&owner.folder());
        } else if also_living {
            match switch_off_running(owner) {
                Ok(Some(processes)) => released.of_living.push((process, processes)),
                Ok(None) => {}
                Err(error) => {
                    released.failures.push(format!("the guard of process {process}: {error}"))
                }
            }
        }
    }
    Ok(released)
}

/// Removes the table of a process that holds nothing any more.
pub(crate) fn unpin(owner: u32) {
    if let Ok(owner) = HoldOwner::here(owner) {
        remove(&owner.folder());
    }
}

/// Returns how many processes the guard held, or `None` if it has not begun to guard.
fn switch_off_running(owner: HoldOwner) -> Result<Option<usize>> {
    let Some((threads, guard_threads, sessions)) = open(owner)? else { return Ok(None) };
    let released = sessions_of(&sessions, owner)
        .map(|session| Holds::in_tables(&threads, &guard_threads, &sessions, session).switch_off());
    Ok(released.reduce(|all, released| all + released))
}

fn release_of_dead_owner(owner: HoldOwner) -> Result<usize> {
    let Some((threads, guard_threads, sessions)) = open(owner)? else { return Ok(0) };
    let threads_path = owner.folder().join(TABLES[0].0);
    let map = MapHandle::from_pinned_path(threads_path).doing("opening a pinned table of holds")?;
    let map_id = map.info().doing("reading the ID of a table of holds")?.info.id;
    let end = || -> usize {
        sessions_of(&sessions, owner)
            .map(|session| {
                let holds = Holds::in_tables(&threads, &guard_threads, &sessions, session);
                let is_attached = is_gate_of_map_attached(map_id);
                (if is_attached { holds } else { holds.of_ended_gate() }).end_guard()
            })
            .sum()
    };
    let held = end();
    // If another process keeps the gate attached, the gate may have been about to hold a process.
    cpus::wait_for_all();
    Ok(held + end())
}

type HoldMaps =
    (MappedArray<wire::thread_state>, MappedArray<wire::guard_cold>, MappedArray<wire::session>);

/// Returns `None` if not all of the table is pinned. Then the guard's process is about to pin it,
/// or was killed before it had done so, and holds nothing.
fn open(owner: HoldOwner) -> Result<Option<HoldMaps>> {
    let paths = TABLES.map(|(name, _)| owner.folder().join(name));
    if !paths.iter().all(|path| path.exists()) {
        return Ok(None);
    }
    let open = |path| MapHandle::from_pinned_path(path).doing("opening a pinned table of holds");
    let [threads, guard_threads, sessions] = paths.map(open);
    Ok(Some((
        MappedArray::new(&threads?, wire::THREADS)?,
        MappedArray::new(&guard_threads?, wire::THREADS)?,
        MappedArray::new(&sessions?, wire::SESSIONS)?,
    )))
}

fn sessions_of(
    sessions: &MappedArray<wire::session>,
    owner: HoldOwner,
) -> impl Iterator<Item = u32> {
    (1..wire::SESSIONS).filter(move |session| {
        let session = sessions.read(*session);
        session.owner_pid == owner.process && session.owner_namespace == owner.namespace
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_in_place_of_the_folder_are_replaced() {
        let there = tempfile::tempdir().unwrap();
        let folder = there.path().join("tollgate-1-2-3");
        assert!(!is_own(&folder));
        fs::create_dir_all(folder.join("a/b")).unwrap();
        make(&folder).unwrap();
        assert!(is_own(&folder) && fs::read_dir(&folder).unwrap().next().is_none());
        fs::remove_dir(&folder).unwrap();
        let target = there.path().join("target");
        fs::create_dir_all(target.join("a")).unwrap();
        std::os::unix::fs::symlink(&target, &folder).unwrap();
        assert!(!is_own(&folder));
        make(&folder).unwrap();
        assert!(is_own(&folder) && target.join("a").exists());
    }

    #[test]
    fn folder_name_round_trips() {
        let owner = HoldOwner { process: 42, namespace: 4_026_531_836, build: u32::MAX };
        let folder = owner.folder();
        assert_eq!(
            HoldOwner::of(folder.file_name().and_then(|name| name.to_str()).expect("ASCII")),
            Some(owner)
        );
        for other in [
            "tollgate",
            "tollgate-",
            "tollgate-42",
            "tollgate-42-1-x",
            "tollgate-42-1-2-3",
            "cilium",
        ] {
            assert_eq!(HoldOwner::of(other), None, "{other}");
        }
        assert!(
            HoldOwner::here(1).expect("/proc").is_same_build_and_namespace()
                && !owner.is_same_build_and_namespace()
        );
    }
}
