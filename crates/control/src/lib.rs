//! The control socket of a daemon: one request for each connection, as a line of JSON. The reply is
//! a line, with further lines for events.

mod client;
mod followers;
mod protocol;

pub use client::{NoReply, PendingReply};
pub use followers::{EventReceiver, EventSender, Response};
pub use protocol::{
    DEFAULT_SOCKET, OTHER_VERSION, REPLY_TIMEOUT, Reply, SOCKET_VARIABLE, write_line,
};
