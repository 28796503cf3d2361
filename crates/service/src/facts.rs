//! What is known of a thread at an event.

use std::net::{IpAddr, SocketAddr};

use crate::rule::Event;
use crate::tree::Id;

/// The end of a connection that is the thread's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Local<'a> {
    Internet(SocketAddr),
    /// Path, or name with an `@` before it.
    Unix(&'a str),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts<'a> {
    pub event: Event,
    /// Whether it works for its service because somebody asked it to, and not for what it is.
    pub borrowed: bool,
    /// Path of the program it runs.
    pub exe: &'a str,
    /// Effective.
    pub user: u32,
    pub unit: Option<&'a str>,
    pub cgroup: &'a str,
    /// For which it works; of one that a rule started, that one's parent.
    pub service: Id,
    pub listen: Option<Local<'a>>,
    pub client: Option<IpAddr>,
    /// For which the other end of the connection works, if that end is known.
    pub peer: Option<Id>,
    /// Path of the file that was opened.
    pub file: Option<&'a str>,
}
