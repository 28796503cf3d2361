//! Gives processes the memory of their in-band records. A process connects to a socket and gets its
//! own memory and nothing else.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, PipeWriter, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use control::{Challenge, IN_BAND_REQUEST_LEN, IN_BAND_SOCKET, IN_BAND_VARIABLE, InBandRequest};
use kernel::gate::Gate;
use kernel::lens::in_band::{InBandClient, InBandTable, Unavailable};
use kernel::process;
use kernel::socket_messages::{receive_with_sender, request_senders, send_with_descriptor};
use kernel::symbols::KernelSymbols;

use super::kernel_source::KernelLines;
use crate::format::shown_path;
use crate::socket_file::SocketFile;

/// How long a process that has connected may take to send its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How many connections wait for their requests: of all processes, and of one. Beyond that, the
/// oldest one is closed. The libraries send the request as soon as Tollgate has replied to the
/// connection, so an old one is idle.
const MAX_WAITING: usize = 512;
const MAX_WAITING_OF_PROCESS: usize = 64;
/// Threads that find the names and lines of sites, which may take seconds.
const MAX_TEXT_THREADS: usize = 64;
/// Without requests for this long, the table is tended, which takes the kernel some 20 ms. Threads
/// that begin together send their requests faster than this.
const TEND_DELAY: Duration = Duration::from_millis(50);
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

fn random() -> io::Result<Challenge> {
    let mut bytes = Challenge::default();
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Where processes request their records.
pub enum InBandSocket {
    /// A command finds the name in its environment.
    OfCommand {
        name: String,
        listener: UnixListener,
    },
    OfDaemon(SocketFile),
}

impl InBandSocket {
    /// Listens for the command of this process. The name is in the abstract namespace, so it works
    /// in a chroot and leaves no file behind. Nobody can guess it, and so take it before.
    pub fn of_command() -> Result<Self> {
        let number = u64::from_ne_bytes(random().context("cannot read /dev/urandom")?);
        let name = format!("@tollgate-in-band-{number:016x}");
        let address = SocketAddr::from_abstract_name(name.trim_start_matches('@'));
        let listener = address.and_then(|address| UnixListener::bind_addr(&address));
        let listener = listener.with_context(|| format!("cannot listen at {name}"))?;
        Ok(Self::OfCommand { name, listener })
    }

    /// The variable that programs need to find it, with its value.
    pub fn variable(&self) -> (OsString, OsString) {
        let value = match self {
            Self::OfCommand { name, .. } => name.into(),
            Self::OfDaemon(file) => file.path().into(),
        };
        (IN_BAND_VARIABLE.into(), value)
    }

    /// Listens for all users, beside a daemon's control socket.
    pub fn beside(control: &Path) -> Result<Self> {
        let path = control.with_file_name(IN_BAND_SOCKET);
        let in_use = || format!("another daemon gives in-band records at {}", shown_path(&path));
        Ok(Self::OfDaemon(SocketFile::listen(&path, 0o666, in_use)?))
    }

    fn listener(&self) -> &UnixListener {
        match self {
            Self::OfCommand { listener, .. } => listener,
            Self::OfDaemon(file) => file.listener(),
        }
    }
}

/// What requests are about.
struct Served {
    table: Mutex<InBandTable>,
    lines: KernelLines,
    text_threads: AtomicUsize,
}

impl Served {
    fn table(&self) -> MutexGuard<'_, InBandTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// If it fails, it is done when the next request needs it.
    fn tend(&self) {
        let _ = self.table().tend();
    }
}

/// The thread that serves the socket. It ends with this value.
pub struct InBandServer {
    /// Where a daemon's programs find it.
    pub path: Option<PathBuf>,
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl InBandServer {
    /// Serves the processes of a session.
    pub fn start(socket: InBandSocket, gate: &Gate, session: u32) -> Result<Self> {
        let table = Mutex::new(InBandTable::new(gate, session)?);
        let served = Arc::new(Served {
            table,
            lines: KernelLines::default(),
            text_threads: AtomicUsize::new(0),
        });
        let path = match &socket {
            InBandSocket::OfCommand { .. } => None,
            InBandSocket::OfDaemon(file) => Some(file.path().to_owned()),
        };
        let (stopped, stop) = io::pipe().context("cannot make a pipe")?;
        let thread = std::thread::Builder::new().name("in-band".into());
        let thread = thread.spawn(move || serve(socket.listener(), stopped.as_raw_fd(), &served));
        let thread = Some(thread.context("cannot start the thread for in-band records")?);
        Ok(Self { path, stop: Some(stop), thread })
    }
}

impl Drop for InBandServer {
    fn drop(&mut self) {
        // The thread sees the end of the pipe.
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A connection whose request has not come yet.
struct Waiting {
    stream: UnixStream,
    client: InBandClient,
    challenge: Challenge,
    since: Instant,
}

/// One thread serves all connections, so that idle ones cost nothing.
fn serve(listener: &UnixListener, stopped: i32, served: &Arc<Served>) {
    let mut waiting: Vec<Waiting> = Vec::new();
    served.tend();
    let mut is_tended = true;
    loop {
        let mut descriptors = vec![stopped, listener.as_raw_fd()];
        descriptors.extend(waiting.iter().map(|connection| connection.stream.as_raw_fd()));
        let left = |oldest: &Waiting| REQUEST_TIMEOUT.saturating_sub(oldest.since.elapsed());
        let limit = waiting.first().map_or(Duration::MAX, left);
        let limit = if is_tended { limit } else { limit.min(TEND_DELAY) };
        let ready = process::wait_for_any(&descriptors, limit);
        if ready[0] {
            served.table().close();
            return;
        }
        let mut kept = Vec::new();
        for (connection, has_request) in waiting.drain(..).zip(&ready[2..]) {
            if *has_request {
                // If the reply cannot be sent, the library in the process reports the error.
                let _ = reply(connection, served);
            } else if connection.since.elapsed() < REQUEST_TIMEOUT {
                kept.push(connection);
            }
        }
        waiting = kept;
        if ready[1] {
            match listener.accept() {
                Ok((stream, _)) => admit(stream, served, &mut waiting),
                Err(_) => std::thread::sleep(RETRY_INTERVAL),
            }
        }
        let is_idle = !ready.contains(&true);
        if is_idle && !is_tended {
            served.tend();
        }
        is_tended = is_idle;
    }
}

/// Sends the challenge over a new connection, or an error to a process that is not gated.
fn admit(stream: UnixStream, served: &Served, waiting: &mut Vec<Waiting>) {
    if stream.set_nonblocking(true).is_err() || request_senders(&stream).is_err() {
        return;
    }
    let process = process::peer(stream.as_raw_fd()).ok_or(Unavailable::NotGated);
    let client = match process.and_then(|process| served.table().client(process)) {
        Ok(client) => client,
        Err(reason) => return refuse(&stream, reason),
    };
    let Ok(challenge) = random() else { return refuse(&stream, Unavailable::Failed) };
    let greeting = [0_u32.to_ne_bytes().as_slice(), &challenge].concat();
    if (&stream).write_all(&greeting).is_err() {
        return;
    }
    let is_its = |connection: &Waiting| connection.client.pid() == client.pid();
    let oldest = match waiting.iter().filter(|connection| is_its(connection)).count() {
        MAX_WAITING_OF_PROCESS.. => waiting.iter().position(is_its),
        _ => (waiting.len() >= MAX_WAITING).then_some(0),
    };
    if let Some(oldest) = oldest {
        waiting.remove(oldest);
    }
    waiting.push(Waiting { stream, client, challenge, since: Instant::now() });
}

fn errno_of(reason: Unavailable) -> i32 {
    match reason {
        Unavailable::NotGated => libc::ESRCH,
        Unavailable::OtherSession => libc::EBUSY,
        Unavailable::TooManyProcesses => libc::EUSERS,
        Unavailable::TooManyThreads => libc::ENOSPC,
        Unavailable::Failed => libc::EIO,
    }
}

fn refuse(mut stream: &UnixStream, reason: Unavailable) {
    // The library in the process reports that there was no reply.
    let _ = stream.write_all(&errno_of(reason).to_ne_bytes());
}

/// Serves a connection on which a request has come. The first word of the reply is an errno, or 0.
///
/// The kernel notes who connects, but a connection can be passed on. So the sender of a request
/// must be the process that has connected, and it must still execute the program that it executed
/// before the challenge was sent, which the request repeats. The table checks the latter, at the
/// moment of the reply (docs/decisions/0012-in-band.md).
fn reply(connection: Waiting, served: &Arc<Served>) -> Result<()> {
    let Waiting { stream, client, challenge, .. } = connection;
    let mut bytes = [0; IN_BAND_REQUEST_LEN];
    let (length, sender) = receive_with_sender(&stream, &mut bytes)?;
    let request = InBandRequest::parse(&bytes[..length], challenge);
    let Some(request) = request.filter(|_| sender == client.pid()) else {
        return Ok((&stream).write_all(&libc::EINVAL.to_ne_bytes())?);
    };
    let (site, is_name) = match request {
        InBandRequest::Records(thread) => {
            match served.table().add_thread(&client, thread) {
                Ok(granted) => {
                    let words = [0, granted.entry, granted.memory_number].map(u32::to_ne_bytes);
                    send_with_descriptor(&stream, words.as_flattened(), &granted.memory)?;
                }
                Err(reason) => refuse(&stream, reason),
            }
            return Ok(());
        }
        InBandRequest::SiteName(site) => (site, true),
        InBandRequest::SiteSource(site) => (site, false),
    };
    let address = served.table().site_address(&client, site);
    if served.text_threads.fetch_add(1, Ordering::SeqCst) >= MAX_TEXT_THREADS {
        served.text_threads.fetch_sub(1, Ordering::SeqCst);
        return Ok((&stream).write_all(&libc::EAGAIN.to_ne_bytes())?);
    }
    let of_thread = Arc::clone(served);
    let reply = move || {
        let text = address.and_then(|address| match is_name {
            true => KernelSymbols::get().function(address).map(str::to_owned),
            false => of_thread.lines.of_call(address),
        });
        let bytes = [0_u32.to_ne_bytes().as_slice(), text.unwrap_or_default().as_bytes()].concat();
        let _ = (&stream).write_all(&bytes);
        of_thread.text_threads.fetch_sub(1, Ordering::SeqCst);
    };
    if let Err(error) = std::thread::Builder::new().name("in-band-reply".into()).spawn(reply) {
        served.text_threads.fetch_sub(1, Ordering::SeqCst);
        return Err(error.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_can_take_the_name_of_a_run() {
        let [first, second] = [(); 2].map(|()| InBandSocket::of_command().expect("it listens"));
        assert_ne!(first.variable(), second.variable());
    }
}
