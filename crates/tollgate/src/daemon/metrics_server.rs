//! Serves the page of metrics over HTTP.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Error, Result, anyhow};

const FORMAT: &str = "text/plain; version=0.0.4";
const MAX_REQUEST_LEN: usize = 8 << 10;
/// The time limit of a connection.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(1);
/// The maximum number of simultaneous connections, because any process may connect, and each
/// connection is one of the daemon's open files. A further one ends the oldest.
const MAX_CONNECTIONS: usize = 16;

/// The page, which the daemon renders anew at each refresh.
pub type Page = Arc<Mutex<String>>;

/// Serves the page, and returns its URL.
pub fn serve(address: &str, page: Page) -> Result<String> {
    let listener = TcpListener::bind(address).map_err(|error| {
        if error.kind() == io::ErrorKind::InvalidInput || address.starts_with(':') {
            return anyhow!(
                "cannot listen at {address:?}: this is no address with a port, such as \
                127.0.0.1:9478, [::1]:9478 or localhost:9478"
            );
        }
        Error::from(error).context(format!("cannot listen at {address}"))
    })?;
    let url = format!("http://{}/metrics", listener.local_addr()?);
    thread::spawn(move || {
        let mut connections = Connections::default();
        loop {
            match listener.accept() {
                Ok((stream, _)) => connections.serve(stream, &page),
                // `accept` may succeed later.
                Err(_) => thread::sleep(CONNECTION_TIMEOUT),
            }
        }
    });
    Ok(url)
}

/// The connections that are served now, each by a thread. A silent client thus delays no other.
#[derive(Default)]
struct Connections(VecDeque<Weak<TcpStream>>);

impl Connections {
    fn serve(&mut self, stream: TcpStream, page: &Page) {
        self.0.retain(|stream| stream.strong_count() > 0);
        if self.0.len() == MAX_CONNECTIONS
            && let Some(oldest) = self.0.pop_front().and_then(|oldest| oldest.upgrade())
        {
            // Its thread sees the end of the request.
            let _ = oldest.shutdown(Shutdown::Both);
        }
        let (stream, page) = (Arc::new(stream), Arc::clone(page));
        self.0.push_back(Arc::downgrade(&stream));
        // Without memory for a thread, the connection is closed. The client may disconnect at any
        // time.
        let _ = thread::Builder::new().spawn(move || drop(serve_one(&stream, &page)));
    }
}

/// Reads one request and sends the page.
fn serve_one(mut stream: &TcpStream, page: &Page) -> io::Result<()> {
    let end = Instant::now() + CONNECTION_TIMEOUT;
    let left = || match end.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::Error::from(io::ErrorKind::TimedOut)),
        left => Ok(Some(left)),
    };
    let (mut request, mut bytes) = (Vec::new(), [0; 1024]);
    while !request.ends_with(b"\r\n\r\n") && request.len() < MAX_REQUEST_LEN {
        stream.set_read_timeout(left()?)?;
        match stream.read(&mut bytes)? {
            0 => break,
            read => request.extend_from_slice(&bytes[..read]),
        }
    }
    let response = response(&request, page);
    let mut rest = response.as_bytes();
    while !rest.is_empty() {
        stream.set_write_timeout(left()?)?;
        rest = &rest[stream.write(rest)?..];
    }
    Ok(())
}

/// The response to a request (RFC 9112).
fn response(request: &[u8], page: &Page) -> String {
    let mut words = request.split(|byte| byte.is_ascii_whitespace());
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let is_page = path(&String::from_utf8_lossy(target)) == "/metrics";
    let (status, more, text) = match method {
        b"GET" | b"HEAD" if is_page => {
            match page.lock().map(|page| page.clone()).unwrap_or_default() {
                // An empty page would end all series.
                empty if empty.is_empty() => {
                    ("503 Service Unavailable", "", "the daemon is starting\n".into())
                }
                page => ("200 OK", "", page),
            }
        }
        b"GET" | b"HEAD" => ("404 Not Found", "", "see /metrics\n".into()),
        _ if is_page => {
            ("405 Method Not Allowed", "Allow: GET, HEAD\r\n", "only GET and HEAD\n".into())
        }
        _ => ("404 Not Found", "", "see /metrics\n".into()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {FORMAT}\r\nContent-Length: {}\r\n{more}Connection: \
        close\r\n\r\n",
        text.len()
    );
    if method == b"HEAD" { head } else { head + &text }
}

/// The path of a request's target, which may be a whole URL, and may have a query.
fn path(target: &str) -> &str {
    let path = match target.split_once("://") {
        Some((scheme, rest)) if !scheme.contains('/') => {
            rest.find('/').map_or("/", |begin| &rest[begin..])
        }
        _ => target,
    };
    path.split(['?', '#']).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(url: &str, text: &str) -> String {
        let address = url.trim_start_matches("http://").trim_end_matches("/metrics");
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.write_all(text.as_bytes()).expect("it reads");
        let mut reply = String::new();
        stream.read_to_string(&mut reply).expect("it replies");
        reply
    }

    #[test]
    fn page_that_is_not_there_yet_is_an_error() {
        let page = Page::default();
        let reply = response(b"GET /metrics HTTP/1.1\r\n\r\n", &page);
        assert!(reply.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{reply}");
        *page.lock().expect("nobody has it") = "tollgate_x 1\n".into();
        let reply = response(b"GET /metrics HTTP/1.1\r\n\r\n", &page);
        assert!(reply.starts_with("HTTP/1.1 200 OK\r\n"), "{reply}");
    }

    #[test]
    fn page_is_served_beside_silent_clients() {
        let page = Page::new("tollgate_x 1\n".repeat(100_000).into());
        let url = serve("127.0.0.1:0", Arc::clone(&page)).expect("a port");
        let address = url.trim_start_matches("http://").trim_end_matches("/metrics");
        // One after the other, they would take MAX_CONNECTIONS + 1 times the time limit.
        let began = Instant::now();
        let silent: Vec<_> = (0..=MAX_CONNECTIONS)
            .map(|_| TcpStream::connect(address).expect("it listens"))
            .collect();
        let reply = request(&url, "GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n");
        assert!(began.elapsed() < CONNECTION_TIMEOUT * MAX_CONNECTIONS as u32);
        let (head, body) = reply.split_once("\r\n\r\n").expect("a head and a text");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
        assert_eq!(body, *page.lock().expect("whole"));
        drop(silent);
        for (text, words) in
            [("GET / HTTP/1.0\r\n\r\n", "see /metrics"), ("\r\n\r\n", "404 Not Found")]
        {
            assert!(request(&url, text).contains(words), "{text:?}");
        }
        assert!(request(&url, &"x".repeat(MAX_REQUEST_LEN)).contains("404 Not Found"));
    }

    #[test]
    fn requests_have_methods_and_queries() {
        let page = Page::new("tollgate_x 1\n".to_owned().into());
        let of = |request: &str| response(format!("{request} HTTP/1.1\r\n\r\n").as_bytes(), &page);
        let page_response = of("GET /metrics");
        for target in ["/metrics?x=1", "http://host:9478/metrics", "http://host/metrics?a=b"] {
            assert_eq!(of(&format!("GET {target}")), page_response, "{target}");
        }
        let (head, body) = page_response.split_once("\r\n\r\n").expect("a head and a text");
        assert_eq!(body, "tollgate_x 1\n");
        assert_eq!(of("HEAD /metrics"), format!("{head}\r\n\r\n"));
        for method in ["POST", "DELETE", "OPTIONS", "get"] {
            let refused = of(&format!("{method} /metrics"));
            assert!(refused.starts_with("HTTP/1.1 405 "), "{refused}");
            assert!(refused.contains("\r\nAllow: GET, HEAD\r\n"), "{refused}");
        }
        for target in ["/", "/metrics/", "http://host", "/x?y=/metrics", "http://metrics"] {
            assert!(of(&format!("GET {target}")).starts_with("HTTP/1.1 404 "), "{target}");
        }
    }

    #[test]
    fn addresses_without_a_port_are_explained() {
        for address in ["127.0.0.1", "[::1]", "0", "127.0.0.1:99999", ":9478", ""] {
            let refused = serve(address, Page::default()).expect_err(address).to_string();
            assert!(refused.contains("such as 127.0.0.1:9478, [::1]:9478"), "{refused}");
        }
    }
}
