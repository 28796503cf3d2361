//! Benchmarks that create processes, run them and wait for their end.

use std::ffi::{CStr, CString};
use std::os::fd::AsRawFd;

use super::calls::memory_file;
use super::unit::BenchmarkFn;

/// An ELF64 program that calls exit(0), as small as the format allows: its header, one program
/// header, its code. Sources: System V gABI, chapters 4 and 5; the x86-64 psABI for the machine's
/// number.
#[rustfmt::skip]
const EXITS: [u8; 129] = {
    // xor edi, edi; mov eax, exit_group; syscall
    const CODE: [u8; 9] = [0x31, 0xff, 0xb8, 0xe7, 0, 0, 0, 0x0f, 0x05];
    let header: [u8; 120] = [
        0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, // 64 bits, little-endian
        2, 0, 62, 0, 1, 0, 0, 0, 0x78, 0, 0x40, 0, 0, 0, 0, 0,      // an executable for x86-64,
                                                                    // from 0x400078 on
        64, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,            // program headers at 64,
                                                                    // no sections
        0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 0, 0, 0, 0, 0, 0,           // one of them
        1, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,             // load, read and execute,
                                                                    // from the file's start
        0, 0, 0x40, 0, 0, 0, 0, 0, 0, 0, 0x40, 0, 0, 0, 0, 0,       // to 0x400000
        129, 0, 0, 0, 0, 0, 0, 0, 129, 0, 0, 0, 0, 0, 0, 0,         // all 129 bytes
        0, 0x10, 0, 0, 0, 0, 0, 0,                                  // a page's alignment
    ];
    let mut program = [0; 129];
    let mut i = 0;
    while i < program.len() {
        program[i] = if i < 120 { header[i] } else { CODE[i - 120] };
        i += 1;
    }
    program
};

/// A benchmark whose unit is a child process, which calls `become_other`.
fn children(mut become_other: impl FnMut() + 'static) -> BenchmarkFn {
    Box::new(move |units| {
        for _ in 0..units {
            // SAFETY: the child only executes or exits.
            unsafe {
                let pid = libc::fork();
                if pid == 0 {
                    become_other();
                    libc::_exit(127);
                }
                let mut status = 0;
                libc::waitpid(pid, &mut status, 0);
                assert!(
                    pid > 0 && status == 0,
                    "a child failed: fork gave {pid}, its status is {status:#x}"
                );
            }
        }
    })
}

pub fn fork() -> BenchmarkFn {
    children(|| {
        // SAFETY: exits without running destructors.
        unsafe { libc::_exit(0) }
    })
}

pub fn fork_exec() -> BenchmarkFn {
    let program = memory_file(c"tollgate-exits", &EXITS);
    let arguments = [c"exits".as_ptr(), std::ptr::null()];
    children(move || {
        // SAFETY: static strings in NULL-terminated arrays, and an open descriptor.
        unsafe {
            libc::syscall(
                libc::SYS_execveat,
                program.as_raw_fd(),
                c"".as_ptr(),
                arguments.as_ptr(),
                [std::ptr::null::<libc::c_char>()].as_ptr(),
                libc::AT_EMPTY_PATH,
            );
        }
    })
}

/// Returns only if it fails.
///
/// # Safety
/// `arguments` are NUL-terminated strings, and NULL ends them.
unsafe fn execute(path: &CStr, arguments: &[*const libc::c_char]) {
    // SAFETY: as promised; there is no environment.
    unsafe {
        libc::execve(path.as_ptr(), arguments.as_ptr(), [std::ptr::null::<libc::c_char>()].as_ptr())
    };
}

pub fn fork_exec_true() -> BenchmarkFn {
    let arguments = [c"true".as_ptr(), std::ptr::null()];
    // SAFETY: static strings in a NULL-terminated array.
    children(move || unsafe { execute(c"/bin/true", &arguments) })
}

pub fn fork_exec_sh() -> BenchmarkFn {
    let program = memory_file(c"tollgate-exits", &EXITS);
    let path = CString::new(format!("/proc/self/fd/{}", program.as_raw_fd())).expect("no NUL");
    children(move || {
        // The closure owns the descriptor that the path names, so that it stays open.
        let _ = &program;
        let arguments = [c"sh".as_ptr(), c"-c".as_ptr(), path.as_ptr(), std::ptr::null()];
        // SAFETY: strings that live as long as this closure, in a NULL-terminated array.
        unsafe { execute(c"/bin/sh", &arguments) };
    })
}
