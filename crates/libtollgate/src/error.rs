//! Errors of requests.

use std::fmt::{self, Display};
use std::io;

/// Why a request failed.
#[derive(Debug)]
pub enum Error {
    /// No daemon replied at this path: none listens there, permission is denied, or the connection
    /// failed or timed out.
    Unreachable(io::Error, String),
    /// No Tollgate gives in-band records at this socket, for one of these reasons.
    NoRecords(io::Error, String),
    /// The daemon, or the library itself, rejected the request, with this reason.
    Refused(String),
    /// A system call of the plugin interface failed.
    Kernel(io::Error),
}

impl Display for Error {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(error, path) => {
                write!(to, "cannot send a request to the daemon at {path}: {error}")
            }
            Self::NoRecords(error, name) => write!(
                to,
                "no Tollgate gives in-band records at {name}: {error} (if this is the socket of a \
                run, the run may have ended)"
            ),
            Self::Refused(sentence) => to.write_str(sentence),
            Self::Kernel(error) => write!(to, "the kernel refused the request: {error}"),
        }
    }
}

impl std::error::Error for Error {}
