//! pH's models of a program's normal system-call sequences, after Somayaji and Forrest, "Automated Response Using
//! System-Call Delays" (USENIX Security 2000), and its source as of version 0.18. Pure, no I/O: the reference of the
//! kernel side, and what `tollgate guard replay` runs.
//!
//! Calls are opaque numbers ([`Call`]): whoever makes them keeps the ABIs apart.

#![forbid(unsafe_code)]

mod locality;
mod lookahead;
mod model;
mod parameters;
mod profile;
mod roc;
mod sequence;
mod thread;
mod window;

pub use locality::Locality;
pub use lookahead::Lookahead;
pub use model::{Kind, Model};
pub use parameters::Parameters;
pub use profile::{Profile, State, Verdict};
pub use roc::{area, rate_from};
pub use sequence::Sequence;
pub use thread::Thread;
pub use window::Window;

/// A system call, by whatever number its trace has.
pub type Call = u32;
