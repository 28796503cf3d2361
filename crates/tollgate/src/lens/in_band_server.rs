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
use std::time::Duration;

use anyhow::{Context as _, Result};
use control::{Challenge, IN_BAND_REQUEST_LEN, IN_BAND_SOCKET, IN_BAND_VARIABLE, InBandRequest};
use kernel::gate::Gate;
use kernel::lens::in_band::{GrantedEntry, InBandTable, Unavailable};
use kernel::process::{self, ProcessRef};
use kernel::socket_messages::{receive_with_sender, request_senders, send_with_descriptor};
use kernel::symbols::KernelSymbols;

use super::kernel_source::KernelLines;
use crate::format::shown_path;
use crate::socket_file::SocketFile;

/// How long a process that has connected may take to send its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Further processes wait. A request takes some hundred microseconds.
const MAX_CONNECTIONS: usize = 64;
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// The variable that a command of this process needs, with its value.
pub fn command_variable() -> (OsString, OsString) {
    (IN_BAND_VARIABLE.into(), socket_name().into())
}

/// It is in the abstract namespace, so it works in a chroot and leaves no file behind.
fn socket_name() -> String {
    format!("@tollgate-in-band-{}", std::process::id())
}

/// Where processes request their records.
pub enum InBandSocket {
    /// A command finds the name in its environment.
    OfCommand(UnixListener),
    OfDaemon(SocketFile),
}

impl InBandSocket {
    /// Listens for the command of this process.
    pub fn of_command() -> Result<Self> {
        let name = socket_name();
        let address = SocketAddr::from_abstract_name(name.trim_start_matches('@'));
        let listener = address.and_then(|address| UnixListener::bind_addr(&address));
        Ok(Self::OfCommand(listener.with_context(|| format!("cannot listen at {name}"))?))
    }

    /// Listens for all users, beside a daemon's control socket.
    pub fn beside(control: &Path) -> Result<Self> {
        let path = control.with_file_name(IN_BAND_SOCKET);
        let in_use = || format!("another daemon gives in-band records at {}", shown_path(&path));
        Ok(Self::OfDaemon(SocketFile::listen(&path, 0o666, in_use)?))
    }

    fn listener(&self) -> &UnixListener {
        match self {
            Self::OfCommand(listener) => listener,
            Self::OfDaemon(file) => file.listener(),
        }
    }
}

/// What requests are about.
struct Served {
    table: Mutex<InBandTable>,
    lines: KernelLines,
}

impl Served {
    fn table(&self) -> MutexGuard<'_, InBandTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
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
        let served = Arc::new(Served { table, lines: KernelLines::default() });
        let path = match &socket {
            InBandSocket::OfCommand(_) => None,
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

fn serve(listener: &UnixListener, stopped: i32, served: &Arc<Served>) {
    let connections = Arc::new(AtomicUsize::new(0));
    loop {
        let [can_accept, has_stopped] =
            process::wait_for([listener.as_raw_fd(), stopped], Duration::MAX);
        if has_stopped {
            served.table().close();
            return;
        }
        if !can_accept {
            continue;
        }
        if connections.load(Ordering::SeqCst) >= MAX_CONNECTIONS {
            std::thread::sleep(RETRY_INTERVAL);
            continue;
        }
        let Ok((stream, _)) = listener.accept() else {
            std::thread::sleep(RETRY_INTERVAL);
            continue;
        };
        let (served, open) = (Arc::clone(served), Arc::clone(&connections));
        open.fetch_add(1, Ordering::SeqCst);
        let reply = move || {
            // If the reply cannot be sent, the library in the process reports the error.
            let _ = reply(&stream, &served);
            open.fetch_sub(1, Ordering::SeqCst);
        };
        if std::thread::Builder::new().name("in-band-reply".into()).spawn(reply).is_err() {
            connections.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Receives a request, and says who sends it. `None`: it is not one, or whoever sends it is not the
/// process that has connected.
///
/// The kernel notes who connects, but a connection can be passed on, and when that process has
/// ended, another one may get its number. The sender of the challenge's bytes has had the number
/// since this process has opened it.
fn receive(mut stream: &UnixStream) -> Result<Option<(ProcessRef, InBandRequest)>> {
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    let Some(peer) = process::peer(stream.as_raw_fd()) else { return Ok(None) };
    request_senders(stream)?;
    let mut challenge = Challenge::default();
    File::open("/dev/urandom")?.read_exact(&mut challenge)?;
    stream.write_all(&challenge)?;
    let mut bytes = [0; IN_BAND_REQUEST_LEN];
    let (length, sender) = receive_with_sender(stream, &mut bytes)?;
    let request = InBandRequest::parse(&bytes[..length], challenge);
    Ok(request.filter(|_| sender == peer.pid && peer.lives()).map(|request| (peer, request)))
}

/// Serves a connection. The first word of the reply is an errno, or 0.
fn reply(mut stream: &UnixStream, served: &Served) -> Result<()> {
    let Some((peer, request)) = receive(stream)? else {
        return Ok(stream.write_all(&libc::EINVAL.to_ne_bytes())?);
    };
    let address = |site| served.table().site_address(peer.pid, site);
    let text = match request {
        InBandRequest::Records(thread) => {
            let added = served.table().add_thread(peer.pid, thread);
            // What was read of the process by its number was that of this process.
            let is_its = added.and_then(|entry| match peer.lives() {
                true => Ok(entry),
                false => Err(Unavailable::NotGated),
            });
            return reply_with_entry(stream, is_its);
        }
        InBandRequest::SiteName(site) => {
            let name = address(site).and_then(|address| KernelSymbols::get().function(address));
            name.map(str::to_owned)
        }
        InBandRequest::SiteSource(site) => {
            address(site).and_then(|address| served.lines.of_call(address))
        }
    };
    stream.write_all(&0_u32.to_ne_bytes())?;
    Ok(stream.write_all(text.unwrap_or_default().as_bytes())?)
}

fn reply_with_entry(
    mut stream: &UnixStream,
    added: std::result::Result<GrantedEntry, Unavailable>,
) -> Result<()> {
    let errno = match added {
        Ok(granted) => {
            let words = [0, granted.entry, granted.memory_number].map(u32::to_ne_bytes);
            return Ok(send_with_descriptor(stream, words.as_flattened(), &granted.memory)?);
        }
        Err(Unavailable::NotGated) => libc::ESRCH,
        Err(Unavailable::Full) => libc::EUSERS,
        Err(Unavailable::Failed) => libc::EIO,
    };
    Ok(stream.write_all(&errno.to_ne_bytes())?)
}
