//! The files of selected programs (`--exe`), as the kernel side compares a program with them.

use std::collections::BTreeMap;

use identity::hash;
use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::error::{ErrorContext, Result};
use crate::gate::Gate;
use crate::wire;

/// The selected files of a session.
pub struct SelectedFiles<'a> {
    map: &'a MapHandle,
    session: u32,
}

/// The hash of a file's name, as the kernel side computes it.
fn name_hash(name: &[u8]) -> u64 {
    let mut buffer = [0; wire::GUARD_SELECTED_NAME_LEN as usize];
    let length = name.len().min(buffer.len() - 1);
    buffer[..length].copy_from_slice(&name[..length]);
    hash::buffer(&buffer)
}

impl<'a> SelectedFiles<'a> {
    /// Those of this session of the gate.
    pub fn new(gate: &'a Gate, session: u32) -> Self {
        Self { map: gate.maps.get("guard_selected_files"), session }
    }

    /// Makes these the only selected files: by the last parts of their paths, and by the keys of
    /// the files that are at the paths now.
    ///
    /// # Errors
    /// If there are too many.
    pub fn set(&self, names: &[&[u8]], files: &[wire::guard_program]) -> Result<()> {
        let by = |value, by| wire::guard_selected_file { value, by, session: self.session };
        let of_names = names.iter().map(|name| (by(name_hash(name), wire::GUARD_SELECTED_NAME), 0));
        let of_files =
            files.iter().map(|file| (by(file.inode, wire::GUARD_SELECTED_INODE), file.device));
        let entries: BTreeMap<_, u32> = of_names
            .chain(of_files)
            .map(|(key, device)| (key.as_bytes().to_vec(), device))
            .collect();
        // The new ones first, so that a file that stays is always selected.
        for (key, device) in &entries {
            self.map
                .update(key, &device.to_ne_bytes(), MapFlags::ANY)
                .doing("selecting a program (--exe)")?;
        }
        self.remove(|key| !entries.contains_key(key));
        Ok(())
    }

    fn remove(&self, is_removed: impl Fn(&[u8]) -> bool) {
        for key in self.map.keys() {
            let file = wire::guard_selected_file::read_from_bytes(&key);
            if file.is_ok_and(|file| file.session == self.session) && is_removed(&key) {
                // Another process may have removed it already.
                let _ = self.map.delete(&key);
            }
        }
    }

    /// Removes all of the session's.
    pub fn clear(&self) {
        self.remove(|_| true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_hashed_up_to_its_maximum_length() {
        let long = [b'x'; wire::GUARD_SELECTED_NAME_LEN as usize];
        assert_eq!(name_hash(&long), name_hash(&long[1..]));
        assert_ne!(name_hash(&long), name_hash(&long[2..]));
        assert_ne!(name_hash(b"sh"), name_hash(b"sh1"));
    }
}
