//! Tests through the kernel of this machine, as root.
//!
//!     cargo build --release -p workloads && cargo test --release -p tollgate --test live
//!
//! `vm_safe::` tests start nothing but `tollgate` and `workloads`, and also run inside of a small virtual
//! machine; `host::` tests also need strace, tar, sh and the like. The environment may name the programs
//! under test, as TOLLGATE_BIN and WORKLOADS_BIN; by default they are cargo's own tollgate, and the
//! workloads beside it.
//!
//! All Tollgate processes of a machine share one gate, so tests that run in parallel are sessions of one
//! gate, or one loads it while another leaves: that is part of the test. Each looks only at processes that
//! it started. Everything that is waited for has a time limit.

#[expect(dead_code, reason = "what the test programs share is more than these need")]
mod harness;
mod host;
mod vm_safe;
