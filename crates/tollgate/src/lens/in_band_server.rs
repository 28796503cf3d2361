//! Gives processes the memory of their in-band records. A process connects to a socket, whose name
//! the command finds in its environment, and gets its own memory and nothing else.

use std::ffi::OsString;
use std::io::{self, PipeWriter, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result};
use kernel::gate::Gate;
use kernel::lens::in_band::{GrantedEntry, InBandTable, Unavailable, send_with_descriptor};
use kernel::process;
use kernel::symbols::KernelSymbols;

/// The variable by which a command finds the socket. "@NAME" is a name in the abstract namespace
/// (unix(7)), which needs no file.
const VARIABLE: &str = "TOLLGATE_IN_BAND";
/// How long a process that has connected may take to send its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Further processes wait. A request takes some hundred microseconds.
const MAX_CONNECTIONS: usize = 64;
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// The variable that a command of this process needs, with its value.
pub fn command_variable() -> (OsString, OsString) {
    (VARIABLE.into(), socket_name().into())
}

fn socket_name() -> String {
    format!("@tollgate-in-band-{}", std::process::id())
}

/// The thread that serves the socket. It ends with this value.
pub struct InBandServer {
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl InBandServer {
    /// Serves the processes of a session.
    pub fn start(gate: &Gate, session: u32) -> Result<Self> {
        let name = socket_name();
        let address = SocketAddr::from_abstract_name(name.trim_start_matches('@'));
        let listener = address.and_then(|address| UnixListener::bind_addr(&address));
        let listener = listener.with_context(|| format!("cannot listen at {name}"))?;
        let table = Arc::new(Mutex::new(InBandTable::new(gate, session)?));
        let (stopped, stop) = io::pipe().context("cannot make a pipe")?;
        let thread = std::thread::Builder::new().name("in-band".into());
        let thread = thread.spawn(move || serve(&listener, stopped.as_raw_fd(), &table));
        let thread = Some(thread.context("cannot start the thread for in-band records")?);
        Ok(Self { stop: Some(stop), thread })
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

fn lock(table: &Mutex<InBandTable>) -> MutexGuard<'_, InBandTable> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve(listener: &UnixListener, stopped: i32, table: &Arc<Mutex<InBandTable>>) {
    let connections = Arc::new(AtomicUsize::new(0));
    loop {
        let [can_accept, has_stopped] =
            process::wait_for([listener.as_raw_fd(), stopped], Duration::MAX);
        if has_stopped {
            lock(table).close();
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
        let (table, open) = (Arc::clone(table), Arc::clone(&connections));
        open.fetch_add(1, Ordering::SeqCst);
        let reply = move || {
            // If the reply cannot be sent, the library in the process reports the error.
            let _ = reply(&stream, &table);
            open.fetch_sub(1, Ordering::SeqCst);
        };
        if std::thread::Builder::new().name("in-band-reply".into()).spawn(reply).is_err() {
            connections.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// The first word of a request. The second word is the number of the thread or of the site.
const RECORDS_OF_THREAD: u32 = 1;
const NAME_OF_SITE: u32 = 2;

/// A request has two words of four bytes. The first word of a reply is an errno, or 0.
fn reply(mut stream: &UnixStream, table: &Mutex<InBandTable>) -> Result<()> {
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    let mut words = [[0; 4]; 2];
    stream.read_exact(words.as_flattened_mut())?;
    let [request, of] = words.map(u32::from_ne_bytes);
    let Some(pid) = process::peer(stream.as_raw_fd()) else { return Ok(()) };
    match request {
        RECORDS_OF_THREAD => {
            let added = lock(table).add_thread(pid, of);
            reply_with_entry(stream, added)
        }
        NAME_OF_SITE => {
            let address = lock(table).site_address(pid, of);
            let name = address.and_then(|address| KernelSymbols::get().function(address));
            stream.write_all(&0_u32.to_ne_bytes())?;
            Ok(stream.write_all(name.unwrap_or_default().as_bytes())?)
        }
        _ => Ok(stream.write_all(&libc::EINVAL.to_ne_bytes())?),
    }
}

/// The second word of the reply is the entry of the thread, and a descriptor comes with it.
fn reply_with_entry(
    mut stream: &UnixStream,
    added: std::result::Result<GrantedEntry, Unavailable>,
) -> Result<()> {
    let errno = match added {
        Ok(granted) => {
            let words = [0, granted.entry].map(u32::to_ne_bytes);
            return Ok(send_with_descriptor(stream, words.as_flattened(), &granted.memory)?);
        }
        Err(Unavailable::NotGated) => libc::ESRCH,
        Err(Unavailable::Full) => libc::EUSERS,
        Err(Unavailable::Failed) => libc::EIO,
    };
    Ok(stream.write_all(&errno.to_ne_bytes())?)
}
