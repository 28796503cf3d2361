//! Sends requests to the daemon.

use std::env;
use std::io;

use control::{
    DEFAULT_SOCKET, NoReply, OTHER_VERSION, PendingReply, REPLY_TIMEOUT, Reply, SOCKET_VARIABLE,
};
use serde_json::Value;

use crate::error::Error;

/// The error for a reply that this version cannot parse.
pub fn unexpected_reply(reply: &Value) -> Error {
    Error::Refused(format!("{OTHER_VERSION}: {reply}"))
}

/// Sends a request, and waits for the daemon's reply to it.
pub fn request(request: &Value) -> Result<Value, Error> {
    let path = env::var(SOCKET_VARIABLE).unwrap_or_else(|_| DEFAULT_SOCKET.into());
    let line = exchange(&path, request).map_err(|error| match error.kind() {
        // A timeout of the socket is reported as EAGAIN (socket(7), SO_RCVTIMEO).
        io::ErrorKind::WouldBlock => {
            Error::Unreachable(io::Error::from_raw_os_error(libc::ETIMEDOUT), path)
        }
        _ => Error::Unreachable(error, path),
    })?;
    match Reply::parse(&line) {
        Ok(Reply::Ok(value)) => Ok(value),
        Ok(Reply::Error(sentence)) => Err(Error::Refused(sentence)),
        Err(_) => Err(unexpected_reply(&serde_json::from_str(&line).unwrap_or_default())),
    }
}

fn exchange(path: &str, request: &Value) -> io::Result<String> {
    let stream = control::connect(path)?;
    stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
    let reply = PendingReply::send(stream, &request.to_string()).receive();
    reply.map(|(line, _)| line).map_err(|NoReply { read, written }| {
        read.or(written).unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into())
    })
}
