//! The metrics that a daemon serves to Prometheus.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use super::Running;

pub struct Metrics {
    pub address: String,
}

impl Metrics {
    #[track_caller]
    pub fn of(daemon: &Running) -> Self {
        let said = daemon.read("err");
        let address = said.split("http://").nth(1).and_then(|rest| rest.split("/metrics").next());
        Self { address: address.expect("an address").into() }
    }

    pub fn connect(&self) -> TcpStream {
        TcpStream::connect(&self.address).expect("it listens")
    }

    /// Requests the page; `None` if the daemon did not reply.
    pub fn page(&self) -> Option<String> {
        let (mut stream, mut page) = (self.connect(), String::new());
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").ok()?;
        stream.read_to_string(&mut page).ok()?;
        Some(page)
    }

    /// The value of one series, by its name and labels.
    pub fn value(&self, is_it: impl Fn(&str) -> bool) -> Option<f64> {
        let page = self.page()?;
        let (_, value) = page
            .lines()
            .filter_map(|line| line.rsplit_once(' '))
            .find(|(series, _)| is_it(series))?;
        value.parse().ok()
    }
}
