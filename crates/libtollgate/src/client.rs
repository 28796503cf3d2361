//! Sends a request to the daemon's control socket: one line of JSON in each direction
//! (crates/tollgate/src/daemon/control.rs).

use std::env;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::Value;

use crate::Error;

/// The variable and the default of `tollgate daemon --socket`.
const SOCKET_VARIABLE: &str = "TOLLGATE_SOCKET";
const DEFAULT_SOCKET: &str = "/run/tollgate/control.sock";
/// Long, because the daemon does one thing after another and an earlier request can take long.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

pub fn not_understood(answer: &Value) -> Error {
    Error::Refused(format!(
        "cannot parse the daemon's answer, which may be from another version of Tollgate: {answer}"
    ))
}

pub fn ask(request: &Value) -> Result<Value, Error> {
    let path = env::var(SOCKET_VARIABLE).unwrap_or_else(|_| DEFAULT_SOCKET.into());
    let line = exchange(&path, request).map_err(|error| match error.kind() {
        // A timeout of the socket is reported as EAGAIN (socket(7), SO_RCVTIMEO).
        io::ErrorKind::WouldBlock => {
            Error::Unreachable(io::Error::from_raw_os_error(libc::ETIMEDOUT), path)
        }
        _ => Error::Unreachable(error, path),
    })?;
    let answer: Value = serde_json::from_str(&line).unwrap_or_default();
    match (answer.get("ok"), answer.get("error").and_then(Value::as_str)) {
        (Some(value), _) => Ok(value.clone()),
        (None, Some(sentence)) => Err(Error::Refused(sentence.into())),
        (None, None) => Err(not_understood(&answer)),
    }
}

fn exchange(path: &str, request: &Value) -> io::Result<String> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
    stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
    // The daemon may refuse a connection before it reads the request: the write fails, but the
    // reply with the reason can still be read.
    let written = stream.write_all(format!("{request}\n").as_bytes());
    let mut line = String::new();
    if BufReader::new(stream).read_line(&mut line)? == 0 {
        written?;
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line)
}
