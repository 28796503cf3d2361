//! A request of the daemon's control socket: a line of JSON each way (crates/tollgate/src/daemon/control.rs).

use std::env;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::Value;

use crate::Error;

/// As `tollgate daemon --socket` has them.
const VARIABLE: &str = "TOLLGATE_SOCKET";
const USUAL: &str = "/run/tollgate/control.sock";
/// It does one thing after the other.
const ANSWER: Duration = Duration::from_secs(60);

pub fn not_understood(answer: &Value) -> Error {
    Error::Refused(format!("the daemon is of another version: its answer is not understood: {answer}"))
}

pub fn ask(request: &Value) -> Result<Value, Error> {
    let path = env::var(VARIABLE).unwrap_or_else(|_| USUAL.into());
    let line = exchange(&path, request).map_err(|error| match error.kind() {
        // socket(7): how a timeout is told.
        io::ErrorKind::WouldBlock => Error::Unreachable(io::Error::from_raw_os_error(libc::ETIMEDOUT), path),
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
    stream.set_read_timeout(Some(ANSWER))?;
    stream.set_write_timeout(Some(ANSWER))?;
    // Who is refused unheard is told so nevertheless.
    let written = stream.write_all(format!("{request}\n").as_bytes());
    let mut line = String::new();
    if BufReader::new(stream).read_line(&mut line)? == 0 {
        written?;
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line)
}
