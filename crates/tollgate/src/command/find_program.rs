//! Finds the program of a command, and says why it cannot be executed.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;

use crate::exit_status::{CANNOT_EXECUTE, NOT_FOUND};
use crate::format::command_line;
use crate::output::print_message;

/// Why the command could not be executed.
pub enum ExecFailure {
    NotFound,
    CannotExecute(std::io::Error),
}

/// What an error of execve means.
pub fn refusal(error: &std::io::Error) -> ExecFailure {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR) => ExecFailure::NotFound,
        errno => ExecFailure::CannotExecute(std::io::Error::from_raw_os_error(
            errno.unwrap_or(libc::EIO),
        )),
    }
}

/// Like `env`: 127 if the command does not exist, and 126 if it cannot be executed.
pub fn refuse(command: &OsString, refusal: ExecFailure) -> Result<ExitCode> {
    let name = command_line(&[command.to_string_lossy().into_owned()]);
    let (message, code) = match refusal {
        ExecFailure::NotFound if Path::new(command).components().count() > 1 => (
            format!(
                "tollgate: cannot run {name}: there is no such file, or its interpreter is missing"
            ),
            NOT_FOUND,
        ),
        ExecFailure::NotFound => {
            (format!("tollgate: cannot run {name}: no such command in PATH"), NOT_FOUND)
        }
        ExecFailure::CannotExecute(error) => {
            (format!("tollgate: cannot run {name}: {error}"), CANNOT_EXECUTE)
        }
    };
    let _ = print_message(&message);
    Ok(ExitCode::from(code))
}

/// Looks the command up like execvp, so that the command itself makes a single execve.
pub fn find_program(name: &OsString) -> Result<PathBuf, ExecFailure> {
    if name.is_empty() {
        return Err(ExecFailure::NotFound);
    }
    if name.as_bytes().contains(&b'/') {
        return match executable(Path::new(name)) {
            Ok(true) => Ok(name.into()),
            Ok(false) => {
                Err(ExecFailure::CannotExecute(std::io::Error::from_raw_os_error(libc::EACCES)))
            }
            Err(error) => Err(refusal(&error)),
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let mut refused = ExecFailure::NotFound;
    for folder in std::env::split_paths(&path) {
        let candidate = folder.join(name);
        match executable(&candidate) {
            Ok(true) => return Ok(candidate),
            Ok(false) => {
                refused =
                    ExecFailure::CannotExecute(std::io::Error::from_raw_os_error(libc::EACCES))
            }
            Err(_) => {}
        }
    }
    Err(refused)
}

/// Whether an existing file may be executed by any user.
fn executable(path: &Path) -> std::io::Result<bool> {
    use std::os::unix::fs::PermissionsExt as _;
    let metadata = path.metadata()?;
    Ok(metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}
