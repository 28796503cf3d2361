//! One thread that handles requests of two tenants at once, like an event loop.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;

use crate::arguments::Arguments;
use crate::failure::{Outcome, os_failure};
use crate::output::print_line;

/// More bytes than a socket's buffers take.
const TOO_MUCH: usize = 64 << 20;

fn request(listener: &TcpListener) -> io::Result<(TcpStream, String)> {
    let mut connection = BufReader::new(listener.accept()?.0);
    let mut line = String::new();
    connection.read_line(&mut line)?;
    Ok((connection.into_inner(), line))
}

fn serve(listener: &TcpListener, backend: u16, is_stuck: bool) -> io::Result<()> {
    let (mut first, message) = request(listener)?;
    let mut backend = BufReader::new(TcpStream::connect(("127.0.0.1", backend))?);
    if is_stuck {
        backend.get_mut().write_all(message.as_bytes())?;
    }
    print_line("has one").map_err(|_| io::ErrorKind::BrokenPipe)?;
    let (mut second, _) = request(listener)?;
    if is_stuck {
        let (mut never, _read) = UnixStream::pair()?;
        return never.write_all(&vec![0; TOO_MUCH]);
    }
    backend.get_mut().write_all(message.as_bytes())?;
    backend.read_line(&mut String::new())?;
    first.write_all(b"done\n")?;
    second.write_all(b"done\n")?;
    // Meanwhile, the test can read its service.
    io::stdin().read_line(&mut String::new()).map(drop)
}

/// Prints where it listens, and opens a connection to a back end for the first request. It sends
/// the request when it has received a second one, and ends at a line of its input. With `--stuck`,
/// it sends the request first, and then blocks in another send.
pub fn relay(mut arguments: Arguments) -> Outcome {
    let backend = arguments.number("PORT", 1..=u16::MAX.into())? as u16;
    let is_stuck = arguments.flag("--stuck", "N", 0..=1)? == Some(1);
    arguments.end()?;
    let listener =
        TcpListener::bind(("127.0.0.1", 0)).map_err(|error| os_failure("listen", error))?;
    let port = listener.local_addr().map_err(|error| os_failure("listen", error))?.port();
    print_line(&port.to_string())?;
    serve(&listener, backend, is_stuck).map_err(|error| os_failure("serve two tenants", error))
}
