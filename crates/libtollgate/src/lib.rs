//! The library for programs that talk to Tollgate. A program can assign its processes and threads
//! to services or query their services (docs/service.md), can call plugins (docs/ecode.md), and can
//! begin and end tasks with deadlines (docs/pace.md). A program can read what its own latest calls
//! have cost (docs/in-band.md). The C interface is `include/tollgate.h` and, for the last of these,
//! `include/tollgate_in_band.h`.

#![warn(missing_docs)]

mod c_api;
mod client;
mod error;
pub mod in_band;
pub mod pace;
mod plugin;

pub use error::Error;
pub use plugin::{MAX_ARGUMENTS, Plugin};

use serde_json::{Value, json};

/// A process or a thread. IDs are those of the daemon's PID namespace, not of the caller's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskRef {
    /// The calling process with all its threads.
    OwnProcess,
    /// The calling thread.
    OwnThread,
    /// The process with all its threads, and the processes that it starts from then on.
    Process(u32),
    /// One thread.
    Thread(u32),
}

impl TaskRef {
    /// The task in the form of `RequestedTask` (crates/tollgate/src/service/requests.rs).
    fn to_request(self) -> Value {
        match self {
            // The daemon gets the process ID from the socket.
            Self::OwnProcess => json!("own-process"),
            // SAFETY: gettid has no preconditions.
            Self::OwnThread => json!({"own-thread": unsafe { libc::gettid() }}),
            Self::Process(pid) => json!({"process": pid}),
            Self::Thread(tid) => json!({"thread": tid}),
        }
    }
}

/// Assigns a process or thread to a service, in place of its present one. If the calling thread is
/// among the assigned ones, it works for the service when this returns. Each other assigned thread
/// works for it from its next system call or context switch on.
pub fn assign(who: TaskRef, service: &str) -> Result<(), Error> {
    let request = json!({"ask-services": "assign", "who": who.to_request(), "service": service});
    client::request(&request).map(drop)
}

/// The service for which a thread works. `None` is the calling thread; a process ID stands for the
/// process's first thread.
pub fn service_of(thread: Option<u32>) -> Result<String, Error> {
    let who = thread.map_or(TaskRef::OwnThread, TaskRef::Thread);
    let reply = client::request(&json!({"ask-services": "explain", "who": who.to_request()}))?;
    match reply["threads"][0]["service"].as_str() {
        Some(service) => Ok(service.to_owned()),
        None => Err(client::unexpected_reply(&reply)),
    }
}
