//! The guard against real programs and real attacks: three servers learn under load, are used in another way, and are
//! attacked, without and with the guard. As root:
//!
//!     cargo test --release -p tollgate --test attacks -- --nocapture    (shows what happened, as `make demo` does)
//!
//! The attacks are our own, on servers of the test's own, which listen on loopback and have all files in a temporary
//! folder.

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

/// A file beside these.
fn source(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/attacks")).join(name)
}
