//! Requests and replies by UDP, one datagram each, with the interface of a connection.

use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome, failed, os_failure};
use crate::output::{after_stdin_line, until_stdin_ends};
use std::io::{self, Read, Write};

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Prefix of a server's address if the socket is to be connected.
const CONNECTED: &str = "udp:";
const UNCONNECTED: &str = "sendto:";

/// Parses the address, and whether the socket is to be connected.
pub fn parse_address(text: &str) -> Option<(SocketAddr, bool)> {
    let address = |prefix| text.strip_prefix(prefix)?.parse().ok();
    address(CONNECTED)
        .map(|address| (address, true))
        .or_else(|| address(UNCONNECTED).map(|address| (address, false)))
}

/// The address in the form that `parse_address` reads.
pub fn format_address(address: SocketAddr, is_connected: bool) -> String {
    format!("{}{address}", if is_connected { CONNECTED } else { UNCONNECTED })
}

pub struct Datagrams {
    socket: UdpSocket,
    /// The other address, if the socket is not connected.
    peer: Option<SocketAddr>,
}

impl Datagrams {
    /// Replies to the address from which it last received.
    pub fn of_server(socket: UdpSocket) -> Self {
        Self { socket, peer: None }
    }

    pub fn of_client(server: SocketAddr, is_connected: bool) -> io::Result<Self> {
        let any: SocketAddr = match server {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(any)?;
        if is_connected {
            socket.connect(server)?;
        }
        Ok(Self { socket, peer: (!is_connected).then_some(server) })
    }
}

impl Read for Datagrams {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.socket.peer_addr().is_ok() {
            return self.socket.recv(buffer);
        }
        let (length, from) = self.socket.recv_from(buffer)?;
        self.peer = Some(from);
        Ok(length)
    }
}

impl Write for Datagrams {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.peer {
            Some(peer) => self.socket.send_to(bytes, peer),
            None => self.socket.send(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Builds a query for the address of this name, with recursion (RFC 1035, 4.1).
fn query(id: u16, name: &str) -> Vec<u8> {
    let mut query = id.to_be_bytes().to_vec();
    query.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split('.') {
        query.push(label.len() as u8);
        query.extend(label.as_bytes());
    }
    query.extend([0, 0, 1, 0, 1]);
    query
}

/// Queries a name server repeatedly, each time by a new socket, as libraries do.
pub fn resolve(mut arguments: Arguments) -> Outcome {
    let server = arguments.path("ADDRESS")?;
    let name = arguments.path("NAME")?;
    let times = arguments.number("TIMES", 1..=1_000_000)?;
    arguments.end()?;
    let server: Option<SocketAddr> = server.to_str().and_then(|text| text.parse().ok());
    let (Some(server), Some(name)) = (server, name.to_str()) else {
        return Err(Failure::Usage("ADDRESS or NAME is none".into()));
    };
    after_stdin_line(|| {
        for time in 0..times {
            let query = query(time as u16, name);
            let mut reply = [0; 512];
            let length = Datagrams::of_client(server, true)
                .and_then(|mut socket| socket.write(&query).and_then(|_| socket.read(&mut reply)))
                .map_err(|error| os_failure("query the name server", error))?;
            // Bytes 6 and 7 are the number of answer records.
            if reply[..2] != query[..2] || length <= query.len() || reply[6..8] != [0, 1] {
                return Err(failed(format!("a reply of {:?}", &reply[..length])));
            }
        }
        Ok(())
    })?;
    until_stdin_ends()
}
