//! Benchmarks of tasks with deadlines: those that a program begins and ends itself (`wire/pace.h`),
//! and their schedules.

use std::hint::black_box;

use ::pace::{
    DistributionModel, Estimator, Level, Levels, SampleSelection, ScheduleRule, TypeKnowledge,
};

use super::unit::BenchmarkFn;
use crate::wire;

const TYPE: u64 = 1;

/// Requests an operation on a task. Without a gate, this is a getppid.
fn request(operation: u32, arguments: [u64; 3]) {
    let [first, second, third] = arguments;
    // SAFETY: getppid ignores its arguments and cannot fail.
    unsafe {
        libc::syscall(
            libc::SYS_getppid,
            wire::PACE_MAGIC,
            u64::from(operation),
            first,
            second,
            third,
        );
    }
}

/// The ID of a thread's next task after the one that has just ended, as the library chooses it
/// (`libtollgate`, `pace.rs`).
fn next_id(id: u64) -> u64 {
    id + (1 << 32)
}

/// The maximum number of tasks that [`begin`] may leave for [`end`]: half of the gate's table, so
/// that there is room for others.
pub const MAX_AT_ONCE: u32 = wire::PACE_TASKS / 2;

/// The IDs of tasks of which none has ended before another one begins, as the library chooses them.
/// They are always the same ones.
fn ids(tasks: u32) -> impl DoubleEndedIterator<Item = u64> {
    (1..=tasks).map(u64::from).map(|number| number << 32 | number)
}

/// Tasks that begin, each within the one before, and that [`end`] ends.
pub fn begin() -> BenchmarkFn {
    Box::new(|units| ids(units).for_each(|id| request(wire::PACE_BEGIN, [TYPE, id, 0])))
}

/// The ends of the tasks that [`begin`] has begun, from the innermost one on.
pub fn end() -> BenchmarkFn {
    Box::new(|units| ids(units).rev().for_each(|id| request(wire::PACE_END, [id, 0, 0])))
}

/// A task that begins and ends.
pub fn begin_end() -> BenchmarkFn {
    let mut id = 1;
    Box::new(move |units| {
        for _ in 0..units {
            id = next_id(id);
            request(wire::PACE_BEGIN, [TYPE, id, 0]);
            request(wire::PACE_END, [id, 0, 0]);
        }
    })
}

/// A task that ends when the next one begins.
pub fn next() -> BenchmarkFn {
    let mut id = 1;
    Box::new(move |units| {
        request(wire::PACE_BEGIN, [TYPE, id, 0]);
        for _ in 0..units {
            let next = next_id(id);
            request(wire::PACE_END_AND_BEGIN, [id, next, TYPE]);
            id = next;
        }
        // Other benchmarks of this thread must not run within a task.
        request(wire::PACE_END, [id, 0, 0]);
    })
}

/// The number of tasks from which [`schedule`] estimates the distribution of work.
const SAMPLES: usize = 100;

/// A schedule for the five speeds of vm/pstates.asl. As in `tollgate run --pace`, it is made from
/// the work of the latest tasks.
pub fn schedule() -> BenchmarkFn {
    let level = |(ghz, watts): (f64, f64)| Level { hz: ghz * 1e9, watts };
    let levels = [(0.8, 4.0), (1.2, 7.0), (1.8, 12.0), (2.4, 20.0), (3.0, 30.0)].map(level);
    let levels = Levels::new(levels.into(), 0.0).expect("valid levels");
    assert_eq!(levels.worthwhile().len(), 5);
    // 20 to 80 million cycles, not in order: 37 and 100 have no common divisor.
    let samples = (0..SAMPLES).map(|task| 2e7 + (task * 37 % SAMPLES) as f64 * 6e5).collect();
    let estimator = Estimator {
        selection: SampleSelection::Recent(SAMPLES),
        model: DistributionModel::Samples,
    };
    let knowledge = TypeKnowledge { target: 0.95, estimator, samples };
    Box::new(move |units| {
        for _ in 0..units {
            // The slowest speed does half of the pre-deadline cycles by this deadline.
            black_box(black_box(&knowledge).schedule(&levels, ScheduleRule::Lambda, 0.05));
        }
    })
}
