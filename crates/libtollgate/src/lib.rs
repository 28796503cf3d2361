//! For programs that say themselves for which service they work, or ask for which they do: the daemon that has services in
//! force is asked (docs/service.md). And for those that call a daemon's plugins (docs/ecode.md). The same for C is in
//! `include/tollgate.h`.

mod c;
mod daemon;
mod plugin;

pub use plugin::{MOST_ARGUMENTS, Plugin};

use std::fmt::{self, Display};
use std::io;

use serde_json::{Value, json};

/// Why nothing was done.
#[derive(Debug)]
pub enum Error {
    /// No daemon could be asked: none listens there, or only others may ask it.
    Unreachable(io::Error, String),
    /// What the daemon says.
    Refused(String),
    /// The kernel's refusal.
    Kernel(io::Error),
}

impl Display for Error {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(error, path) => write!(to, "cannot ask the daemon at {path}: {error}"),
            Self::Refused(sentence) => to.write_str(sentence),
            Self::Kernel(error) => write!(to, "the kernel refuses it: {error}"),
        }
    }
}

impl std::error::Error for Error {}

/// Numbers of processes and threads are those of the daemon's PID namespace, whatever one's own is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    OwnProcess,
    OwnThread,
    /// With all its threads, and what it starts from then on.
    Process(u32),
    Thread(u32),
}

impl Who {
    /// As crates/tollgate/src/service/control.rs has it.
    fn asked(self) -> Value {
        match self {
            // The daemon knows who asks.
            Self::OwnProcess => json!("own-process"),
            // SAFETY: a plain query.
            Self::OwnThread => json!({"own-thread": unsafe { libc::gettid() }}),
            Self::Process(pid) => json!({"process": pid}),
            Self::Thread(tid) => json!({"thread": tid}),
        }
    }
}

/// Gives it to a service, whatever it works for now; one's own thread works for that once this returns, others do from
/// their next call or context switch on.
pub fn assign(who: Who, service: &str) -> Result<(), Error> {
    let request = json!({"ask-services": "assign", "who": who.asked(), "service": service});
    daemon::ask(&request).map(drop)
}

/// The service for which a thread works, or of a process the first one; one's own thread for `None`.
pub fn service_of(thread: Option<u32>) -> Result<String, Error> {
    let who = thread.map_or(Who::OwnThread, Who::Thread);
    let answer = daemon::ask(&json!({"ask-services": "explain", "who": who.asked()}))?;
    match answer["threads"][0]["service"].as_str() {
        Some(service) => Ok(service.to_owned()),
        None => Err(daemon::not_understood(&answer)),
    }
}
