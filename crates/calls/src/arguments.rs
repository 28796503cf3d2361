//! The kind of each argument of a call, as far as a report needs it:
//! `read(3</var/log/x>, 0x7f…, 4096)`.
//!
//! Calls are described by name, because most have the same arguments in every ABI. `i386` and `X32`
//! list the calls whose arguments differ.

mod i386;
mod signature;
mod x86_64;

use signature::CallSignature;
pub use signature::{AT_FDCWD, ArgumentKind};

use crate::{Abi, name};

/// The calls whose arguments differ in x32. There, a file position is one argument. In x86-64, the
/// kernel takes it as two halves, although one register would hold it.
static X32: [CallSignature; 4] = {
    use ArgumentKind::{Fd, Hex, Long};
    [
        ("preadv", &[Fd, Hex, Long, Long]),
        ("preadv2", &[Fd, Hex, Long, Long, Hex]),
        ("pwritev", &[Fd, Hex, Long, Long]),
        ("pwritev2", &[Fd, Hex, Long, Long, Hex]),
    ]
};

/// The kinds of a call's arguments. Arguments that the call does not have, and all those of an
/// unknown call, are [`ArgumentKind::None`].
pub fn arguments(abi: Abi, number: u32) -> [ArgumentKind; 6] {
    let mut kinds = [ArgumentKind::None; 6];
    let known = signature_of(abi, number);
    kinds[..known.len()].copy_from_slice(known);
    kinds
}

/// The number of arguments of a call; 0 for an unknown call.
pub fn argument_count(abi: Abi, number: u32) -> usize {
    signature_of(abi, number).len()
}

/// Bit `i` is set if argument `i` is [`ArgumentKind::Fd`] or [`ArgumentKind::DirFd`].
pub fn fd_mask(abi: Abi, number: u32) -> u8 {
    mask(abi, number, |kind| matches!(kind, ArgumentKind::Fd | ArgumentKind::DirFd))
}

/// Bit `i` is set if argument `i` is [`ArgumentKind::Path`].
pub fn path_mask(abi: Abi, number: u32) -> u8 {
    mask(abi, number, |kind| kind == ArgumentKind::Path)
}

fn mask(abi: Abi, number: u32, wanted: impl Fn(ArgumentKind) -> bool) -> u8 {
    let bits = signature_of(abi, number).iter().enumerate().filter(|(_, kind)| wanted(**kind));
    bits.fold(0, |mask, (i, _)| mask | 1 << i)
}

/// Whether a call has other arguments in this ABI than in x86-64.
pub(crate) fn differs_from_x86_64(abi: Abi, name: &str) -> bool {
    find(specific(abi), name).is_some()
}

fn specific(abi: Abi) -> &'static [CallSignature] {
    match abi {
        Abi::X86_64 => &[],
        Abi::I386 => i386::DIFFERENT,
        Abi::X32 => &X32,
    }
}

/// The signature of a call: the one that is specific to the ABI, or else that of x86-64.
fn signature_of(abi: Abi, number: u32) -> &'static [ArgumentKind] {
    let Some(name) = name(abi, number) else {
        return &[];
    };
    find(specific(abi), name).or_else(|| find(x86_64::CALLS, name)).unwrap_or(&[])
}

/// Finds a call by binary search: tables are sorted by name.
fn find(table: &[CallSignature], name: &str) -> Option<&'static [ArgumentKind]> {
    let at = table.binary_search_by_key(&name, |entry| entry.0).ok()?;
    Some(table[at].1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{all, number};

    fn of(abi: Abi, name: &str) -> [ArgumentKind; 6] {
        arguments(abi, number(abi, name).unwrap())
    }

    fn names(abi: Abi) -> BTreeSet<&'static str> {
        all(abi).map(|(_, name)| name).collect()
    }

    #[test]
    fn tables_are_sorted_and_hold_no_call_twice() {
        for table in [x86_64::CALLS, i386::DIFFERENT, &X32] {
            assert!(table.is_sorted_by(|a, b| a.0 < b.0));
        }
    }

    #[test]
    fn tables_hold_the_calls_that_exist_and_no_other() {
        let x86_64: BTreeSet<_> = x86_64::CALLS.iter().map(|entry| entry.0).collect();
        assert_eq!(x86_64, names(Abi::X86_64));

        let i386: BTreeSet<_> = i386::DIFFERENT.iter().map(|entry| entry.0).collect();
        assert!(i386.is_subset(&names(Abi::I386)), "{:?}", i386.difference(&names(Abi::I386)));
        let missing: Vec<_> = names(Abi::I386)
            .into_iter()
            .filter(|n| !i386.contains(n) && !x86_64.contains(n))
            .collect();
        assert!(missing.is_empty(), "{missing:?}");

        assert!(X32.iter().all(|entry| names(Abi::X32).contains(entry.0)));
    }

    #[test]
    fn no_entry_repeats_another_abi() {
        for entry in i386::DIFFERENT.iter().chain(&X32) {
            assert_ne!(find(x86_64::CALLS, entry.0), Some(entry.1), "{}", entry.0);
        }
    }

    #[test]
    fn at_calls_have_a_directory() {
        /// Names that end in "at" for another reason.
        const NOT_RELATIVE: [&str; 13] = [
            "cachestat",
            "creat",
            "fstat",
            "fstat64",
            "lstat",
            "lstat64",
            "oldfstat",
            "oldlstat",
            "oldstat",
            "shmat",
            "stat",
            "stat64",
            "ustat",
        ];
        for abi in Abi::ALL {
            let mut seen = 0;
            for (number, name) in all(abi) {
                let stem =
                    name.trim_end_matches("_time64").trim_end_matches(|c: char| c.is_ascii_digit());
                if !stem.ends_with("at") || NOT_RELATIVE.contains(&name) {
                    continue;
                }
                seen += 1;
                assert!(arguments(abi, number).contains(&ArgumentKind::DirFd), "{abi} {name}");
            }
            assert!(seen >= 25, "{abi}: {seen}");
        }
    }

    #[test]
    fn a_directory_comes_with_a_path() {
        for abi in Abi::ALL {
            for (number, name) in all(abi) {
                let kinds = arguments(abi, number);
                if kinds.contains(&ArgumentKind::DirFd) && name != "open_by_handle_at" {
                    assert!(path_mask(abi, number) != 0, "{abi} {name}");
                }
            }
        }
    }

    #[test]
    fn masks_match_the_signatures() {
        for abi in Abi::ALL {
            for number in 0..600 {
                let kinds = arguments(abi, number);
                assert!(
                    kinds
                        .iter()
                        .skip(argument_count(abi, number))
                        .all(|kind| *kind == ArgumentKind::None)
                );
                for (i, kind) in kinds.iter().enumerate() {
                    assert_eq!(
                        fd_mask(abi, number) >> i & 1 == 1,
                        matches!(kind, ArgumentKind::Fd | ArgumentKind::DirFd)
                    );
                    assert_eq!(path_mask(abi, number) >> i & 1 == 1, *kind == ArgumentKind::Path);
                }
            }
        }
    }

    /// The record of a slow call has room for two descriptors and two paths (bpf/wire/lens.h,
    /// ARG_NAMES).
    #[test]
    fn no_call_has_three_descriptors_or_paths() {
        for abi in Abi::ALL {
            for (number, name) in all(abi) {
                let most =
                    fd_mask(abi, number).count_ones().max(path_mask(abi, number).count_ones());
                assert!(most <= 2, "{abi} {name}");
            }
        }
    }

    #[test]
    fn common_calls() {
        use ArgumentKind::{DirFd, Fd, Hex, Long, Mode, None, Path};
        assert_eq!(of(Abi::X86_64, "read"), [Fd, Hex, Long, None, None, None]);
        assert_eq!(of(Abi::X86_64, "openat"), [DirFd, Path, Hex, Mode, None, None]);
        assert_eq!(fd_mask(Abi::X86_64, 326), 0b101, "copy_file_range");
        assert_eq!(fd_mask(Abi::X86_64, 265), 0b101, "linkat");
        assert_eq!(path_mask(Abi::X86_64, 265), 0b1010, "linkat");
        assert_eq!(fd_mask(Abi::X86_64, 9), 0b10000, "mmap");
        assert_eq!(fd_mask(Abi::X86_64, 266), 0b10, "symlinkat");
        assert_eq!(path_mask(Abi::X86_64, 266), 0b101, "symlinkat");
        assert_eq!(argument_count(Abi::X86_64, 39), 0, "getpid");
        assert_eq!(argument_count(Abi::X86_64, 400), 0, "unknown");
    }

    #[test]
    fn split_offsets_of_i386() {
        use ArgumentKind::{DirFd, Fd, Hex, Long, None, Path};
        assert_eq!(of(Abi::I386, "pread64"), [Fd, Hex, Long, Hex, Hex, None]);
        assert_eq!(of(Abi::I386, "fanotify_mark"), [Fd, Hex, Hex, Hex, DirFd, Path]);
        assert_eq!(of(Abi::X86_64, "fanotify_mark"), [Fd, Hex, Hex, DirFd, Path, None]);
        assert_eq!(of(Abi::I386, "mmap"), [Hex, None, None, None, None, None]);
        assert_eq!(of(Abi::I386, "mmap2"), of(Abi::X86_64, "mmap"));
        assert_eq!(of(Abi::I386, "chown32"), of(Abi::X86_64, "chown"));
        assert_eq!(of(Abi::I386, "futex_time64"), of(Abi::X86_64, "futex"));
    }

    #[test]
    fn positions_of_x32() {
        assert_eq!(argument_count(Abi::X86_64, 295), 5, "preadv");
        assert_eq!(argument_count(Abi::X32, 534), 4, "preadv");
        assert_eq!(argument_count(Abi::X32, 0), 3, "read");
    }

    #[test]
    fn registers_hold_more_than_the_value() {
        for register in [0xffff_ff9c, 0xffff_ffff_ffff_ff9c] {
            assert_eq!(ArgumentKind::DirFd.value(Abi::X86_64, register), i64::from(AT_FDCWD));
        }
        assert_eq!(ArgumentKind::Int.value(Abi::X86_64, 0xffff_ffff), -1);
        assert_eq!(ArgumentKind::Long.value(Abi::X86_64, 0xffff_ffff), 0xffff_ffff);
        assert_eq!(ArgumentKind::Long.value(Abi::I386, 0xffff_ffff), -1);
        assert_eq!(ArgumentKind::Mode.value(Abi::X86_64, 0x1_0000_01a4), 0o644);
        assert_eq!(ArgumentKind::Hex.value(Abi::I386, 0xffff_e000), 0xffff_e000);
        assert_eq!(ArgumentKind::Hex.value(Abi::X86_64, u64::MAX) as u64, u64::MAX);
    }
}
