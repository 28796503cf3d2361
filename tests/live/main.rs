//! Tests through the kernel of this machine, as root.
//!
//!     scripts/test live
//!     scripts/build-tests && cargo test --release --workspace --test live NAME    # one of them
//!
//! `vm_safe::` tests start nothing but `tollgate` and `workloads`; most of them also run inside of a small
//! virtual machine (`scripts/vm`). `host::` tests also need strace, tar, sh and the like. The environment
//! may name the programs under test, as TOLLGATE_BIN and WORKLOADS_BIN; by default they are cargo's own
//! tollgate, and the workloads beside it.
//!
//! All Tollgate processes of a machine share one gate, so tests that run in parallel are sessions of one
//! gate. Those in a module `alone` run one by one, as they decide which gate is loaded. Each test looks
//! only at processes that it started. Everything that is waited for has a time limit.

#[expect(dead_code, reason = "what the test programs share is more than these need")]
mod harness;
mod host;
mod vm_safe;
