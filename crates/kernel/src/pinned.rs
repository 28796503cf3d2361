//! The table of holds is in the BPF file system, so that anybody can let go whom a guard holds. It outlives the guard's
//! process, for the case that its warden is killed as well.
//! No link is pinned: the gate itself is gone with its processes.

use std::ffi::CString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use libbpf_rs::{MapCore as _, MapHandle};

use crate::error::{Doing, Result};
use crate::gate::{Gate, Lock};
use crate::guarded::{end_guard, switch_off};
use crate::mapping::Mapping;
use crate::session::own_pid_namespace;
use crate::{process, wire};

const BPF_FS: &str = "/sys/fs/bpf";
/// include/uapi/linux/magic.h
const BPF_FS_MAGIC: libc::c_long = 0xcafe_4a11;
const PREFIX: &str = "tollgate";
/// Maps as they are called there, and in the gate.
const TABLES: [(&str, &str); 2] = [("threads", ".bss.threads"), ("sessions", "sessions")];

/// A guard whose table of holds is pinned: its process as a PID namespace numbers it, and the build that made the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Owner {
    process: u32,
    namespace: u32,
    build: u32,
}

impl Owner {
    fn here(process: u32) -> Self {
        Self { process, namespace: own_pid_namespace(), build: wire::BUILD }
    }

    /// "tollgate-PROCESS-NAMESPACE-BUILD"
    fn of(folder: &str) -> Option<Self> {
        let mut numbers = folder.strip_prefix(PREFIX)?.strip_prefix('-')?.splitn(3, '-').map(str::parse);
        let mut next = || numbers.next()?.ok();
        Some(Self { process: next()?, namespace: next()?, build: next()? })
    }

    fn folder(self) -> PathBuf {
        let Self { process, namespace, build } = self;
        Path::new(BPF_FS).join(format!("{PREFIX}-{process}-{namespace}-{build}"))
    }

    /// Whether its number, its table and the numbers in that mean the same to this process.
    fn is_ours(self) -> bool {
        self == Self::here(self.process)
    }
}

/// Until dropped.
pub struct Pin {
    folder: PathBuf,
}

fn is_mounted() -> bool {
    let path = CString::new(BPF_FS).expect("no NUL in it");
    // SAFETY: an all-zero statfs is valid, and a place for the result.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    unsafe { libc::statfs(path.as_ptr(), &raw mut found) == 0 && found.f_type == BPF_FS_MAGIC }
}

/// systemd does so at boot; elsewhere it is everybody's own business.
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
    /// The lock keeps two from mounting it at once.
    pub fn pin_holds(&self, _lock: &Lock) -> Result<Pin> {
        if !is_mounted() {
            mount().doing("mounting the BPF file system")?;
        }
        let folder = Owner::here(std::process::id()).folder();
        // Of a killed one that had the same number.
        remove(&folder);
        fs::create_dir(&folder).doing("making a folder in the BPF file system")?;
        let pin = Pin { folder };
        for (name, map) in TABLES {
            let id = self.maps.get(map).info().doing("numbering its maps")?.info.id;
            let mut map = MapHandle::from_map_id(id).doing("opening the gate's maps")?;
            map.pin(pin.folder.join(name)).doing("pinning the table of holds")?;
        }
        Ok(pin)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        remove(&self.folder);
    }
}

/// What became of the guards of this machine and those whom they held.
#[derive(Default)]
pub struct Released {
    /// Processes that were let go whose guard was killed.
    pub of_killed: usize,
    /// Guards that go on, by their processes, and how many processes each held.
    pub of_living: Vec<(u32, usize)>,
    /// What could not be done, in sentences.
    pub failures: Vec<String>,
}

/// Lets go whom guards held that are no more; and with `also_living`, whom all others hold, which hold nobody then.
pub fn release(also_living: bool) -> Result<Released> {
    let mut released = Released::default();
    if !is_mounted() {
        if also_living {
            released.failures.push(format!("{BPF_FS}, where guards are found, is not mounted here"));
        }
        return Ok(released);
    }
    let entries = fs::read_dir(BPF_FS).doing("reading the BPF file system")?.flatten();
    for owner in entries.filter_map(|entry| Owner::of(entry.file_name().to_str()?)) {
        let process = owner.process;
        if !owner.is_ours() {
            if owner.namespace == own_pid_namespace() && !process::exists(process) {
                released.failures.push(format!(
                    "process {process}, a guard of another version, was killed: whom it and its warden left stopped, `kill \
                     -CONT` continues"
                ));
                remove(&owner.folder());
            } else if also_living {
                released.failures.push(format!(
                    "the guard of process {process} is of another PID namespace, or of another version of Tollgate: it \
                     takes a `guard off` from there, or of that version"
                ));
            }
        } else if !process::exists(process) {
            match release_killed(owner) {
                Ok(processes) => released.of_killed += processes,
                Err(error) => released.failures.push(error.to_string()),
            }
            remove(&owner.folder());
        } else if also_living {
            match switch_off_living(owner) {
                Ok(Some(processes)) => released.of_living.push((process, processes)),
                Ok(None) => {}
                Err(error) => released.failures.push(format!("the guard of process {process}: {error}")),
            }
        }
    }
    Ok(released)
}

/// When nobody is held by that process any more.
pub(crate) fn unpin(owner: u32) {
    remove(&Owner::here(owner).folder());
}

/// None: it has not begun to guard.
fn switch_off_living(owner: Owner) -> Result<Option<usize>> {
    let Some((threads, sessions)) = open(owner)? else { return Ok(None) };
    let switched = sessions_of(&sessions, owner).map(|session| switch_off(&threads, &sessions, session));
    Ok(switched.reduce(|all, released| all + released))
}

fn release_killed(owner: Owner) -> Result<usize> {
    let Some((threads, sessions)) = open(owner)? else { return Ok(0) };
    let end = || -> usize {
        sessions_of(&sessions, owner).map(|session| end_guard(&threads, &sessions, session)).sum()
    };
    let held = end();
    // Somebody else may keep its gate at work, which may have been about to hold.
    crate::cpus::wait_for_all();
    Ok(held + end())
}

type Tables = (Mapping<wire::thread_state>, Mapping<wire::session>);

/// None: who is about to pin them, or was killed then, holds nobody yet.
fn open(owner: Owner) -> Result<Option<Tables>> {
    let paths = TABLES.map(|(name, _)| owner.folder().join(name));
    if !paths.iter().all(|path| path.exists()) {
        return Ok(None);
    }
    let open = |path| MapHandle::from_pinned_path(path).doing("opening a pinned table of holds");
    let [threads, sessions] = paths.map(open);
    Ok(Some((Mapping::new(&threads?, wire::THREADS)?, Mapping::new(&sessions?, wire::SESSIONS)?)))
}

fn sessions_of(sessions: &Mapping<wire::session>, owner: Owner) -> impl Iterator<Item = u32> {
    (1..wire::SESSIONS).filter(move |session| {
        let session = sessions.read(*session);
        session.owner_pid == owner.process && session.owner_namespace == owner.namespace
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_names_its_owner() {
        let owner = Owner { process: 42, namespace: 4_026_531_836, build: u32::MAX };
        let folder = owner.folder();
        assert_eq!(Owner::of(folder.file_name().and_then(|name| name.to_str()).expect("ASCII")), Some(owner));
        for other in
            ["tollgate", "tollgate-", "tollgate-42", "tollgate-42-1-x", "tollgate-42-1-2-3", "cilium"]
        {
            assert_eq!(Owner::of(other), None, "{other}");
        }
        assert!(Owner::here(1).is_ours() && !owner.is_ours());
    }
}
