//! Benchmarks of tasks with deadlines that a program begins and ends itself (`wire/pace.h`).

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

/// A task that begins and ends.
pub fn begin_end() -> BenchmarkFn {
    let mut id = 0;
    Box::new(move |units| {
        for _ in 0..units {
            id += 1;
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
            request(wire::PACE_END_AND_BEGIN, [id, id + 1, TYPE]);
            id += 1;
        }
        // Other benchmarks of this thread must not run within a task.
        request(wire::PACE_END, [id, 0, 0]);
    })
}
