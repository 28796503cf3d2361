//! Calls whose purpose is to wait.

/// The calls that wait for an event, another thread or a time, in the ABIs of 64 and 32 bits. A
/// read or write, or a call that takes a lock in the kernel, does something else and may have to
/// wait for it.
const WAITS: [&str; 40] = [
    "accept",
    "accept4",
    "clock_nanosleep",
    "clock_nanosleep_time64",
    "epoll_pwait",
    "epoll_pwait2",
    "epoll_wait",
    "epoll_wait_old",
    "futex",
    "futex_time64",
    "futex_wait",
    "futex_waitv",
    "io_getevents",
    "io_pgetevents",
    "io_pgetevents_time64",
    "io_uring_enter",
    "mq_timedreceive",
    "mq_timedreceive_time64",
    "msgrcv",
    "nanosleep",
    "_newselect",
    "pause",
    "poll",
    "ppoll",
    "ppoll_time64",
    "pselect6",
    "pselect6_time64",
    "restart_syscall",
    "rt_sigsuspend",
    "rt_sigtimedwait",
    "rt_sigtimedwait_time64",
    "select",
    "semop",
    "semtimedop",
    "semtimedop_time64",
    "sigsuspend",
    "vfork",
    "wait4",
    "waitid",
    "waitpid",
];

/// Whether the purpose of the call of this name is to wait. A thread that has nothing to do is in
/// such a call.
pub fn is_wait(name: &str) -> bool {
    WAITS.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Abi, number};

    #[test]
    fn all_names_are_those_of_calls() {
        for name in WAITS {
            let is_known = [Abi::X86_64, Abi::I386].iter().any(|abi| number(*abi, name).is_some());
            assert!(is_known, "{name}");
        }
        assert!(!is_wait("read") && !is_wait("nano"));
    }
}
