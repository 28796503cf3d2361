//! The control socket of a daemon: one request for each connection, as a line of JSON. The reply is
//! a line, with further lines for events. The requests for in-band records have a socket of their
//! own, and are a few bytes. Types of tasks have numbers that programs and Tollgate both find.

mod client;
mod followers;
mod in_band;
mod protocol;
mod socket_path;
mod task_type;

pub use client::{NoReply, PendingReply};
pub use followers::{EventReceiver, EventSender, Response};
pub use in_band::{
    Challenge, DEFAULT_IN_BAND_SOCKET, IN_BAND_REQUEST_LEN, IN_BAND_SOCKET, IN_BAND_VARIABLE,
    InBandRequest,
};
pub use protocol::{
    DEFAULT_SOCKET, OTHER_VERSION, REPLY_TIMEOUT, Reply, SOCKET_VARIABLE, write_line,
};
pub use socket_path::{check_socket_path, connect};
pub use task_type::{fnv_1a, task_type_id};
