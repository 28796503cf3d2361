//! Checks the folder of a store before it is used.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Once;

use anyhow::{Result, bail};
use kernel::process::effective_user;

use crate::format::printable;
use crate::output::print_message;

/// Fails if the store is not a folder. Warns, once in a process, if another user can change it. A
/// folder that does not exist is accepted.
pub fn check(folder: &Path) -> Result<()> {
    static WARNED: Once = Once::new();
    let path = printable(&folder.to_string_lossy());
    let metadata = match folder.metadata() {
        Ok(metadata) if metadata.is_dir() => metadata,
        Err(error) if error.kind() != io::ErrorKind::NotADirectory => return Ok(()),
        _ => bail!("the store {path} is not a folder"),
    };
    if let Some(who) = others_with_access(&metadata, effective_user()) {
        WARNED.call_once(|| {
            // If the terminal is gone, no error can be printed either.
            let _ = print_message(&format!(
                "tollgate: warning: {who} can change the store {path}, and so decide which calls \
                are normal"
            ));
        });
    }
    Ok(())
}

/// The users besides root and `user` who can change the folder.
fn others_with_access(folder: &Metadata, user: u32) -> Option<String> {
    let (owner, group, mode) = (folder.uid(), folder.gid(), folder.mode());
    // A user's own group has the user's number and no other member.
    let is_group_trusted = mode & 0o020 == 0 || group == owner || group == 0;
    if mode & 0o002 != 0 {
        Some("every user".into())
    } else if ![0, user].contains(&owner) {
        Some(format!("the user with the number {owner}"))
    } else if !is_group_trusted {
        Some(format!("the group with the number {group}"))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_store_that_others_can_change_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let (own, other) = (effective_user(), effective_user() + 1);
        let found = |mode: u32, user| {
            fs::set_permissions(folder.path(), Permissions::from_mode(mode)).expect("it is ours");
            others_with_access(&folder.path().metadata().expect("it is there"), user)
        };
        assert_eq!(found(0o700, own), None);
        assert_eq!(found(0o755, own), None);
        assert_eq!(found(0o777, own).as_deref(), Some("every user"));
        let is_of_root = own == 0;
        assert_eq!(found(0o700, other).is_none(), is_of_root);
    }

    #[test]
    fn a_file_is_no_store() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        fs::write(&file, "").expect("written");
        for store in [file.clone(), file.join("store")] {
            let refusal = check(&store).expect_err("not a folder").to_string();
            assert_eq!(refusal, format!("the store {} is not a folder", store.display()));
        }
        assert!(check(&folder.path().join("none")).is_ok());
    }
}
