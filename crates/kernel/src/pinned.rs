//! The table of holds is in the BPF file system, so that anybody can let go whom a guard holds. It outlives the guard's
//! process, for the case that its warden is killed as well.
//! No link is pinned: the gate itself is gone with its processes.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use libbpf_rs::{MapCore as _, MapHandle};

use crate::error::{Doing, Result};
use crate::gate::Gate;
use crate::guarded::{end_guard, switch_off};
use crate::mapping::Mapping;
use crate::{process, wire};

const BPF_FS: &str = "/sys/fs/bpf";
/// include/uapi/linux/magic.h
const BPF_FS_MAGIC: libc::c_long = 0xcafe_4a11;
/// Before the guard's process number.
const PREFIX: &str = "tollgate-";
/// Maps as they are called there, and in the gate.
const TABLES: [(&str, &str); 2] = [("threads", ".bss.threads"), ("sessions", "sessions")];

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

fn folder_of(owner: u32) -> PathBuf {
    Path::new(BPF_FS).join(format!("{PREFIX}{owner}"))
}

fn remove(folder: &Path) {
    for (name, _) in TABLES {
        let _ = fs::remove_file(folder.join(name));
    }
    let _ = fs::remove_dir(folder);
}

impl Gate {
    pub fn pin_holds(&self) -> Result<Pin> {
        if !is_mounted() {
            mount().doing("mounting the BPF file system")?;
        }
        release_pinned()?;
        let folder = folder_of(std::process::id());
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

/// Guards that may hold, or held.
#[derive(Default)]
pub struct Pinned {
    /// Processes that were let go whose guard was killed.
    pub released: usize,
    /// Processes of guards that still run.
    pub owners: Vec<u32>,
}

/// The guard of this process holds nobody any more, and whom it held runs again: so many processes. None: it held
/// nobody any more before.
pub fn switch_off_pinned(owner: u32) -> Result<Option<usize>> {
    let Some((threads, sessions)) = open(&folder_of(owner))? else { return Ok(None) };
    let switched =
        sessions_of(&sessions, owner).filter_map(|session| switch_off(&threads, &sessions, session));
    Ok(switched.reduce(|all, released| all + released))
}

/// Lets go whom guards held that are no more.
pub fn release_pinned() -> Result<Pinned> {
    let mut found = Pinned::default();
    if !is_mounted() {
        return Ok(found);
    }
    for entry in fs::read_dir(BPF_FS).doing("reading the BPF file system")?.flatten() {
        let owner = entry.file_name().as_bytes().strip_prefix(PREFIX.as_bytes()).map(<[u8]>::to_vec);
        let owner = owner.and_then(|number| String::from_utf8(number).ok()?.parse().ok());
        match owner {
            Some(owner) if process::exists(owner) => found.owners.push(owner),
            Some(owner) => {
                // Another version's tables, which have other sizes, are of no use to anybody any more.
                found.released += release(&entry.path(), owner).unwrap_or(0);
                remove(&entry.path());
            }
            None => {}
        }
    }
    Ok(found)
}

fn release(folder: &Path, owner: u32) -> Result<usize> {
    let Some((threads, sessions)) = open(folder)? else { return Ok(0) };
    Ok(sessions_of(&sessions, owner).map(|session| end_guard(&threads, &sessions, session)).sum())
}

type Tables = (Mapping<wire::thread_state>, Mapping<wire::session>);

/// None: who was killed while it pinned them held nobody yet.
fn open(folder: &Path) -> Result<Option<Tables>> {
    let open = |(name, _): (&str, &str)| MapHandle::from_pinned_path(folder.join(name));
    let (Ok(threads), Ok(sessions)) = (open(TABLES[0]), open(TABLES[1])) else { return Ok(None) };
    Ok(Some((Mapping::new(&threads, wire::THREADS)?, Mapping::new(&sessions, wire::SESSIONS)?)))
}

fn sessions_of(sessions: &Mapping<wire::session>, owner: u32) -> impl Iterator<Item = u32> {
    (1..wire::SESSIONS).filter(move |session| sessions.read(*session).owner_pid == owner)
}
