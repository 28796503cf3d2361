//! Tests of Tollgate in the kernel of this machine, as root.
//!
//!     scripts/test live
//!     scripts/build-tests && cargo test --release --workspace --test live NAME    # one of them
//!
//! There is a module for each extension. Tests in a module `host` also need strace, tar, sh,
//! servers and the like. The others start only `tollgate` and `workloads`, and most of them also
//! run in a small virtual machine (`scripts/vm`). TOLLGATE_BIN and WORKLOADS_BIN name the programs
//! under test; by default, these are cargo's `tollgate` and the `workloads` beside it.
//!
//! All Tollgate processes of a machine share one gate, so tests that run in parallel are sessions
//! of one gate. Those in a module `alone` decide which gate is loaded, need most of its tables, or
//! occupy a processor, so they run one by one. Each test observes only processes that it started.
//! Every wait has a time limit.

mod daemon;
mod gate;
mod guard;
#[expect(dead_code, reason = "what the test programs share is more than these need")]
mod harness;
mod lens;
mod pace;
mod plugin;
mod run;
mod service;
