//! The arguments, held against what the kernel says of its own calls.

use calls::{Abi, Kind, arguments, number};

/// Parameters whose name or type misleads, and what they are.
const EXCEPTIONS: &[(&str, usize, Kind)] = &[
    ("close_range", 0, Kind::Int), // a bound, need not be open
    ("close_range", 1, Kind::Int),
    ("execveat", 0, Kind::DirFd), // called fd
    ("mq_open", 0, Kind::Path),   // called u_name
    ("mq_unlink", 0, Kind::Path),
    ("pidfd_getfd", 1, Kind::Int), // of another process
    ("umask", 0, Kind::Mode),      // an int
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

/// Calls whose parameter `name` names a file; elsewhere it names something else.
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

/// What a parameter can be, from its type and name.
fn possible(call: &str, index: usize, parameter: &str) -> Vec<Kind> {
    if let Some(exception) = EXCEPTIONS.iter().find(|exception| (exception.0, exception.1) == (call, index)) {
        return vec![exception.2];
    }
    let (kind, name) = parameter.rsplit_once(' ').expect(parameter);
    let kind = kind.trim_start_matches("const ");
    let path = PATHS.contains(&name) || name == "name" && PATH_IS_NAME.contains(&call);
    match kind {
        "char*" if path => vec![Kind::Path],
        _ if kind.contains('*') => vec![Kind::Hex],
        "umode_t" => vec![Kind::Mode],
        "mqd_t" => vec![Kind::Fd],
        _ if DIRECTORIES.contains(&name) => vec![Kind::DirFd],
        _ if name.contains("fd") && name != "nfds" || name == "fildes" => vec![Kind::Fd],
        _ if WIDE.contains(&kind) => vec![Kind::Long, Kind::Hex],
        _ => vec![Kind::Int, Kind::Hex],
    }
}

#[test]
fn the_kernel_agrees() {
    let text = include_str!("../src/signatures-x86_64.txt");
    let mut checked = 0;
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (call, parameters) = line.split_once(':').expect(line);
        let parameters: Vec<_> = parameters.split(',').map(str::trim).filter(|p| !p.is_empty()).collect();
        let kinds = arguments(Abi::X86_64, number(Abi::X86_64, call).expect(call));
        let count = calls::argument_count(Abi::X86_64, number(Abi::X86_64, call).unwrap());
        assert_eq!(count, parameters.len(), "{line}");
        for (i, parameter) in parameters.iter().enumerate() {
            let possible = possible(call, i, parameter);
            assert!(possible.contains(&kinds[i]), "{call}: {parameter}: {:?}, not {possible:?}", kinds[i]);
        }
        checked += 1;
    }
    assert_eq!(checked, 360);
}
