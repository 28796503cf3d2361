//! What the client and the daemon have in common: the socket's path, the time limit, and the form
//! of a reply.

use std::io::{self, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The environment variable with the path of the socket.
pub const SOCKET_VARIABLE: &str = "TOLLGATE_SOCKET";
/// The path of the socket if the variable is not set.
pub const DEFAULT_SOCKET: &str = "/run/tollgate/control.sock";
/// How long a client waits for a reply. The daemon handles requests one after the other, and a
/// request may have to store all baselines.
pub const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// The message about a reply that the client cannot parse.
pub const OTHER_VERSION: &str =
    "cannot parse the daemon's reply, which may be from another version of Tollgate";

/// The first line of every reply.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reply {
    /// The result of the request.
    Ok(Value),
    /// A sentence that says why the request failed.
    Error(String),
}

impl Reply {
    /// Parses a line that the daemon sent.
    pub fn parse(line: &str) -> serde_json::Result<Self> {
        serde_json::from_str(line)
    }
}

/// Writes a request, or a line of a reply, and the end of the line.
pub fn write_line(mut stream: &UnixStream, line: &str) -> io::Result<()> {
    stream.write_all(format!("{line}\n").as_bytes())
}
