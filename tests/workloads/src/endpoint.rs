//! Where a server listens: TCP, Unix sockets and UDP, behind one interface.

use std::cell::Cell;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{FromRawFd as _, RawFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;

use crate::datagrams::{self, Datagrams};

/// The form of an endpoint on the command line.
pub const FORM: &str = "PORT|ADDRESS:PORT|PATH|@NAME|fd:N|udp:ADDRESS|sendto:ADDRESS";

/// A connection of any kind.
pub trait ByteStream: Read + Write + Send {}
impl<T: Read + Write + Send> ByteStream for T {}

/// Accepts the next connection.
pub type Listener = Box<dyn Fn() -> io::Result<Box<dyn ByteStream>>>;

/// A TCP port of 127.0.0.1 (0: any) or `ADDRESS:PORT`, the path of a Unix socket or its `@NAME`,
/// `udp:ADDRESS`, or `fd:N`: an inherited Unix socket that is connected.
pub enum Endpoint {
    Port(u16),
    Address(SocketAddr),
    Path(PathBuf),
    Inherited(RawFd),
    Datagrams { address: SocketAddr, is_connected: bool },
}

impl Endpoint {
    pub fn of(path: &Path) -> Self {
        let text = path.to_str().unwrap_or_default();
        if let Some((address, is_connected)) = datagrams::parse_address(text) {
            return Self::Datagrams { address, is_connected };
        }
        if let Some(Ok(fd)) = text.strip_prefix("fd:").map(str::parse) {
            return Self::Inherited(fd);
        }
        let port = text.parse().map(Self::Port).ok();
        port.or_else(|| text.parse().map(Self::Address).ok())
            .unwrap_or_else(|| Self::Path(path.into()))
    }

    /// Listens; returns the listener and the endpoint for clients.
    pub fn listen(&self) -> io::Result<(Listener, String)> {
        Ok(match self {
            Self::Port(port) => {
                let listener = TcpListener::bind(("127.0.0.1", *port))?;
                let port = listener.local_addr()?.port().to_string();
                (Box::new(move || Ok(Box::new(listener.accept()?.0))), port)
            }
            Self::Address(address) => {
                let listener = TcpListener::bind(address)?;
                let address = listener.local_addr()?.to_string();
                (Box::new(move || Ok(Box::new(listener.accept()?.0))), address)
            }
            Self::Path(path) => {
                let listener = UnixListener::bind_addr(&unix_address(path)?)?;
                let accept = move || -> io::Result<Box<dyn ByteStream>> {
                    Ok(Box::new(listener.accept()?.0))
                };
                (Box::new(accept), path.to_string_lossy().into_owned())
            }
            Self::Inherited(fd) => {
                let only = Cell::new(Some(inherited(*fd)));
                let accept = move || -> io::Result<Box<dyn ByteStream>> {
                    match only.take() {
                        Some(stream) => Ok(Box::new(stream)),
                        None => loop {
                            thread::park();
                        },
                    }
                };
                (Box::new(accept), format!("fd:{fd}"))
            }
            Self::Datagrams { address, is_connected } => {
                let socket = UdpSocket::bind(address)?;
                let found = datagrams::format_address(socket.local_addr()?, *is_connected);
                // All clients share the server's only "connection".
                (Box::new(move || Ok(Box::new(Datagrams::of_server(socket.try_clone()?)))), found)
            }
        })
    }

    pub fn connect(&self) -> io::Result<Box<dyn ByteStream>> {
        Ok(match self {
            Self::Port(port) => Box::new(TcpStream::connect(("127.0.0.1", *port))?),
            Self::Address(address) => Box::new(TcpStream::connect(address)?),
            Self::Path(path) => Box::new(UnixStream::connect_addr(&unix_address(path)?)?),
            Self::Inherited(fd) => Box::new(inherited(*fd)),
            Self::Datagrams { address, is_connected } => {
                Box::new(Datagrams::of_client(*address, *is_connected)?)
            }
        })
    }
}

fn unix_address(path: &Path) -> io::Result<unix::net::SocketAddr> {
    match path.as_os_str().as_bytes() {
        [b'@', name @ ..] => unix::net::SocketAddr::from_abstract_name(name),
        _ => unix::net::SocketAddr::from_pathname(path),
    }
}

fn inherited(fd: RawFd) -> UnixStream {
    // SAFETY: the descriptor was inherited for this purpose, and nothing else in this process owns
    // it.
    unsafe { UnixStream::from_raw_fd(fd) }
}
