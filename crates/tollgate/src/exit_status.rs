//! Exit statuses like those of `env` and `timeout`.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

/// Tollgate itself failed.
pub const OWN_FAILURE: u8 = 125;
/// The command of `run` cannot be executed.
pub const CANNOT_EXECUTE: u8 = 126;
/// The command of `run` does not exist.
pub const NOT_FOUND: u8 = 127;

/// The status of `run` after its command has ended: the command's own or, as in a shell, 128 + N if
/// signal N ended it.
pub fn of_command(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}
