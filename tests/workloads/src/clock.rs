//! Sleeps, and measurements of work by each clock that the kernel offers a thread.

use crate::failure::{Failure, Outcome, check, os_failure};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::ptr;
use std::time::{Duration, Instant};

/// One raw relative nanosleep. It is not repeated when a signal handler interrupts it: no workload
/// that naps has a handler, and a loop would make the number of calls vary.
pub fn nap(milliseconds: u64) -> Outcome {
    let duration = Duration::from_millis(milliseconds);
    let request = libc::timespec {
        tv_sec: duration.as_secs() as libc::time_t,
        tv_nsec: duration.subsec_nanos().into(),
    };
    let no_remainder: *mut libc::timespec = ptr::null_mut();
    // SAFETY: `request` is a valid timespec, and a null remainder is allowed.
    let slept = unsafe { libc::syscall(libc::SYS_nanosleep, &request, no_remainder) };
    check(slept, "sleep")?;
    Ok(())
}

/// CPU time of the calling thread, in nanoseconds.
pub fn thread_cpu_ns() -> Result<u64, Failure> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid destination for the result.
    let read = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    check(read, "read the thread's CPU clock")?;
    Ok(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// The fields of schedstat: nanoseconds on a CPU, nanoseconds runnable but waiting for one, and how
/// often the thread got a CPU.
#[derive(Clone, Copy, Default)]
struct SchedStat {
    run_ns: u64,
    wait_ns: u64,
    slices: u64,
}

/// All clocks at the same time.
#[derive(Clone, Copy)]
struct ClockReading {
    wall: Instant,
    cpu_ns: u64,
    schedstat: Option<SchedStat>,
}

/// Measures work by wall clock, thread CPU clock and schedstat.
pub struct ClockMeter {
    schedstat: Option<File>,
}

/// The sum of all measurements. Without `CONFIG_SCHED_INFO` or /proc there is no schedstat.
#[derive(Default)]
pub struct ClockDelta {
    wall_ns: u64,
    cpu_ns: u64,
    schedstat: Option<SchedStat>,
}

/// Readings before a measurement, of which the last counts. Reading the CPU clock lets the
/// scheduler check whether the thread's slice is over; if it is, the thread loses the CPU at the
/// first of them and not at the last.
const STAMPS_BEFORE: usize = 4;

impl ClockMeter {
    pub fn new() -> Self {
        ClockMeter { schedstat: File::open("/proc/thread-self/schedstat").ok() }
    }

    /// Runs `work` and adds what it took to `spent`.
    pub fn measure(&self, spent: &mut ClockDelta, work: impl FnOnce() -> Outcome) -> Outcome {
        let mut before = self.stamp()?;
        for _ in 1..STAMPS_BEFORE {
            before = self.stamp()?;
        }
        work()?;
        spent.add(&before, &self.stamp()?);
        Ok(())
    }

    fn stamp(&self) -> Result<ClockReading, Failure> {
        let wall = Instant::now();
        // The waiting time is read before the CPU clock, because that reading may cost the thread
        // the CPU. The run time is read after it, because it would otherwise lag by up to a tick.
        let waited = self.read_schedstat()?;
        let cpu_ns = thread_cpu_ns()?;
        let ran = self.read_schedstat()?;
        let schedstat =
            waited.zip(ran).map(|(waited, ran)| SchedStat { run_ns: ran.run_ns, ..waited });
        Ok(ClockReading { wall, cpu_ns, schedstat })
    }

    fn read_schedstat(&self) -> Result<Option<SchedStat>, Failure> {
        let Some(file) = &self.schedstat else {
            return Ok(None);
        };
        let mut buffer = [0; 128];
        let length = file
            .read_at(&mut buffer, 0)
            .map_err(|error| os_failure("read /proc/thread-self/schedstat", error))?;
        let text = String::from_utf8_lossy(&buffer[..length]);
        let fields: Vec<u64> =
            text.split_whitespace().filter_map(|field| field.parse().ok()).collect();
        match fields[..] {
            [run_ns, wait_ns, slices] => Ok(Some(SchedStat { run_ns, wait_ns, slices })),
            _ => Ok(None),
        }
    }
}

impl ClockDelta {
    fn add(&mut self, before: &ClockReading, after: &ClockReading) {
        self.wall_ns += (after.wall - before.wall).as_nanos() as u64;
        self.cpu_ns += after.cpu_ns - before.cpu_ns;
        if let (Some(before), Some(after)) = (before.schedstat, after.schedstat) {
            let sum = self.schedstat.get_or_insert_default();
            sum.run_ns += after.run_ns - before.run_ns;
            sum.wait_ns += after.wait_ns - before.wait_ns;
            sum.slices += after.slices - before.slices;
        }
    }

    /// The members of a JSON object, without its braces.
    pub fn json_members(&self) -> String {
        let [run, wait, slices] = match self.schedstat {
            Some(stat) => [stat.run_ns, stat.wait_ns, stat.slices].map(|number| number.to_string()),
            None => ["null"; 3].map(str::to_owned),
        };
        format!(
            r#""wall_ns":{},"cpu_ns":{},"run_ns":{run},"wait_ns":{wait},"slices":{slices}"#,
            self.wall_ns, self.cpu_ns
        )
    }
}
