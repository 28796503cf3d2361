//! The table of holds is pinned in the BPF file system, so that any process can release what a
//! guard holds. It outlives the guard's process, in case the watchdog is killed as well. No link is
//! pinned: the gate itself goes with its processes.

use std::ffi::CString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use libbpf_rs::{MapCore as _, MapHandle};

use crate::error::{ErrorContext, Result};
use crate::gate::{Gate, Lock};
use crate::guard::holds::{end_session_guard, switch_off};
use crate::mapped_array::MappedArray;
use crate::process::{self, own_pid_namespace};
use crate::wire;

const BPF_FS: &str = "/sys/fs/bpf";
/// include/uapi/linux/magic.h
const BPF_FS_MAGIC: libc::c_long = 0xcafe_4a11;
const PREFIX: &str = "tollgate";
/// Names of the maps there, and in the gate.
const TABLES: [(&str, &str); 3] =
    [("threads", ".bss.threads"), ("guard", ".bss.guard"), ("sessions", "sessions")];

/// A guard whose table of holds is pinned: its process as a PID namespace numbers it, and the build
/// that made the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct HoldOwner {
    process: u32,
    namespace: u32,
    build: u32,
}

impl HoldOwner {
    fn here(process: u32) -> Self {
        Self { process, namespace: own_pid_namespace(), build: wire::BUILD }
    }

    /// "tollgate-PROCESS-NAMESPACE-BUILD"
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

    /// Whether its number, its table and the numbers in it mean the same to this process.
    fn is_same_build_and_namespace(self) -> bool {
        self == Self::here(self.process)
    }
}

/// Pinned until dropped.
pub struct PinnedHolds {
    folder: PathBuf,
}

fn is_mounted() -> bool {
    let path = CString::new(BPF_FS).expect("no NUL in it");
    // SAFETY: an all-zero statfs is valid, and a destination for the result.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    unsafe { libc::statfs(path.as_ptr(), &raw mut found) == 0 && found.f_type == BPF_FS_MAGIC }
}

/// systemd mounts it at boot; on other systems, the programs that need it do.
fn mount() -> io::Result<()> {
    let (kind, path) = (c"bpf", CString::new(BPF_FS)?);
    // SAFETY: NUL-terminated strings.
    match unsafe { libc::mount(kind.as_ptr(), path.as_ptr(), kind.as_ptr(), 0, std::ptr::null()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn remove(folder: &Path) {
    for (name, _) in TABLES {
        let _ = fs::remove_file(folder.join(name));
    }
    let _ = fs::remove_dir(folder);
}

impl Gate {
    /// Pins the table of holds. The lock keeps two processes from mounting the file system at once.
    pub fn pin_holds(&self, _lock: &Lock) -> Result<PinnedHolds> {
        if !is_mounted() {
            mount().doing("mounting the BPF file system")?;
        }
        let folder = HoldOwner::here(std::process::id()).folder();
        // Left by a killed process that had the same number.
        remove(&folder);
        fs::create_dir(&folder).doing("making a folder in the BPF file system")?;
        let pin = PinnedHolds { folder };
        for (name, map) in TABLES {
            let id = self.maps.get(map).info().doing("numbering its maps")?.info.id;
            let mut map = MapHandle::from_map_id(id).doing("opening the gate's maps")?;
            map.pin(pin.folder.join(name)).doing("pinning the table of holds")?;
        }
        Ok(pin)
    }
}

impl Drop for PinnedHolds {
    fn drop(&mut self) {
        remove(&self.folder);
    }
}

/// What became of the guards of this machine and of the processes that they held.
#[derive(Default)]
pub struct ReleaseSummary {
    /// Processes that were released because their guard had been killed.
    pub of_killed: usize,
    /// Guards that continue, by their processes, and how many processes each held.
    pub of_living: Vec<(u32, usize)>,
    /// What could not be done, in sentences.
    pub failures: Vec<String>,
}

/// Releases what guards held that have ended; with `also_living`, also what all other guards hold,
/// which hold no process from then on.
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
    let entries = fs::read_dir(BPF_FS).doing("reading the BPF file system")?.flatten();
    for owner in entries.filter_map(|entry| HoldOwner::of(entry.file_name().to_str()?)) {
        let process = owner.process;
        if !owner.is_same_build_and_namespace() {
            if owner.namespace == own_pid_namespace() && !process::exists(process) {
                released.failures.push(format!(
                    "process {process}, a guard of another version of Tollgate, was killed: \
                    continue the processes that it left stopped with `kill -CONT`"
                ));
                remove(&owner.folder());
            } else if also_living {
                released.failures.push(format!(
                    "the guard of process {process} belongs to another PID namespace or another \
                    version of Tollgate: run `guard off` in that namespace, or with that version"
                ));
            }
        } else if !process::exists(process) {
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

/// Removes the table when that process holds nothing any more.
pub(crate) fn unpin(owner: u32) {
    remove(&HoldOwner::here(owner).folder());
}

/// `None`: it has not begun to guard.
fn switch_off_running(owner: HoldOwner) -> Result<Option<usize>> {
    let Some((threads, cold, sessions)) = open(owner)? else { return Ok(None) };
    let switched = sessions_of(&sessions, owner)
        .map(|session| switch_off(&threads, &cold, &sessions, session));
    Ok(switched.reduce(|all, released| all + released))
}

fn release_of_dead_owner(owner: HoldOwner) -> Result<usize> {
    let Some((threads, cold, sessions)) = open(owner)? else { return Ok(0) };
    let end = || -> usize {
        sessions_of(&sessions, owner)
            .map(|session| end_session_guard(&threads, &cold, &sessions, session))
            .sum()
    };
    let held = end();
    // Another process may keep the gate running, which may have been about to hold.
    crate::cpus::wait_for_all();
    Ok(held + end())
}

type HoldMaps =
    (MappedArray<wire::thread_state>, MappedArray<wire::guard_cold>, MappedArray<wire::session>);

/// `None`: a process that is about to pin them, or was killed then, holds nothing yet.
fn open(owner: HoldOwner) -> Result<Option<HoldMaps>> {
    let paths = TABLES.map(|(name, _)| owner.folder().join(name));
    if !paths.iter().all(|path| path.exists()) {
        return Ok(None);
    }
    let open = |path| MapHandle::from_pinned_path(path).doing("opening a pinned table of holds");
    let [threads, cold, sessions] = paths.map(open);
    Ok(Some((
        MappedArray::new(&threads?, wire::THREADS)?,
        MappedArray::new(&cold?, wire::THREADS)?,
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
            HoldOwner::here(1).is_same_build_and_namespace()
                && !owner.is_same_build_and_namespace()
        );
    }
}
