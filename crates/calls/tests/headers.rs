//! Compares the numbers with a second source, the kernel's C headers on this machine. The headers
//! may be older than the tables but must not contradict them.

use std::fs;
use std::path::Path;

use calls::{Abi, all, display_operation, name, number};

/// The numbers that a header defines, without the x32 bit.
fn header(file: &str) -> Vec<(String, u32)> {
    let path = Path::new("/usr/include/x86_64-linux-gnu/asm").join(file);
    let text = fs::read_to_string(&path);
    let text = text.unwrap_or_else(|error| {
        panic!(
            "{}: {error}; Debian has it in linux-libc-dev ('make setup' installs it)",
            path.display()
        )
    });
    let defined = text.lines().filter_map(|line| {
        let (name, value) = line.strip_prefix("#define __NR_")?.split_once(' ')?;
        let number = value.trim_start_matches("(__X32_SYSCALL_BIT + ").trim_end_matches(')');
        Some((name.to_owned(), number.trim().parse().expect(line)))
    });
    defined.collect()
}

fn agrees(abi: Abi, file: &str) {
    let defined = header(file);
    assert!(defined.len() > 300, "{file} defines only {} numbers", defined.len());
    for (call, n) in &defined {
        assert_eq!(name(abi, *n), Some(call.as_str()), "{abi} {n}");
        assert_eq!(number(abi, call), Some(*n), "{abi} {call}");
    }
    // Calls that the header lacks must be newer than the header.
    let newest = defined.iter().map(|(_, n)| *n).filter(|n| *n < 512).max().unwrap();
    let lacks = |n: u32| !defined.iter().any(|(_, known)| *known == n);
    let older = all(abi).filter(|&(n, _)| n < newest && lacks(n));
    let older: Vec<_> = older.filter(|(_, name)| !["uretprobe", "uprobe"].contains(name)).collect();
    assert!(older.is_empty(), "{abi} {older:?}");
}

#[test]
fn x86_64() {
    agrees(Abi::X86_64, "unistd_64.h");
}

#[test]
fn i386() {
    agrees(Abi::I386, "unistd_32.h");
}

#[test]
fn x32() {
    agrees(Abi::X32, "unistd_x32.h");
}

#[test]
fn operations_of_io_uring() {
    let text = fs::read_to_string("/usr/include/linux/io_uring.h").expect("linux-libc-dev has it");
    let operations: Vec<_> = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("IORING_OP_")?.strip_suffix(','))
        .take_while(|name| *name != "LAST")
        .collect();
    assert!(operations.len() > 40, "the header has only {} operations", operations.len());
    for (number, name) in operations.iter().enumerate() {
        assert_eq!(display_operation(number as u32), *name, "{number}");
    }
}
