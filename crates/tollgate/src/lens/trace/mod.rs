//! `--trace`: the calls and waits of a session one by one, for Perfetto
//! (docs/decisions/0017-files-and-traces.md).

mod encoder;
mod perfetto;
mod session_trace;

pub use session_trace::{READ_INTERVAL, SessionTrace, TraceOptions};
