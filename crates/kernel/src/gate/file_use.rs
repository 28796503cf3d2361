//! What calls do with the files of their descriptors. The calls are listed here by name.

use calls::{Abi, ArgumentKind};

use crate::wire;

/// The result is a number of bytes, which were read from the file of the first descriptor.
const READ: [&str; 7] = ["read", "pread64", "readv", "preadv", "preadv2", "recvfrom", "recvmsg"];
/// They were written to it.
const WRITE: [&str; 7] =
    ["write", "pwrite64", "writev", "pwritev", "pwritev2", "sendto", "sendmsg"];
/// The result is a number of messages.
const RECEIVE_MESSAGES: [&str; 2] = ["recvmmsg", "recvmmsg_time64"];
const SEND_MESSAGES: [&str; 1] = ["sendmmsg"];
/// The bytes go from the file of the second descriptor to that of the first one.
const TO_FIRST: [&str; 2] = ["sendfile", "sendfile64"];
/// They go from that of the first descriptor to that of the second one.
const TO_SECOND: [&str; 3] = ["splice", "tee", "copy_file_range"];
/// The result is a descriptor of a file.
pub const OPEN: [&str; 5] = ["open", "creat", "openat", "open_by_handle_at", "openat2"];

/// The bits of [`wire::file_use`] of a call.
pub fn file_use(abi: Abi, number: u32) -> u32 {
    let Some(name) = calls::name(abi, number) else { return 0 };
    let descriptors = calls::arguments(abi, number)
        .into_iter()
        .filter(|kind| matches!(kind, ArgumentKind::Fd | ArgumentKind::DirFd))
        .take(wire::ARG_NAMES as usize)
        .enumerate();
    // A folder to which a path is relative is not what the call is about, unless the path is empty
    // (AT_EMPTY_PATH), as in fstat(3). The path follows the descriptor.
    let path_follows_folder =
        matches!(calls::arguments(abi, number)[..], [ArgumentKind::DirFd, ArgumentKind::Path, ..]);
    let has_path = path_follows_folder && !OPEN.contains(&name);
    let path = if has_path { wire::FILE_HAS_PATH } else { 0 };
    let used =
        descriptors.filter(|(_, kind)| *kind == ArgumentKind::Fd).fold(0, |bits, (index, _)| {
            bits | wire::FILE_IS_USED << (index as u32 * wire::FILE_SECOND)
        });
    let read_second = wire::FILE_IS_READ << wire::FILE_SECOND;
    let written_second = wire::FILE_IS_WRITTEN << wire::FILE_SECOND;
    let groups: [(&[&str], u32); 7] = [
        (&READ, wire::FILE_IS_READ),
        (&WRITE, wire::FILE_IS_WRITTEN),
        (&RECEIVE_MESSAGES, wire::FILE_IS_READ | wire::FILE_HAS_MESSAGES),
        (&SEND_MESSAGES, wire::FILE_IS_WRITTEN | wire::FILE_HAS_MESSAGES),
        (&TO_FIRST, wire::FILE_IS_WRITTEN | read_second),
        (&TO_SECOND, wire::FILE_IS_READ | written_second),
        (&OPEN, wire::FILE_IS_OPENED),
    ];
    let groups = groups.into_iter().filter(|(names, _)| names.contains(&name));
    groups.fold(used | path, |bits, (_, bit)| bits | bit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const USED: u32 = wire::FILE_IS_USED;
    const BOTH: u32 = USED | USED << wire::FILE_SECOND;
    const READ_SECOND: u32 = wire::FILE_IS_READ << wire::FILE_SECOND;
    const WRITTEN_SECOND: u32 = wire::FILE_IS_WRITTEN << wire::FILE_SECOND;

    #[test]
    fn calls_use_the_files_of_their_descriptors() {
        for (name, bits) in [
            ("read", USED | wire::FILE_IS_READ),
            ("pwritev2", USED | wire::FILE_IS_WRITTEN),
            ("close", USED),
            ("mmap2", USED),
            ("epoll_wait", USED),
            ("sendmmsg", USED | wire::FILE_IS_WRITTEN | wire::FILE_HAS_MESSAGES),
            ("sendfile", BOTH | wire::FILE_IS_WRITTEN | READ_SECOND),
            ("splice", BOTH | wire::FILE_IS_READ | WRITTEN_SECOND),
            ("dup2", BOTH),
            ("openat", wire::FILE_IS_OPENED),
            ("fstatat64", wire::FILE_HAS_PATH),
            ("newfstatat", wire::FILE_HAS_PATH),
            ("statx", wire::FILE_HAS_PATH),
            ("stat", 0),
            ("getppid", 0),
        ] {
            for abi in Abi::ALL {
                if let Some(number) = calls::number(abi, name) {
                    assert_eq!(file_use(abi, number), bits, "{name} {abi}");
                }
            }
        }
        // The arguments of i386's mmap are in memory.
        for (abi, bits) in [(Abi::X86_64, USED), (Abi::I386, 0)] {
            let number = calls::number(abi, "mmap").expect("the ABI has it");
            assert_eq!(file_use(abi, number), bits);
        }
        assert_eq!(file_use(Abi::X86_64, 9999), 0);
    }

    #[test]
    fn each_name_is_that_of_a_call() {
        let all =
            [&READ[..], &WRITE, &RECEIVE_MESSAGES, &SEND_MESSAGES, &TO_FIRST, &TO_SECOND, &OPEN];
        for name in all.concat() {
            let numbers = Abi::ALL.into_iter().filter_map(|abi| calls::number(abi, name));
            assert!(numbers.count() > 0, "{name}");
        }
    }
}
