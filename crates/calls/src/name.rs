//! Names and numbers of calls.
//!
//! The x86-64 and i386 names are those of the `syscalls` crate, which is generated from the
//! kernel's `arch/x86/entry/syscalls/syscall_{64,32}.tbl`. Version 0.8.1 has all calls of Linux
//! 6.18. The newest are 336 `uprobe` (x86-64 only) and 469 `file_setattr`. The crate has no table
//! for x32, so this file lists where x32 differs from x86-64, according to `syscall_64.tbl`.

use std::borrow::Cow;
use std::str::FromStr;

use syscalls::{x86, x86_64};

use crate::Abi;

/// All known numbers of all ABIs are below this one.
pub const LIMIT: u32 = 548;

/// The first number that only x32 has.
const X32_FIRST: u32 = 512;

/// The calls with the numbers 512 to 547, which only x32 uses. x86-64 has calls of the same names
/// at other numbers, and x32 does not have those numbers.
const X32_OWN: [&str; 36] = [
    "rt_sigaction",
    "rt_sigreturn",
    "ioctl",
    "readv",
    "writev",
    "recvfrom",
    "sendmsg",
    "recvmsg",
    "execve",
    "ptrace",
    "rt_sigpending",
    "rt_sigtimedwait",
    "rt_sigqueueinfo",
    "sigaltstack",
    "timer_create",
    "mq_notify",
    "kexec_load",
    "waitid",
    "set_robust_list",
    "get_robust_list",
    "vmsplice",
    "move_pages",
    "preadv",
    "pwritev",
    "rt_tgsigqueueinfo",
    "recvmmsg",
    "sendmmsg",
    "process_vm_readv",
    "process_vm_writev",
    "setsockopt",
    "getsockopt",
    "io_setup",
    "io_submit",
    "execveat",
    "preadv2",
    "pwritev2",
];

/// Calls of x86-64 that x32 never had. The kernel implements none of them today.
const NOT_X32: [&str; 11] = [
    "_sysctl",
    "create_module",
    "epoll_ctl_old",
    "epoll_wait_old",
    "get_kernel_syms",
    "get_thread_area",
    "nfsservctl",
    "query_module",
    "set_thread_area",
    "uselib",
    "vserver",
];

/// The name of a call.
pub fn name(abi: Abi, number: u32) -> Option<&'static str> {
    match abi {
        Abi::X86_64 => Some(x86_64::Sysno::new(number as usize)?.name()),
        Abi::I386 => {
            let name = x86::Sysno::new(number as usize)?.name();
            // The crate writes the name of call 17 as a raw identifier: `r#break`.
            Some(name.strip_prefix("r#").unwrap_or(name))
        }
        Abi::X32 => match number.checked_sub(X32_FIRST) {
            Some(own) => X32_OWN.get(own as usize).copied(),
            None => name(Abi::X86_64, number).filter(|name| shared_with_x32(name)),
        },
    }
}

/// The number of a call.
pub fn number(abi: Abi, name: &str) -> Option<u32> {
    match abi {
        Abi::X86_64 => Some(x86_64::Sysno::from_str(name).ok()?.id() as u32),
        Abi::I386 if name == "break" => Some(x86::Sysno::r#break.id() as u32),
        Abi::I386 if name == "r#break" => None,
        Abi::I386 => Some(x86::Sysno::from_str(name).ok()?.id() as u32),
        Abi::X32 => match (X32_FIRST..).zip(X32_OWN).find(|(_, own)| *own == name) {
            Some((number, _)) => Some(number),
            None => number(Abi::X86_64, name).filter(|_| shared_with_x32(name)),
        },
    }
}

/// The name of a call, or `syscall_N`.
pub fn display_name(abi: Abi, number: u32) -> Cow<'static, str> {
    match name(abi, number) {
        Some(name) => Cow::Borrowed(name),
        None => Cow::Owned(format!("syscall_{number}")),
    }
}

/// All known calls of an ABI, by number.
pub fn all(abi: Abi) -> impl Iterator<Item = (u32, &'static str)> {
    (0..LIMIT).filter_map(move |number| Some((number, name(abi, number)?)))
}

/// Whether a call is entered but never exited. A call that returns to another address, such as
/// `rt_sigreturn` or a successful `execve`, does have an exit.
pub fn never_returns(abi: Abi, number: u32) -> bool {
    matches!(name(abi, number), Some("exit" | "exit_group"))
}

fn shared_with_x32(name: &str) -> bool {
    !X32_OWN.contains(&name) && !NOT_X32.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_number_is_another_call_elsewhere() {
        assert_eq!(name(Abi::X86_64, 0), Some("read"));
        assert_eq!(name(Abi::I386, 0), Some("restart_syscall"));
        assert_eq!(name(Abi::X86_64, 11), Some("munmap"));
        assert_eq!(name(Abi::I386, 11), Some("execve"));
        assert_eq!(name(Abi::X32, 11), Some("munmap"));
    }

    #[test]
    fn newest_calls_of_linux_6_18() {
        assert_eq!(name(Abi::X86_64, 335), Some("uretprobe"));
        assert_eq!(name(Abi::X86_64, 336), Some("uprobe"));
        for abi in Abi::ALL {
            assert_eq!(name(abi, 463), Some("setxattrat"));
            assert_eq!(name(abi, 467), Some("open_tree_attr"));
            assert_eq!(name(abi, 469), Some("file_setattr"));
        }
        assert_eq!(all(Abi::X86_64).last(), Some((469, "file_setattr")));
        assert_eq!(all(Abi::I386).last(), Some((469, "file_setattr")));
        assert_eq!(all(Abi::X32).last(), Some((547, "pwritev2")));
    }

    #[test]
    fn table_sizes() {
        assert_eq!(all(Abi::X86_64).count(), 383);
        assert_eq!(all(Abi::I386).count(), 459);
        assert_eq!(all(Abi::X32).count(), 383 - NOT_X32.len());
    }

    #[test]
    fn x32_has_its_own_numbers() {
        assert_eq!(name(Abi::X32, 16), None);
        assert_eq!(name(Abi::X32, 514), Some("ioctl"));
        assert_eq!(name(Abi::X86_64, 514), None);
        assert_eq!(number(Abi::X32, "ioctl"), Some(514));
        assert_eq!(number(Abi::X32, "read"), Some(0));
        assert_eq!(number(Abi::X32, "uselib"), None);
        assert_eq!(name(Abi::X32, 548), None);
    }

    #[test]
    fn rust_keywords_are_valid_names() {
        assert_eq!(name(Abi::I386, 17), Some("break"));
        assert_eq!(number(Abi::I386, "break"), Some(17));
        assert_eq!(number(Abi::I386, "r#break"), None);
    }

    #[test]
    fn unknown_numbers_are_printed() {
        assert_eq!(display_name(Abi::X86_64, 1), "write");
        assert_eq!(display_name(Abi::X86_64, 400), "syscall_400");
        assert_eq!(display_name(Abi::I386, u32::MAX), "syscall_4294967295");
        assert_eq!(display_name(Abi::X32, u32::MAX), "syscall_4294967295");
    }

    #[test]
    fn names_round_trip() {
        for abi in Abi::ALL {
            for n in 0..2 * LIMIT {
                if let Some(name) = name(abi, n) {
                    assert_eq!(number(abi, name), Some(n), "{abi} {name}");
                }
            }
        }
    }

    #[test]
    fn all_numbers_fit_the_table() {
        for abi in Abi::ALL {
            assert!((LIMIT..1 << 16).all(|n| name(abi, n).is_none()));
        }
    }

    #[test]
    fn only_exits_never_return() {
        let never = |abi| {
            all(abi)
                .filter(move |&(n, _)| never_returns(abi, n))
                .map(|(n, _)| n)
                .collect::<Vec<_>>()
        };
        assert_eq!(never(Abi::X86_64), [60, 231]);
        assert_eq!(never(Abi::I386), [1, 252]);
        assert_eq!(never(Abi::X32), [60, 231]);
    }
}
