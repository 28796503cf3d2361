//! Code that the clients of all servers share.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

/// Longer than any hold for which a test waits.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(120);

/// Returns a free port of loopback.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("loopback has free ports");
    listener.local_addr().expect("it is bound").port()
}

/// Knuth's MMIX generator; only its upper bits are good random bits.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// Makes `requests` requests by `clients` concurrent clients, each with its own random numbers.
/// Meanwhile, `event` happens.
pub fn many(
    clients: usize,
    requests: usize,
    seed: u64,
    client: impl Fn(&mut Rng, usize) + Sync,
    event: impl FnOnce(),
) {
    let client = &client;
    thread::scope(|scope| {
        for number in 0..clients {
            let mut dice = Rng::new(seed * 1000 + number as u64);
            scope.spawn(move || client(&mut dice, requests / clients));
        }
        event();
    });
}

pub struct ClientConnection {
    stream: BufReader<TcpStream>,
}

impl ClientConnection {
    pub fn to(port: u16) -> io::Result<Self> {
        Self::with_timeout(port, RECEIVE_TIMEOUT)
    }

    /// Connects with a short timeout, to find out whether the server replies.
    pub fn with_short_timeout(port: u16) -> io::Result<Self> {
        Self::with_timeout(port, Duration::from_secs(1))
    }

    fn with_timeout(port: u16, timeout: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// Reads a line, without its newline.
    pub fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.stream.read_line(&mut line)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }

    pub fn bytes(&mut self, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    pub fn read_rest(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.stream.read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}
