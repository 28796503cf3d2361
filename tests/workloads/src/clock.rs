//! Naps, and what a stretch of work took by each clock that the kernel offers a thread.

use crate::failure::{Failure, Outcome, check, os_failure};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::ptr;
use std::time::{Duration, Instant};

/// One raw relative nanosleep. It is not repeated when a signal handler cuts it short: no workload
/// that naps has a handler, and a loop here would make the number of calls vary.
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
    // SAFETY: `time` is a valid place for the result.
    let read = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    check(read, "read the thread's CPU clock")?;
    Ok(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// The first two fields of schedstat: nanoseconds on a CPU, and runnable but waiting for one.
#[derive(Clone, Copy, Default)]
struct SchedStat {
    run_ns: u64,
    wait_ns: u64,
}

/// All clocks at one moment.
#[derive(Clone, Copy)]
struct Stamp {
    wall: Instant,
    cpu_ns: u64,
    schedstat: Option<SchedStat>,
    /// How long the reading took: in this the clocks may disagree.
    blur: Duration,
}

/// Measures stretches of work by wall clock, thread CPU clock and schedstat.
pub struct Meter {
    schedstat: Option<File>,
}

/// What the stretches added up to. Without `CONFIG_SCHED_INFO` or /proc there is no schedstat.
#[derive(Default)]
pub struct Spent {
    wall_ns: u64,
    cpu_ns: u64,
    schedstat: Option<SchedStat>,
}

/// Stamps taken at each end of a stretch. On a busy CPU the thread may lose its place between two
/// clocks, most of all directly after a sleep; the number is fixed so that the calls are.
const STAMPS: usize = 4;

impl Meter {
    pub fn new() -> Self {
        Meter { schedstat: File::open("/proc/thread-self/schedstat").ok() }
    }

    /// Runs `work` and adds what it took to `spent`.
    pub fn measure(&self, spent: &mut Spent, work: impl FnOnce() -> Outcome) -> Outcome {
        let before = self.sharp_stamps()?;
        work()?;
        let after = self.sharp_stamps()?;
        // The two that are nearest to the work.
        if let (Some(before), Some(after)) = (before.last(), after.first()) {
            spent.add(before, after);
        }
        Ok(())
    }

    /// Some stamps, in order, without those during which the thread lost the CPU.
    fn sharp_stamps(&self) -> Result<Vec<Stamp>, Failure> {
        let mut stamps = Vec::with_capacity(STAMPS);
        for _ in 0..STAMPS {
            stamps.push(self.stamp()?);
        }
        let sharpest = stamps.iter().map(|stamp| stamp.blur).min();
        stamps.retain(|stamp| sharpest.is_some_and(|sharpest| stamp.blur <= 4 * sharpest));
        Ok(stamps)
    }

    fn stamp(&self) -> Result<Stamp, Failure> {
        let wall = Instant::now();
        // Reading the CPU clock also brings schedstat's run time up to date, which otherwise
        // lags by up to a tick: so schedstat comes second.
        let cpu_ns = thread_cpu_ns()?;
        let schedstat = self.read_schedstat()?;
        Ok(Stamp { wall, cpu_ns, schedstat, blur: wall.elapsed() })
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
        let mut fields = text.split_whitespace().map(str::parse);
        match (fields.next(), fields.next()) {
            (Some(Ok(run_ns)), Some(Ok(wait_ns))) => Ok(Some(SchedStat { run_ns, wait_ns })),
            _ => Ok(None),
        }
    }
}

impl Spent {
    fn add(&mut self, before: &Stamp, after: &Stamp) {
        self.wall_ns += (after.wall - before.wall).as_nanos() as u64;
        self.cpu_ns += after.cpu_ns - before.cpu_ns;
        if let (Some(before), Some(after)) = (before.schedstat, after.schedstat) {
            let sum = self.schedstat.get_or_insert_default();
            sum.run_ns += after.run_ns - before.run_ns;
            sum.wait_ns += after.wait_ns - before.wait_ns;
        }
    }

    /// The members of a JSON object, without its braces.
    pub fn json_members(&self) -> String {
        let (run, wait) = match self.schedstat {
            Some(stat) => (stat.run_ns.to_string(), stat.wait_ns.to_string()),
            None => ("null".to_owned(), "null".to_owned()),
        };
        format!(r#""wall_ns":{},"cpu_ns":{},"run_ns":{run},"wait_ns":{wait}"#, self.wall_ns, self.cpu_ns)
    }
}
