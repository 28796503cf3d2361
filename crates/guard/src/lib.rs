//! pH's models of a program's normal system-call sequences, after Somayaji and Forrest, "Automated
//! Response Using System-Call Delays" (USENIX Security 2000), and pH's source, version 0.18. The
//! crate is the reference of the kernel side, and `tollgate guard replay` runs it. Pure, no I/O.
//!
//! Calls are opaque numbers ([`CallNumber`]): the user of this crate gives calls of different ABIs
//! different numbers.

#![warn(missing_docs)]
#![forbid(unsafe_code)]

mod anomaly_limit;
mod locality;
mod lookahead;
mod model;
mod parameters;
mod profile;
mod roc;
mod sequence;
mod thread;
mod window;

pub use anomaly_limit::{AnomalyLimit, CountedAnomalies};
pub use locality::Locality;
pub use lookahead::Lookahead;
pub use model::{Model, ModelKind};
pub use parameters::Parameters;
pub use profile::{CallVerdict, Profile, ProfileState};
pub use roc::{auc, rate_at_least};
pub use sequence::Sequence;
pub use thread::GuardThread;
pub use window::Window;

/// The number that identifies a system call in a trace.
pub type CallNumber = u32;
