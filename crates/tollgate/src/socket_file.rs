//! A UNIX socket with a path, at which a daemon listens.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{
    DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _,
};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use crate::format::shown_path;

/// A listening socket; its file exists as long as this value.
pub struct SocketFile {
    path: PathBuf,
    /// The device and the number of the file.
    identity: Option<(u64, u64)>,
    listener: UnixListener,
}

impl SocketFile {
    /// Listens at a path, for clients with these permissions. Fails with the message of `in_use` if
    /// another process listens there, but replaces a socket that a killed one left.
    pub fn listen(path: &Path, mode: u32, in_use: impl FnOnce() -> String) -> Result<Self> {
        let context = || format!("cannot listen at {}", shown_path(path));
        control::check_socket_path(path).with_context(context)?;
        if UnixStream::connect(path).is_ok() {
            bail!(in_use());
        }
        if let Some(folder) =
            path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.exists())
        {
            // Create only a folder directly in /run, because such folders disappear at a reboot.
            // Any other missing folder may be a typing error.
            ensure!(
                folder.parent() == Some(Path::new("/run")),
                "cannot listen at {}: there is no folder {}",
                shown_path(path),
                shown_path(folder)
            );
            match fs::DirBuilder::new().mode(0o755).create(folder) {
                // Another daemon has created the folder at the same moment.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                made => {
                    made.with_context(|| format!("cannot make the folder {}", shown_path(folder)))?
                }
            }
        }
        match fs::symlink_metadata(path) {
            Ok(there) if !there.file_type().is_socket() => {
                bail!("{} exists and is not a socket, so it was not replaced", shown_path(path))
            }
            Ok(_) => fs::remove_file(path).with_context(context)?,
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(context),
        }
        let listener = UnixListener::bind(path).with_context(context)?;
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).with_context(context)?;
        Ok(Self { path: path.to_owned(), identity: identity(path), listener })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // If the file was removed meanwhile, another process may listen there now.
        if identity(&self.path) == self.identity {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_of_another_process_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let listen = || SocketFile::listen(&path, 0o600, String::new).expect("it is free");
        let first = listen();
        fs::remove_file(&path).expect("it is ours");
        let second = listen();
        drop(first);
        assert!(UnixStream::connect(&path).is_ok());
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn path_that_is_too_long_is_explained() {
        let path = Path::new("/").join("x".repeat(107));
        let error = SocketFile::listen(&path, 0o600, String::new).err().expect("it is too long");
        let error = format!("{error:#}");
        assert!(error.ends_with("at most 107 bytes, and this one has 108"), "{error}");
    }
}
