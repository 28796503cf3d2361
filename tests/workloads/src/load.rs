//! Clients of a web server: each sends its next request after the reply.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use crate::arguments::{Arguments, HOUR_MS};
use crate::failure::{Failure, Outcome, failed, os_failure};
use crate::output::print_line;

/// Reads the reply to one request. Returns whether the connection stays open.
fn read_reply(connection: &mut BufReader<TcpStream>) -> io::Result<bool> {
    let (mut line, mut length, mut stays) = (String::new(), None, false);
    connection.read_line(&mut line)?;
    if line.split(' ').nth(1) != Some("200") {
        return Err(io::Error::other(format!("a reply of {:?}", line.trim_end())));
    }
    loop {
        line.clear();
        connection.read_line(&mut line)?;
        match line.trim_end().to_ascii_lowercase().split_once(": ") {
            Some(("content-length", text)) => length = text.parse().ok(),
            Some(("connection", text)) => stays = text == "keep-alive",
            Some(_) => {}
            None => break,
        }
    }
    match length {
        Some(length) => connection.read_exact(&mut vec![0; length])?,
        None => drop(connection.read_to_end(&mut Vec::new())?),
    }
    Ok(stays && length.is_some())
}

/// Sends requests until `end`; returns how long each took.
fn request_until(port: u16, path: &str, end: Instant) -> io::Result<Vec<Duration>> {
    let request =
        format!("GET {path} HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n");
    let (mut took, mut open) = (Vec::new(), None);
    loop {
        let began = Instant::now();
        if began >= end {
            return Ok(took);
        }
        let mut connection = match open.take() {
            Some(connection) => connection,
            None => {
                let stream = TcpStream::connect(("127.0.0.1", port))?;
                stream.set_nodelay(true)?;
                BufReader::new(stream)
            }
        };
        connection.get_mut().write_all(request.as_bytes())?;
        if read_reply(&mut connection)? {
            open = Some(connection);
        }
        took.push(began.elapsed());
    }
}

/// Prints how many requests got a reply in the time, and the median and 99th percentile of their
/// duration.
pub fn load(mut arguments: Arguments) -> Outcome {
    let port = arguments.number("PORT", 1..=u16::MAX.into())? as u16;
    let connections = arguments.number("CONNECTIONS", 1..=1000)?;
    let ms = arguments.number("MS", 1..=HOUR_MS)?;
    let path = arguments.path("PATH")?;
    arguments.end()?;
    let Some(path) = path.to_str() else { return Err(Failure::Usage("PATH must be text".into())) };
    let end = Instant::now() + Duration::from_millis(ms);
    let times: io::Result<Vec<_>> = thread::scope(|scope| {
        let clients: Vec<_> =
            (0..connections).map(|_| scope.spawn(|| request_until(port, path, end))).collect();
        clients.into_iter().map(|client| client.join().expect("a client does not panic")).collect()
    });
    let mut took = times
        .map_err(|error| os_failure(format!("request {path} at port {port}"), error))?
        .concat();
    took.sort_unstable();
    let Some(last) = took.len().checked_sub(1) else { return Err(failed("there was no reply")) };
    let [p50, p99] = [50, 99].map(|percent| took[last * percent / 100].as_micros());
    print_line(&format!("{{\"requests\":{},\"p50_us\":{p50},\"p99_us\":{p99}}}", took.len()))
}
