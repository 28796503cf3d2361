//! The files whose programs are exempt, each with the users who may execute it for that.

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::error::{ErrorContext, Result};
use crate::gate::Gate;
use crate::wire;

/// The exempt files of a session.
pub struct ExemptFiles<'a> {
    map: &'a MapHandle,
    session: u32,
}

/// The number by which the gate knows a user (`uid` in the initial user namespace).
pub fn executor(uid: u32) -> u32 {
    // 2^32 - 1 is no user.
    uid.wrapping_add(wire::GUARD_EXECUTOR_ROOT)
}

impl<'a> ExemptFiles<'a> {
    /// Those of this session of the gate.
    pub fn new(gate: &'a Gate, session: u32) -> Self {
        Self { map: gate.maps.get("guard_exempt_files"), session }
    }

    fn remove(&self, is_removed: impl Fn(&wire::guard_exempt_file) -> bool) {
        for bytes in self.map.keys() {
            let file = wire::guard_exempt_file::read_from_bytes(&bytes);
            if file.is_ok_and(|file| file.session == self.session && is_removed(&file)) {
                // Another process may have removed it already.
                let _ = self.map.delete(&bytes);
            }
        }
    }

    /// From now on, the file of `program` is exempt if one of these users has executed it. Without
    /// users, it is not exempt: its number may be that of an exempt file that was deleted.
    pub fn set(&self, program: &wire::guard_program, executors: &[u32]) -> Result<()> {
        let wire::guard_program { inode, device, .. } = *program;
        self.remove(|file| {
            (file.inode, file.device) == (inode, device) && !executors.contains(&file.executor)
        });
        executors.iter().try_for_each(|executor| {
            let (session, executor) = (self.session, *executor);
            let file = wire::guard_exempt_file { inode, device, session, executor, unused: 0 };
            self.map
                .update(file.as_bytes(), &1u32.to_ne_bytes(), MapFlags::ANY)
                .doing("exempting a program")
        })
    }

    /// Removes all of the session's.
    pub fn clear(&self) {
        self.remove(|_| true);
    }
}
