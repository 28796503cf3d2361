//! Tasks on an emulated processor (`emulated_speed`).

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tollgate::pace::TaskType;

use crate::arguments::{Arguments, HOUR_MS};
use crate::clock::nap;
use crate::emulated_speed::{MHZ, Registers, failed, work};
use crate::failure::{Failure, Outcome, os_failure};
use crate::output::print_line;
use crate::pipe::Pipe;
use crate::reading::pin_to;

const MAX_TASKS: u64 = 100_000;

/// Numbers from 0 to 1, always the same ones (Knuth's MMIX generator).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Prints how many tasks met the deadline, and the part of the tasks' time at each speed.
pub fn slowed_tasks(mut arguments: Arguments) -> Outcome {
    let tasks = arguments.number("N", 1..=MAX_TASKS)?;
    let period = arguments.number("PERIOD_MS", 1..=HOUR_MS)?;
    let deadline = arguments.number("DEADLINE_MS", 1..=HOUR_MS)?;
    let seed = arguments.number("SEED", 0..=u64::MAX)?;
    arguments.end()?;
    let registers = Registers::open().map_err(failed)?;
    let kind = TaskType::new(c"frame");
    let (mut numbers, mut at_speed, mut met) = (Numbers(seed), [0_u64; MHZ.len()], 0);
    let period = Duration::from_millis(period);
    let mut next = Instant::now();
    for _ in 0..tasks {
        // From a tenth to six tenths of the deadline at the fastest speed; most tasks are short.
        let part = 0.1 + 0.5 * numbers.next().powi(2);
        let cycles = (deadline as f64 * 1e6 * part) as u64 * MHZ[0] / 1000;
        let began = Instant::now();
        let task = kind.begin();
        work(&registers, cycles, &mut at_speed).map_err(failed)?;
        // The end of a task wakes the pacing, which may then run before this thread.
        let took = began.elapsed();
        task.end();
        met += u64::from(took <= Duration::from_millis(deadline));
        next += period;
        let left = next.saturating_duration_since(Instant::now());
        nap((left.as_millis() as u64).max(1))?;
    }
    let parts: Vec<_> = at_speed[1..].iter().map(ToString::to_string).collect();
    print_line(&format!("{met} {}", parts.join(" ")))
}

/// A task that is not ended.
pub fn forgotten_task(mut arguments: Arguments) -> Outcome {
    let ms = arguments.number("MS", 1..=HOUR_MS)?;
    arguments.end()?;
    TaskType::new(c"frame").begin();
    nap(ms)
}

/// Pairs of threads that switch all the time, one pair on each processor.
pub fn busy_pairs(mut arguments: Arguments) -> Outcome {
    let ms = arguments.number("MS", 1..=HOUR_MS)?;
    arguments.end()?;
    let end = Instant::now() + Duration::from_millis(ms);
    // SAFETY: a plain call.
    let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    thread::scope(|scope| {
        let threads: Vec<_> =
            (0..cpus as u64).map(|cpu| scope.spawn(move || pair_on(cpu, end))).collect();
        let outcomes = threads.into_iter().map(|one| one.join().expect("it does not panic"));
        outcomes.fold(Ok(()), Result::and)
    })
}

fn pair_on(cpu: u64, end: Instant) -> Outcome {
    pin_to(cpu)?;
    let (to, back) = (Pipe::new()?, Pipe::new()?);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        // A thread starts on the processors of the one that has created it.
        let other = scope.spawn(|| {
            loop {
                to.receive()?;
                if is_over.load(Ordering::SeqCst) {
                    return Ok(());
                }
                back.send()?;
            }
        });
        while Instant::now() < end {
            to.send()?;
            back.receive()?;
        }
        is_over.store(true, Ordering::SeqCst);
        to.send()?;
        other.join().expect("it does not panic")
    })
}

/// Loads a kernel module.
pub fn load_module(mut arguments: Arguments) -> Outcome {
    let path = arguments.path("FILE")?;
    arguments.end()?;
    let file = File::open(&path).map_err(|error| os_failure("open the module", error))?;
    use std::os::fd::AsRawFd as _;
    // SAFETY: an open file, a string, and flags.
    let loaded =
        unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), c"".as_ptr(), 0) };
    match io::Error::last_os_error() {
        _ if loaded == 0 => Ok(()),
        error if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
        error => Err::<(), Failure>(os_failure("load the module", error)),
    }
}
