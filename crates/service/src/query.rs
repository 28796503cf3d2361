//! What is known about a thread at an event. Rules are matched against it.

use std::net::{IpAddr, SocketAddr};

use crate::event::RuleEvent;
use crate::tree::Id;

/// The thread's end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalEnd<'a> {
    /// An address and a port.
    Internet(SocketAddr),
    /// A path, or an abstract name that begins with `@`.
    Unix(&'a str),
}

/// What is known about a thread at an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleQuery<'a> {
    /// The event.
    pub event: RuleEvent,
    /// Whether the thread works for its service because of a request or an explicit assignment, and
    /// not because of its identity.
    pub on_behalf: bool,
    /// The path of the thread's executable.
    pub exe: &'a str,
    /// The effective user.
    pub user: u32,
    /// The systemd unit of the thread, if it has one.
    pub unit: Option<&'a str>,
    /// The path of the thread's control group.
    pub cgroup: &'a str,
    /// The thread's service. For a dynamic service, this is its parent.
    pub service: Id,
    /// The end on which the server listens, on receive.
    pub listen: Option<LocalEnd<'a>>,
    /// The address of the client, on receive.
    pub client: Option<IpAddr>,
    /// The service of the connection's other end, if that end is known.
    pub peer: Option<Id>,
    /// The path of the opened file.
    pub file: Option<&'a str>,
}
