//! Exit statuses like those of `env` and `timeout`.

/// Tollgate itself failed.
pub const OWN_FAILURE: u8 = 125;
/// The command of `run` cannot be executed.
pub const CANNOT_EXECUTE: u8 = 126;
/// The command of `run` does not exist.
pub const NOT_FOUND: u8 = 127;
