//! Sends a request, and receives the reply.

use std::io::{self, BufRead as _, BufReader, ErrorKind};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::protocol::{REPLY_TIMEOUT, write_line};

/// A request that was sent, and whose reply was not read yet.
pub struct PendingReply {
    reader: BufReader<UnixStream>,
    written: io::Result<()>,
}

/// Why no reply came. If both errors are `None`, the daemon closed the connection.
#[derive(Debug)]
pub struct NoReply {
    /// The error of reading the reply. Its kind is `WouldBlock` if the daemon did not reply within
    /// [`REPLY_TIMEOUT`].
    pub read: Option<io::Error>,
    /// The error of sending the request.
    pub written: Option<io::Error>,
}

impl PendingReply {
    /// Sends a request, which is one line of JSON. If the daemon refuses a connection before it
    /// reads the request, the write fails, but the reply with the reason can still be read.
    pub fn send(stream: UnixStream, request: &str) -> Self {
        let written = write_line(&stream, request);
        Self { reader: BufReader::new(stream), written }
    }

    /// Waits for the beginning of the reply, or for the end of the connection. Returns false if
    /// neither came within this time.
    pub fn begins_within(&mut self, limit: Duration) -> io::Result<bool> {
        self.reader.get_ref().set_read_timeout(Some(limit))?;
        loop {
            match self.reader.fill_buf() {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                _ => return Ok(true),
            }
        }
    }

    /// Reads the reply. Returns its first line and the lines that follow, which may come at any
    /// time.
    pub fn receive(mut self) -> Result<(String, impl Iterator<Item = String>), NoReply> {
        let mut line = String::new();
        let limit =
            |reader: &BufReader<UnixStream>, limit| reader.get_ref().set_read_timeout(limit);
        let read = limit(&self.reader, Some(REPLY_TIMEOUT))
            .and_then(|()| self.reader.read_line(&mut line))
            .and_then(|bytes| limit(&self.reader, None).map(|()| bytes));
        match read {
            Ok(1..) => Ok((line, self.reader.lines().map_while(Result::ok))),
            read => Err(NoReply { read: read.err(), written: self.written.err() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending() -> (PendingReply, UnixStream) {
        let (near, far) = UnixStream::pair().expect("a pair of sockets");
        (PendingReply::send(near, "{}"), far)
    }

    #[test]
    fn reply_and_further_lines_are_separate() {
        let (mut pending, far) = pending();
        assert!(!pending.begins_within(Duration::from_millis(1)).expect("a socket"));
        for line in ["first", "second", "third"] {
            write_line(&far, line).expect("it reads");
        }
        assert!(pending.begins_within(Duration::from_secs(10)).expect("a socket"));
        drop(far);
        let (line, lines) = pending.receive().expect("a line");
        assert_eq!(
            (line.as_str(), lines.collect::<Vec<_>>().join(" ")),
            ("first\n", "second third".into())
        );
    }

    #[test]
    fn a_closed_connection_is_no_reply() {
        let (mut pending, far) = pending();
        drop(far);
        assert!(pending.begins_within(Duration::from_secs(10)).expect("a socket"));
        let none = pending.receive().map(|(line, _)| line).expect_err("it was closed");
        assert!(none.written.is_none(), "{none:?}");
    }
}
