//! Serves the control socket.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use control::{Reply, Response, write_line};
use serde_json::Value;

use crate::extension::NOT_UNDERSTOOD;
use crate::format::shown_path;
use crate::limited_input::MAX_INPUT_BYTES;
use crate::socket_file::SocketFile;

/// Only root sends requests; the largest one imports a document.
const MAX_REQUEST_LEN: u64 = MAX_INPUT_BYTES;
/// A client that connects and sends nothing is disconnected after this time.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of simultaneous connections. Each connection is an open file, and the daemon
/// needs other files for itself.
const MAX_CONNECTIONS: usize = 400;
/// The number of idle threads that wait for connections. Starting a thread takes longer than most
/// replies, so finished threads stay to serve later connections.
const WAITING_THREADS: usize = 2;
/// How often to check whether a follower has disconnected, and how long to wait after a failed
/// accept.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A request, and the channel for its reply.
pub struct PendingRequest {
    /// The requesting process.
    pub process: u32,
    pub request: Value,
    pub reply: Sender<Result<Response>>,
}

/// A listening control socket; its file exists as long as this value.
pub struct ControlSocket(SocketFile);

impl ControlSocket {
    /// Listens at a path.
    pub fn listen(path: &Path) -> Result<Self> {
        let in_use = || {
            format!(
                "a daemon is already listening at {}: `tollgate guard status`, `service report` or \
                `plugin list` shows its state",
                shown_path(path)
            )
        };
        Ok(Self(SocketFile::listen(path, 0o600, in_use)?))
    }

    /// Starts to serve connections. Requests come through the channel. The stream is readable when
    /// there is a request.
    pub fn serve(&self) -> Result<(Receiver<PendingRequest>, UnixStream)> {
        let (to_daemon, requests) = channel();
        let (wake, awake) = UnixStream::pair()?;
        awake.set_nonblocking(true)?;
        let listener = self.0.listener().try_clone()?;
        let counts = Mutex::default();
        let pool = Arc::new(ConnectionPool { listener, to_daemon, wake, counts });
        ensure!(pool.ensure_waiting_thread(), "cannot start a thread for the control socket");
        Ok((requests, awake))
    }
}

/// The shared state of the threads that serve connections.
struct ConnectionPool {
    listener: UnixListener,
    to_daemon: Sender<PendingRequest>,
    wake: UnixStream,
    counts: Mutex<ThreadCounts>,
}

/// Numbers of threads.
#[derive(Default)]
struct ThreadCounts {
    waiting: usize,
    serving: usize,
}

impl ConnectionPool {
    fn counts(&self) -> MutexGuard<'_, ThreadCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ensures that a thread waits for connections. If no thread can be started, the serving
    /// threads wait for connections again when they have finished.
    fn ensure_waiting_thread(self: &Arc<Self>) -> bool {
        let mut counts = self.counts();
        if counts.waiting == 0 {
            let pool = Arc::clone(self);
            let started = thread::Builder::new().spawn(move || pool.serve_connections());
            counts.waiting += usize::from(started.is_ok());
        }
        counts.waiting > 0
    }

    /// Counts this waiting thread as serving; returns the number of serving threads.
    fn start_serving(&self) -> usize {
        let mut counts = self.counts();
        counts.waiting -= 1;
        counts.serving += 1;
        counts.serving
    }

    fn serve_connections(self: &Arc<Self>) {
        loop {
            let Ok((stream, _)) = self.listener.accept() else {
                // `accept` may succeed later.
                thread::sleep(POLL_INTERVAL);
                continue;
            };
            if self.start_serving() > MAX_CONNECTIONS {
                let _ = write_error(
                    &stream,
                    &anyhow!("the daemon is already serving {MAX_CONNECTIONS} connections"),
                );
            } else {
                self.ensure_waiting_thread();
                // If the client disconnects before the reply, no process is left to receive the
                // error.
                let _ = serve_one(&stream, &self.to_daemon, &self.wake);
            }
            drop(stream);
            let mut counts = self.counts();
            counts.serving -= 1;
            if counts.waiting >= WAITING_THREADS {
                return;
            }
            counts.waiting += 1;
        }
    }
}

fn write_reply(stream: &UnixStream, reply: &Reply) -> Result<()> {
    Ok(write_line(stream, &serde_json::to_string(reply)?)?)
}

fn write_error(stream: &UnixStream, error: &anyhow::Error) -> Result<()> {
    write_reply(stream, &Reply::Error(format!("{error:#}")))
}

/// Reads a client's request, passes it on to the daemon, and waits for the reply. Refuses a client
/// that is not root.
fn forward(
    stream: &UnixStream,
    to_daemon: &Sender<PendingRequest>,
    mut wake: &UnixStream,
) -> Result<Response> {
    let process = kernel::process::root_peer(stream.as_raw_fd())
        .context("only root may control the daemon")?;
    let mut line = String::new();
    BufReader::new(stream.take(MAX_REQUEST_LEN))
        .read_line(&mut line)
        .context("this is not a request")?;
    let request = serde_json::from_str(&line).context(NOT_UNDERSTOOD)?;
    let (reply, from_daemon) = channel();
    const ENDING: &str = "the daemon is ending";
    to_daemon.send(PendingRequest { process, request, reply }).ok().context(ENDING)?;
    wake.write_all(&[0])?;
    from_daemon.recv().ok().context(ENDING)?
}

/// Serves one connection: one request, its reply, and the lines that follow it.
fn serve_one(
    stream: &UnixStream,
    to_daemon: &Sender<PendingRequest>,
    wake: &UnixStream,
) -> Result<()> {
    stream.set_read_timeout(Some(READ_TIMEOUT))?;
    let (lines, follower) = match forward(stream, to_daemon, wake) {
        Ok(Response::Value(value)) => {
            return write_reply(stream, &Reply::Ok(value));
        }
        Err(error) => return write_error(stream, &error),
        Ok(Response::Lines(lines, follower)) => (lines, follower),
    };
    write_reply(stream, &Reply::Ok(Value::Null))?;
    lines.iter().try_for_each(|line| write_line(stream, line))?;
    let Some(follower) = follower else { return Ok(()) };
    while !kernel::process::has_hung_up(stream.as_raw_fd()) {
        match follower.next_line(POLL_INTERVAL) {
            Ok(line) => write_line(stream, &line)?,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    Ok(())
}
