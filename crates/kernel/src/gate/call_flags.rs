//! The properties of calls that the gate needs. One table has the bits of the calls of all ABIs, by
//! call index. The calls are listed here by name, and their numbers are looked up for each ABI.

use calls::Abi;

use super::file_use::OPEN;
use crate::wire;

/// The bits of each call ([`wire::call_flag`] or [`wire::guard_precall`]), by call index.
pub type CallFlags = [u32; wire::CALL_INDICES as usize];

const FLAGS: [(u32, &[&str]); 11] = [
    (wire::CALL_EXECVE, &["execve", "execveat"]),
    (wire::CALL_SIGRETURN, &["sigreturn", "rt_sigreturn"]),
    (wire::CALL_RESTART, &["restart_syscall"]),
    (wire::CALL_OPENS, &OPEN),
    (
        wire::CALL_SENDS,
        &[
            "write",
            "writev",
            "sendfile",
            "sendfile64",
            "sendto",
            "sendmsg",
            "sendmmsg",
            "splice",
            "socketcall",
        ],
    ),
    (
        wire::CALL_SETS_USER,
        &["setuid", "setreuid", "setresuid", "setuid32", "setreuid32", "setresuid32"],
    ),
    (wire::CALL_IO_URING, &["io_uring_setup", "io_uring_enter"]),
    (wire::CALL_THIRD_DESCRIPTOR, &["splice"]),
    (wire::CALL_REQUESTS_PACE, &["getppid"]),
    (
        wire::CALL_HAS_DESCRIPTOR,
        &[
            "read",
            "readv",
            "recvfrom",
            "recvmsg",
            "recvmmsg",
            "recvmmsg_time64",
            "epoll_wait",
            "epoll_pwait",
            "epoll_pwait2",
            "accept",
            "accept4",
        ],
    ),
    (wire::CALL_NEVER_RETURNS, &["exit", "exit_group"]),
];

/// Sets bits of the calls with these names, in every ABI that has them.
pub(crate) fn mark(table: &mut CallFlags, names: &[&str], bits: u32) {
    for abi in Abi::ALL {
        for number in names.iter().filter_map(|name| calls::number(abi, name)) {
            table[(abi as u32 * wire::CALLS_PER_ABI + number) as usize] |= bits;
        }
    }
}

/// The bits of [`wire::call_flag`] of each call.
pub fn call_flags() -> CallFlags {
    let mut table = [0; wire::CALL_INDICES as usize];
    for (flag, names) in FLAGS {
        mark(&mut table, names, flag);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers in x86-64, i386 and x32, from arch/x86/entry/syscalls/syscall_{64,32}.tbl.
    const NUMBERS: [(u32, [&[u32]; 3]); 11] = [
        (wire::CALL_EXECVE, [&[59, 322], &[11, 358], &[520, 545]]),
        (wire::CALL_SIGRETURN, [&[15], &[119, 173], &[513]]),
        (wire::CALL_RESTART, [&[219], &[0], &[219]]),
        (
            wire::CALL_OPENS,
            [&[2, 85, 257, 304, 437], &[5, 8, 295, 342, 437], &[2, 85, 257, 304, 437]],
        ),
        (
            wire::CALL_SENDS,
            [
                &[1, 20, 40, 44, 46, 275, 307],
                &[4, 102, 146, 187, 239, 313, 345, 369, 370],
                &[1, 40, 44, 275, 516, 518, 538],
            ],
        ),
        (wire::CALL_SETS_USER, [&[105, 113, 117], &[23, 70, 164, 203, 208, 213], &[105, 113, 117]]),
        (wire::CALL_IO_URING, [&[425, 426], &[425, 426], &[425, 426]]),
        (wire::CALL_THIRD_DESCRIPTOR, [&[275], &[313], &[275]]),
        (wire::CALL_REQUESTS_PACE, [&[110], &[64], &[110]]),
        (
            wire::CALL_HAS_DESCRIPTOR,
            [
                &[0, 19, 43, 45, 47, 232, 281, 288, 299, 441],
                &[3, 145, 256, 319, 337, 364, 371, 372, 417, 441],
                &[0, 43, 232, 281, 288, 441, 515, 517, 519, 537],
            ],
        ),
        (wire::CALL_NEVER_RETURNS, [&[60, 231], &[1, 252], &[60, 231]]),
    ];

    #[test]
    fn each_flag_is_set_for_its_calls_only() {
        let table = call_flags();
        for (flag, numbers) in NUMBERS {
            let marked: Vec<u32> = (0..wire::CALL_INDICES)
                .filter(|index| table[*index as usize] & flag != 0)
                .collect();
            let expected: Vec<u32> = (0..)
                .zip(numbers)
                .flat_map(|(abi, numbers)| {
                    numbers.iter().map(move |number| abi * wire::CALLS_PER_ABI + number)
                })
                .collect();
            assert_eq!(marked, expected, "{flag:#x}");
        }
    }

    #[test]
    fn flags_leave_the_precall_bits_free() {
        assert!(call_flags().iter().all(|flags| flags & wire::PRECALL_BITS == 0));
    }
}
