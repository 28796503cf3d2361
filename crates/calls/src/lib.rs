//! Names, arguments and errors of system calls on x86. Pure, no I/O.
//!
//! A call is identified by its ABI and its number: `int 0x80` and x32 calls have other numbers than
//! 64-bit ones, so every function here takes both. The tables are those of Linux 6.18. A number
//! that is not in the tables is printed as `syscall_N` and has no arguments.

#![warn(missing_docs)]
#![forbid(unsafe_code)]

mod abi;
mod arguments;
mod errno;
mod io_uring;
mod name;
mod parameters;
mod waits;

pub use abi::Abi;
pub use arguments::{AT_FDCWD, ArgumentKind, argument_count, arguments, fd_mask, path_mask};
pub use errno::{display_errno, errno_name};
pub use io_uring::display_operation;
pub use name::{LIMIT, all, display_name, name, never_returns, number};
pub use parameters::{CallParameter, parameters};
pub use waits::is_wait;
