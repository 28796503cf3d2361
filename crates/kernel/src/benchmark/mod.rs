//! Micro-benchmarks: small exercises whose time depends on the system-call boundary.

mod calls;
mod processes;
mod switches;
mod tasks;
mod unit;

pub use unit::{BenchmarkFn, spin};

/// An exercise that consists of equal units of work.
#[derive(Debug)]
pub struct Benchmark {
    /// Its name on the command line and in reports.
    pub name: &'static str,
    /// The noun for one unit, such as "call".
    pub unit: &'static str,
    /// Which part of the kernel it stresses, in words.
    pub stresses: &'static str,
    /// Whether a unit consists of calls and context switches only, so that its toll can be given as
    /// a multiple of the floor.
    pub in_floors: bool,
    /// The maximum number of units of a batch.
    pub max_units: u32,
    prepare: fn() -> BenchmarkFn,
    subtrahend: Option<fn() -> BenchmarkFn>,
    before: Option<fn() -> BenchmarkFn>,
    after: Option<fn() -> BenchmarkFn>,
}

/// A batch of this number of units takes much longer than any clock needs.
const MAX_UNITS: u32 = 1 << 20;

impl Benchmark {
    /// Opens the files and starts the threads that the benchmark needs. Returns the function that
    /// runs its units.
    ///
    /// # Panics
    /// If the system refuses one of them.
    pub fn prepare(&self) -> BenchmarkFn {
        (self.prepare)()
    }

    /// The part of a unit's work that the benchmark is not about. The time of as many units of this
    /// function is to be subtracted. `None` if there is no such part.
    pub fn subtrahend(&self) -> Option<BenchmarkFn> {
        self.subtrahend.map(|prepare| prepare())
    }

    /// What has to be done before each batch of units, outside of its time.
    pub fn before(&self) -> Option<BenchmarkFn> {
        self.before.map(|prepare| prepare())
    }

    /// What has to be done after each batch of units, outside of its time.
    pub fn after(&self) -> Option<BenchmarkFn> {
        self.after.map(|prepare| prepare())
    }

    const fn with_subtrahend(self, less: fn() -> BenchmarkFn) -> Self {
        Self { subtrahend: Some(less), ..self }
    }

    const fn with_before(self, before: fn() -> BenchmarkFn) -> Self {
        Self { before: Some(before), ..self }
    }

    const fn with_after(self, after: fn() -> BenchmarkFn) -> Self {
        Self { after: Some(after), ..self }
    }

    const fn with_at_most(self, max_units: u32) -> Self {
        Self { max_units, ..self }
    }
}

/// The benchmark with this name.
pub fn find(name: &str) -> Option<&'static Benchmark> {
    BENCHMARKS.iter().find(|benchmark| benchmark.name == name)
}

const fn benchmark(
    name: &'static str,
    unit: &'static str,
    in_floors: bool,
    prepare: fn() -> BenchmarkFn,
    stresses: &'static str,
) -> Benchmark {
    Benchmark {
        name,
        unit,
        stresses,
        in_floors,
        max_units: MAX_UNITS,
        prepare,
        subtrahend: None,
        before: None,
        after: None,
    }
}

/// All benchmarks, in the order of reports.
#[rustfmt::skip]
pub const BENCHMARKS: &[Benchmark] = &[
    benchmark("getpid", "call", true, calls::getpid, "only the system-call boundary"),
    benchmark("getppid", "call", true, calls::getppid, "the system-call boundary, and a read \
        under RCU"),
    benchmark("getrusage", "call", true, calls::getrusage, "a call that sums the thread's \
        accounts"),
    benchmark("gettimeofday", "call", true, calls::gettimeofday, "the clock by a real system \
        call, not by the vDSO"),
    benchmark("sigaction", "call", true, calls::sigaction, "installing a signal handler"),
    benchmark("signal", "signal", false, calls::signal, "a signal to itself, its handler and its \
        return"),
    benchmark("write-null", "call", true, calls::write_null, "a write of one byte to /dev/null: \
        the file layer"),
    benchmark("pread-128", "call", true, || calls::pread(128), "a read of 128 bytes from the page \
        cache"),
    benchmark("pread-256", "call", true, || calls::pread(256), "a read of 256 bytes from the page \
        cache"),
    benchmark("pread-512", "call", true, || calls::pread(512), "a read of 512 bytes from the page \
        cache"),
    benchmark("pread-1k", "call", true, || calls::pread(1024), "a read of 1 KiB from the page \
        cache"),
    benchmark("pread-2k", "call", true, || calls::pread(2048), "a read of 2 KiB from the page \
        cache"),
    benchmark("pread-4k", "call", true, || calls::pread(4096), "a read of 4 KiB from the page \
        cache"),
    benchmark("poll", "call", true, calls::poll_ready, "a poll of a pipe that can be read"),
    benchmark("open-close", "pair", true, calls::open_close, "path look-up and descriptors: open \
        and close of /dev/null"),
    benchmark("unix-message", "message", true, calls::unix_message, "one byte sent and received \
        by one thread over a Unix stream connection: two calls"),
    benchmark("tcp-message", "message", true, calls::tcp_message, "one byte sent and received by \
        one thread over a loopback TCP connection: two calls"),
    benchmark("pipe-ping-pong", "round trip", true, switches::pipe_ping_pong, "two sleeps, four \
        calls, two context switches"),
    benchmark("futex-wake", "round trip", true, switches::futex_wake, "two threads that wake each \
        other in turn"),
    benchmark("switch", "switch", true, switches::sched_yield, "two threads on one processor that \
        yield to each other; the time of a getppid is subtracted")
        .with_subtrahend(calls::getppid),
    benchmark("task", "task", true, tasks::begin_end, "a task with a deadline that the program \
        begins and ends: two calls"),
    benchmark("next-task", "task", true, tasks::next, "the same, if it ends when the next one \
        begins: one call"),
    benchmark("task-begin", "task", true, tasks::begin, "only the beginning of a task: one call")
        .with_after(tasks::end).with_at_most(tasks::MAX_AT_ONCE),
    benchmark("task-end", "task", true, tasks::end, "only the end of a task: one call")
        .with_before(tasks::begin).with_at_most(tasks::MAX_AT_ONCE),
    benchmark("schedule", "schedule", false, tasks::schedule, "no call at all: a schedule of five \
        speeds from the work of 100 tasks"),
    benchmark("fork", "process", false, processes::fork, "fork, a child that exits at once, wait"),
    benchmark("fork-exec", "process", false, processes::fork_exec, "fork, with execve of a static \
        program that makes one call"),
    benchmark("fork-exec-true", "process", false, processes::fork_exec_true, "fork-exec of \
        /bin/true, which loads a library first"),
    benchmark("fork-exec-sh", "process", false, processes::fork_exec_sh, "fork-exec, started by \
        /bin/sh -c"),
    benchmark("cpu-loop", "1,000 steps", false, calls::cpu_loop, "no call at all: shows time \
        taken from user mode"),
];
