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

/// All but the mechanisms of pre-call holds, which depend on the kernel. A test that needs more
/// loads a generation of its own. If such a test kills the holder of its generation before other
/// processes hold it, the tests beside it lose calls.
const EVERYTHING: u32 = (wire::AWAITS_BEGIN - 1) & !(wire::GUARD_LSM | wire::GUARD_CGROUP);

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
