//! The guard with real programs and real attacks: three servers learn under load, are used in
//! another way, and are attacked, without and with the guard. As root:
//!
//!     cargo test --release -p tollgate --test attacks -- --nocapture
//!
//! With `--nocapture` it prints what happened, as `make demo` does.
//!
//! The attacks are the project's own. Each test starts its own server, which listens on loopback
//! and has all its files in a temporary folder.

mod c_server;
mod client;
mod evasion;
mod experiment;
#[expect(dead_code, unused_imports, reason = "what the live tests share is more than these need")]
#[path = "../live/harness/mod.rs"]
mod harness;
mod nginx_php;
mod redis;
mod timeline;
mod up;

use std::path::{Path, PathBuf};

/// Path of a file in this folder.
fn source(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/attacks")).join(name)
}
