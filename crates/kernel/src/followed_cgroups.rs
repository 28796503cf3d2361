//! Control groups whose tasks belong to a session (bpf/gate/cgroups.bpf.h).

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use zerocopy::{FromZeros as _, IntoBytes as _};

use crate::error::{ErrorContext, Result};
use crate::gate::{Gate, Lock};
use crate::session::Session;
use crate::wire::{self, awaited_cgroup, cgroup_key};

/// A control group that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CgroupId {
    /// The number of its hierarchy, as in /proc/PID/cgroup. Cgroup v2 has number 0.
    pub hierarchy: u32,
    /// The inode of its folder.
    pub inode: u64,
}

/// A control group that may be created later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AwaitedCgroup {
    /// By its path from the root of this hierarchy, or of any hierarchy.
    Path(Option<u32>, String),
    /// By its name, in any folder.
    Name(String),
}

impl AwaitedCgroup {
    /// `None` if the text is longer than the kernel side reads.
    fn key(&self) -> Option<awaited_cgroup> {
        let (hierarchy, text) = match self {
            Self::Path(hierarchy, path) => (hierarchy.unwrap_or(wire::ANY_HIERARCHY), path),
            Self::Name(name) => (wire::ANY_PARENT, name),
        };
        let mut key = awaited_cgroup::new_zeroed();
        key.hierarchy = hierarchy;
        // The kernel side reads a NUL after the text.
        let room = key.path.as_mut_bytes().get_mut(..text.len() + 1)?;
        room[..text.len()].copy_from_slice(text.as_bytes());
        Some(key)
    }
}

impl Gate {
    /// Prepares a session for [`Self::follow_cgroup`]. The gate must have
    /// [`wire::FOLLOW_CGROUPS`].
    pub fn begin_following(&self, session: &mut Session) -> Result<()> {
        self.note_owner(session)
    }

    /// From now on, tasks that enter this control group, or one that is created in it, become tasks
    /// of the session.
    pub fn follow_cgroup(&self, session: &Session, cgroup: CgroupId) -> Result<()> {
        let CgroupId { hierarchy, inode: id } = cgroup;
        let key = cgroup_key { id, hierarchy, unused: 0 };
        add_session(self.maps.get("followed_cgroups"), key.as_bytes(), session.index)
    }

    /// Follows this control group as soon as it is created. A text that is too long is left out.
    pub fn await_cgroup(&self, session: &Session, awaited: &AwaitedCgroup) -> Result<()> {
        let key = awaited.key();
        let awaited = self.maps.get("awaited_cgroups");
        key.map_or(Ok(()), |key| add_session(awaited, key.as_bytes(), session.index))
    }

    /// Ends what the session follows. The caller holds the lock.
    pub(crate) fn forget_cgroups(&self, session: u32) {
        for map in ["followed_cgroups", "awaited_cgroups"].map(|name| self.maps.get(name)) {
            let keys: Vec<_> = map.keys().collect();
            for key in keys {
                let before = sessions_of(map, &key);
                let after = before & !(1 << session);
                // A failure needs no handling: the entry is gone, or its session has ended.
                let _ = match after {
                    0 => map.delete(&key),
                    _ if after == before => Ok(()),
                    _ => map.update(&key, &after.to_ne_bytes(), MapFlags::ANY),
                };
            }
        }
    }
}

/// The sessions of an entry, as bits.
fn sessions_of(map: &MapHandle, key: &[u8]) -> u64 {
    let value = map.lookup(key, MapFlags::ANY).ok().flatten();
    let bytes = value.and_then(|value| value.try_into().ok());
    bytes.map_or(0, u64::from_ne_bytes)
}

fn add_session(map: &MapHandle, key: &[u8], session: u32) -> Result<()> {
    let _lock = Lock::take()?;
    let sessions = sessions_of(map, key) | 1 << session;
    map.update(key, &sessions.to_ne_bytes(), MapFlags::ANY).doing("following a control group")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_paths_are_left_out() {
        let key = |length| AwaitedCgroup::Name("x".repeat(length)).key();
        let longest = wire::AWAITED_PATH_LEN as usize - 1;
        assert!(key(longest).is_some() && key(longest + 1).is_none());
    }
}
