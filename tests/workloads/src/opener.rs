//! A process that opens files on command, by each of the calls that can open one.

use std::ffi::{CStr, CString};
use std::io::{self, BufRead as _};

use libc::{AT_FDCWD, O_CLOEXEC, O_PATH, O_RDONLY, c_long};

use crate::arguments::Arguments;
use crate::cpu_time::{thread_ns, work_for};
use crate::failure::{Failure, Outcome, failed, os_failure};
use crate::output::print_line;
use crate::raw;

/// arch/x86/entry/syscalls/syscall_32.tbl
const I386_OPEN: i32 = 5;

/// Executes each line of its input, and replies with a line: "OPERATION PATH", or "work MS".
pub fn opener(arguments: Arguments) -> Outcome {
    arguments.end()?;
    print_line("ready")?;
    for line in io::stdin().lock().lines() {
        let line = line.map_err(|error| os_failure("read stdin", error))?;
        let (operation, path) =
            line.split_once(' ').ok_or_else(|| failed("a line is \"OPERATION PATH\""))?;
        print_line(&carry_out(operation, path)?)?;
    }
    Ok(())
}

fn carry_out(operation: &str, path: &str) -> Result<String, Failure> {
    if operation == "work" {
        let began = thread_ns();
        work_for(path.parse().map_err(|_| failed("a time in milliseconds"))?);
        return Ok((thread_ns() - began).to_string());
    }
    let path = CString::new(path).map_err(|_| failed("a NUL in a path"))?;
    let result = open(operation, &path)?;
    let said = if result < 0 { io::Error::last_os_error().to_string() } else { "done".into() };
    if result > 2 {
        // SAFETY: one that was opened for this line.
        unsafe { libc::close(result as i32) };
    }
    Ok(said)
}

/// Returns a descriptor, 0 if the call has none, or -1.
fn open(operation: &str, path: &CStr) -> Result<c_long, Failure> {
    let text = path.as_ptr();
    // SAFETY: NUL-terminated paths, and a structure with its size.
    Ok(unsafe {
        match operation {
            "open" => libc::syscall(libc::SYS_open, text, O_RDONLY),
            "openat" => libc::syscall(libc::SYS_openat, AT_FDCWD, text, O_RDONLY),
            "openat2" => {
                let how = [O_CLOEXEC as u64, 0, 0];
                libc::syscall(libc::SYS_openat2, AT_FDCWD, text, how.as_ptr(), size_of_val(&how))
            }
            "creat" => libc::syscall(libc::SYS_creat, text, 0o600),
            "i386-open" => i386_open(path)?,
            "only-path" => libc::syscall(libc::SYS_openat, AT_FDCWD, text, O_PATH),
            "chroot" => {
                let root = libc::chroot(text);
                if root == 0 { libc::chdir(c"/".as_ptr()) } else { root }.into()
            }
            "mount" => mount(path).into(),
            _ => return Err(failed(format!("there is no {operation:?}"))),
        }
    })
}

/// Opens a path in memory that a 32-bit call can address.
fn i386_open(path: &CStr) -> Result<c_long, Failure> {
    const BYTES: usize = 4096;
    let (protection, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT,
    );
    // SAFETY: new memory at an address of the kernel's choice.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, protection, flags, -1, 0) };
    if memory == libc::MAP_FAILED || path.count_bytes() >= BYTES {
        return Err(os_failure("have memory for a path", io::Error::last_os_error()));
    }
    // SAFETY: the new memory is longer than the path, and is unmapped afterwards.
    let result = unsafe {
        memory.cast::<u8>().copy_from_nonoverlapping(path.as_ptr().cast(), path.count_bytes() + 1);
        let result = raw::int80(I386_OPEN, memory as u32, O_RDONLY as u32);
        libc::munmap(memory, BYTES);
        result
    };
    if result >= 0 {
        return Ok(result.into());
    }
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() = -result };
    Ok(-1)
}

/// Mounts a file system in memory that only this process sees.
fn mount(at: &CStr) -> libc::c_int {
    let private = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: NUL-terminated strings.
    unsafe {
        if libc::unshare(libc::CLONE_NEWNS) < 0
            || libc::mount(
                c"none".as_ptr(),
                c"/".as_ptr(),
                std::ptr::null(),
                private,
                std::ptr::null(),
            ) < 0
        {
            return -1;
        }
        libc::mount(c"none".as_ptr(), at.as_ptr(), c"tmpfs".as_ptr(), 0, std::ptr::null())
    }
}
