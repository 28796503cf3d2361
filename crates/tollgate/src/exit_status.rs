//! Exit statuses like those of `env` and `timeout`.

pub const OWN_FAILURE: u8 = 125;
pub const CANNOT_EXECUTE: u8 = 126;
pub const NOT_FOUND: u8 = 127;
