//! Compares the arguments with the kernel's description of its calls.

use calls::{Abi, ArgumentKind, arguments, number};

/// Parameters whose name or type is misleading, with their actual kinds.
const EXCEPTIONS: &[(&str, usize, ArgumentKind)] = &[
    ("close_range", 0, ArgumentKind::Int), // a bound, which need not be open
    ("close_range", 1, ArgumentKind::Int),
    ("execveat", 0, ArgumentKind::DirFd), // called fd
    ("mq_open", 0, ArgumentKind::Path),   // called u_name
    ("mq_unlink", 0, ArgumentKind::Path),
    ("pidfd_getfd", 1, ArgumentKind::Int), // a descriptor of another process
    ("umask", 0, ArgumentKind::Mode),      // an int
];

/// Parameters that a path is relative to.
const DIRECTORIES: &[&str] = &["dfd", "olddfd", "newdfd", "from_dfd", "to_dfd", "mountdirfd"];

/// Parameters that name a file.
const PATHS: &[&str] = &[
    "filename",
    "pathname",
    "path",
    "oldname",
    "newname",
    "from_pathname",
    "to_pathname",
    "new_root",
    "put_old",
    "dev_name",
    "dir_name",
    "special",
    "specialfile",
];

/// Calls whose parameter `name` names a file; in other calls it names something else.
const PATH_IS_NAME: &[&str] = &["acct", "name_to_handle_at", "umount2"];

/// Types of 64 bits.
const WIDE: &[&str] = &[
    "aio_context_t",
    "cap_user_data_t",
    "cap_user_header_t",
    "loff_t",
    "long",
    "off_t",
    "size_t",
    "unsigned long",
    "__u64",
];

/// The possible kinds of a parameter, by its type and name.
fn possible(call: &str, index: usize, parameter: &str) -> Vec<ArgumentKind> {
    if let Some(exception) =
        EXCEPTIONS.iter().find(|exception| (exception.0, exception.1) == (call, index))
    {
        return vec![exception.2];
    }
    let (kind, name) = parameter.rsplit_once(' ').expect(parameter);
    let kind = kind.trim_start_matches("const ");
    let path = PATHS.contains(&name) || name == "name" && PATH_IS_NAME.contains(&call);
    match kind {
        "char*" if path => vec![ArgumentKind::Path],
        _ if kind.contains('*') => vec![ArgumentKind::Hex],
        "umode_t" => vec![ArgumentKind::Mode],
        "mqd_t" => vec![ArgumentKind::Fd],
        _ if DIRECTORIES.contains(&name) => vec![ArgumentKind::DirFd],
        _ if name.contains("fd") && name != "nfds" || name == "fildes" => vec![ArgumentKind::Fd],
        _ if WIDE.contains(&kind) => vec![ArgumentKind::Long, ArgumentKind::Hex],
        _ => vec![ArgumentKind::Int, ArgumentKind::Hex],
    }
}

#[test]
fn signatures_match_the_kernel() {
    let text = include_str!("../src/signatures-x86_64.txt");
    let mut checked = 0;
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (call, parameters) = line.split_once(':').expect(line);
        let parameters: Vec<_> =
            parameters.split(',').map(str::trim).filter(|p| !p.is_empty()).collect();
        let kinds = arguments(Abi::X86_64, number(Abi::X86_64, call).expect(call));
        let count = calls::argument_count(Abi::X86_64, number(Abi::X86_64, call).unwrap());
        assert_eq!(count, parameters.len(), "{line}");
        for (i, parameter) in parameters.iter().enumerate() {
            let possible = possible(call, i, parameter);
            assert!(
                possible.contains(&kinds[i]),
                "{call}: {parameter}: {:?}, not {possible:?}",
                kinds[i]
            );
        }
        checked += 1;
    }
    assert_eq!(checked, 360);
}
