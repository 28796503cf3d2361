//! Sends requests to the daemon, for commands that the daemon executes.

use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use control::{OTHER_VERSION, PendingReply, REPLY_TIMEOUT, Reply};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::format::shown_path;
use crate::options::SocketOption;
use crate::output::log_message;

/// After this time, the client prints that it is waiting.
const PROGRESS_NOTICE: Duration = Duration::from_secs(3);

/// Connects to the daemon, if one listens at the path.
pub fn connect(path: &Path) -> Result<Option<UnixStream>> {
    match control::connect(path) {
        Ok(stream) => Ok(Some(stream)),
        Err(error)
            if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) =>
        {
            Ok(None)
        }
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            bail!("only root may control the daemon that listens at {}", shown_path(path))
        }
        Err(error) => {
            Err(error).with_context(|| format!("cannot reach the daemon at {}", shown_path(path)))
        }
    }
}

/// Sends a request. Returns the daemon's reply and the lines after it.
pub fn send_request<R: Serialize>(
    stream: UnixStream,
    request: &R,
) -> Result<(Value, impl Iterator<Item = String> + use<R>)> {
    let mut pending = PendingReply::send(stream, &serde_json::to_string(request)?);
    if !pending.begins_within(PROGRESS_NOTICE)? {
        log_message("waiting for the daemon's reply");
    }
    let (reply, lines) = pending.receive().map_err(|none| match (none.read, none.written) {
        (Some(error), _) if error.kind() == ErrorKind::WouldBlock => {
            let seconds = REPLY_TIMEOUT.as_secs();
            anyhow!("the daemon has not replied for {seconds} s: is it stopped?")
        }
        (_, Some(error)) => anyhow!("the daemon closed the connection: {error}"),
        (_, None) => anyhow!("the daemon closed the connection"),
    })?;
    match Reply::parse(&reply)? {
        Reply::Ok(value) => Ok((value, lines)),
        Reply::Error(sentence) => bail!(sentence),
    }
}

/// Connects to the daemon, for commands that only a daemon can execute.
pub fn connect_required(path: &Path) -> Result<UnixStream> {
    connect(path)?.with_context(|| {
        format!(
            "no daemon is listening at {}: start one (see `tollgate daemon --help`), or give its \
            --socket",
            shown_path(path)
        )
    })
}

/// Sends a request to the daemon, which must be running, and returns its reply.
pub fn request_one<T: DeserializeOwned>(
    socket: &SocketOption,
    request: &impl Serialize,
) -> Result<T> {
    let (value, _) = send_request(connect_required(&socket.path)?, request)?;
    serde_json::from_value(value).context(OTHER_VERSION)
}
