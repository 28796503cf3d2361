//! An emulated processor whose speed is a number in a register. Work takes as long as it would on a
//! processor with this speed.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use crate::cpu_time::thread_ns;
use crate::failure::{Failure, os_failure};

/// The speeds of vm/pstates.asl by the content of the register, in MHz. It is 0 until a speed has
/// been set.
pub const MHZ: [u64; 6] = [3000, 3000, 2400, 1800, 1200, 800];
/// The register of the first processor (vm/pstates.asl).
const PORT: u64 = 0xe0;

pub fn failed(error: io::Error) -> Failure {
    os_failure("read the registers of the processors", error)
}

/// The registers of the processors.
pub struct Registers {
    ports: File,
    /// All processors have the first one's.
    are_shared: bool,
}

impl Registers {
    pub fn open() -> io::Result<Self> {
        let second = Path::new("/sys/devices/system/cpu/cpufreq/policy1");
        Ok(Self { ports: File::open("/dev/port")?, are_shared: !second.exists() })
    }

    /// The index in [`MHZ`] of the processor that runs this thread.
    fn state(&self) -> io::Result<usize> {
        // SAFETY: a plain call.
        let running = unsafe { libc::sched_getcpu() };
        let cpu = if self.are_shared { 0 } else { running as u64 };
        let mut state = [0];
        self.ports.read_exact_at(&mut state, PORT + cpu)?;
        Ok(usize::from(state[0]).min(MHZ.len() - 1))
    }

    /// The speed of the processor that runs this thread, in MHz.
    pub fn mhz(&self) -> io::Result<u64> {
        Ok(MHZ[self.state()?])
    }
}

/// Uses processor time until this number of cycles has passed at the speeds in the registers.
pub fn work(registers: &Registers, cycles: u64, at_speed: &mut [u64]) -> io::Result<()> {
    let (mut done, mut before) = (0, thread_ns());
    while done < cycles {
        let state = registers.state()?;
        let now = thread_ns();
        done += (now - before) * MHZ[state] / 1000;
        at_speed[state.max(1)] += now - before;
        before = now;
    }
    Ok(())
}
