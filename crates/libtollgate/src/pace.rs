//! Tasks with deadlines (docs/pace.md).
//!
//! Each function makes one system call, getppid with arguments that it ignores. The gate sees these
//! calls of gated threads. Without a gate, they do nothing. All functions may be called by any
//! thread and in signal handlers.

use std::cell::Cell;
use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use control::task_type_id;

// bpf/wire/pace.h, PACE_MAGIC and enum pace_operation.
const MAGIC: u64 = 0x544f_4c4c_5041_4345;
const BEGIN: u64 = 1;
const END: u64 = 2;
const END_AND_BEGIN: u64 = 3;
const SET_DEADLINE: u64 = 4;
const NAME_TYPE: u64 = 5;
/// bpf/wire/pace.h, PACE_NAME_LEN without the terminating NUL
const NAME_BYTES: usize = 63;

/// The number of the latest task of this process. It is the upper half of the task's ID.
static LATEST: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The ID of the task that this thread has ended last, unless its next task uses the lower
    /// half; 0: none.
    static ENDED: Cell<u64> = const { Cell::new(0) };
}

/// A type of tasks, such as the frames of a game. Its deadline and target are in the file of rules
/// that Tollgate uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskType(u64);

/// A task that has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Task(u64);

fn request(operation: u64, a: u64, b: u64, c: u64) {
    // SAFETY: getppid ignores its arguments.
    unsafe { libc::syscall(libc::SYS_getppid, MAGIC, operation, a, b, c) };
}

/// A task with a new ID. The gate begins a task faster if the lower half of its ID is that of the
/// task that has just ended (bpf/wire/pace.h). `ended` is the ID of that task; 0: there is none.
fn new_task(ended: u64) -> Task {
    let number = LATEST.fetch_add(1, Ordering::Relaxed) + 1;
    let lower = if ended == 0 { number } else { ended };
    // 0 is no ID.
    Task((number << 32 | lower & u64::from(u32::MAX)).max(1))
}

impl TaskType {
    /// The type with this name. Tollgate uses the first 63 bytes of the name: names that do not
    /// differ there are one type.
    pub fn new(name: &CStr) -> Self {
        let bytes = name.to_bytes();
        let id = task_type_id(&bytes[..bytes.len().min(NAME_BYTES)]);
        request(NAME_TYPE, id, name.as_ptr().addr() as u64, 0);
        Self(id)
    }

    /// The type as a number, for [`TaskType::from_id`].
    pub fn id(self) -> u64 {
        self.0
    }

    /// The type with this number.
    pub fn from_id(id: u64) -> Self {
        Self(id)
    }

    /// Begins a task. Until the task ends, the calling thread works on it, and so do the threads
    /// that this thread wakes or creates meanwhile. If the calling thread works on another task
    /// that the program has begun, the new task is nested in that one: the work counts for both,
    /// and the thread continues the outer task when the new one ends.
    pub fn begin(self) -> Task {
        let task = new_task(ENDED.take());
        request(BEGIN, self.0, task.0, 0);
        task
    }
}

impl Task {
    /// The task as a number, for [`Task::from_id`].
    pub fn id(self) -> u64 {
        self.0
    }

    /// The task with this number.
    pub fn from_id(id: u64) -> Self {
        Self(id)
    }

    /// Ends the task. Any thread of the process may do so. If the task has ended already, nothing
    /// happens.
    pub fn end(self) {
        request(END, self.0, 0, 0);
        ENDED.set(self.0);
    }

    /// Ends the task and begins the next one, with one system call.
    pub fn end_and_begin(self, next: TaskType) -> Self {
        let task = new_task(self.0);
        request(END_AND_BEGIN, self.0, task.0, next.0);
        task
    }

    /// Changes the time from the task's beginning to its deadline.
    pub fn set_deadline(self, deadline: Duration) {
        let ns = u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX);
        request(SET_DEADLINE, self.0, ns, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_of_a_long_name_is_not_used() {
        let of = |name: &CStr| TaskType::new(name).id();
        let long = c"1234567890123456789012345678901234567890123456789012345678901234";
        assert_eq!(
            of(long),
            of(CStr::from_bytes_with_nul(&[&long.to_bytes()[..63], b"\0"].concat()).unwrap())
        );
        assert_ne!(of(c"a"), of(c"b"));
    }

    #[test]
    fn tasks_have_different_ids() {
        let kind = TaskType::new(c"test");
        let (first, second) = (kind.begin(), kind.begin());
        let third = second.end_and_begin(kind);
        first.set_deadline(Duration::from_millis(5));
        first.end();
        first.end();
        third.end();
        assert!(first != second && second != third && first != third);
    }
}
