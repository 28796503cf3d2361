//! Keeps a gate with every extension until stdin ends. Tests that run meanwhile join it, so that
//! the kernel does not verify a gate for each of them. As root:
//!
//!     cargo run --release -p kernel --example keeper

use std::error::Error;
use std::io::{self, Read as _};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use kernel::gate::{Gate, Lock};
use kernel::session::SessionOptions;
use kernel::{extensions, precall, wire};

const EVERYTHING: u32 = wire::LENS
    | wire::LENS_SITES
    | wire::LENS_SLOW
    | wire::LENS_SAMPLE
    | wire::LENS_IN_BAND
    | wire::LENS_FLAME
    | wire::LENS_FLAME_CPU
    | wire::LENS_FILES
    | wire::LENS_TRACE
    | wire::LENS_WHY
    | wire::GUARD
    | wire::GUARD_SCOPED
    | wire::SERVICE
    | wire::SERVICE_FILES
    | wire::PLUGIN
    | wire::PLUGIN_EXIT;

/// How often a process that holds the gate tends it (`Gate::tend`).
const TEND: Duration = Duration::from_millis(200);

fn main() -> Result<(), Box<dyn Error>> {
    kernel::quiet();
    let lock = Lock::take()?;
    let mut gate =
        Gate::open(&lock, EVERYTHING | precall::available_mechanisms(), &extensions::ALL)?;
    // Other processes join a gate only if a session shows that it is in use.
    let session =
        gate.start_session(&lock, &SessionOptions { mask: wire::LENS, ..Default::default() })?;
    drop(lock);
    println!("ready");
    let (ended, end) = mpsc::channel();
    thread::spawn(move || {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        let _ = ended.send(());
    });
    while end.recv_timeout(TEND) == Err(RecvTimeoutError::Timeout) {
        gate.tend()?;
    }
    gate.end_session(&session)?;
    Ok(())
}
