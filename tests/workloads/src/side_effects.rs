//! Calls for the guard to hold before they take effect: a normal routine, and then one call with a
//! side effect.

use crate::arguments::{Arguments, MAX_REPETITIONS};
use crate::failure::{Outcome, check, failed};
use crate::{raw, routine};
use libc::{c_int, c_long, c_void};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;

/// Addresses of memory that is mapped by the tested call, and before it.
const NEW_AREA: usize = 0x7e00_0000_0000;
const MEMORY: usize = 0x6e00_0000_0000;
/// Memory that 32-bit calls can address.
const LOW_MEMORY: usize = 0x1000_0000;
const PAGE: usize = 4096;

/// The user and group IDs that the calls set.
const OTHER_ID: c_long = 4242;

/// Numbers in the 32-bit table, and of connect in its socketcall.
const I386_UNLINK: i32 = 10;
const I386_SOCKETCALL: i32 = 102;
const I386_CONNECT: u32 = 3;

/// Resources for all calls, created in every run.
struct PreparedResources {
    stream: c_int,
    datagram: c_int,
    file: c_int,
    port: u16,
    victim: c_long,
}

fn address(last: u8, port: u16) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([127, 0, 0, last]) },
        sin_zero: [0; 8],
    }
}

fn map(address: usize, protection: c_int) -> Outcome {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: a mapping of its own, where nothing else is.
    let mapped = unsafe { libc::mmap(address as *mut c_void, PAGE, protection, flags, -1, 0) };
    if mapped as usize == address { Ok(()) } else { Err(failed("cannot map memory")) }
}

/// Makes the call; returns its result, or -1 with `errno` set.
fn call(number: c_long, arguments: [c_long; 6]) -> c_long {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the arguments are those of the call, with pointers to what outlives it.
    unsafe { libc::syscall(number, a, b, c, d, e, f) }
}

fn pointer<T: ?Sized>(value: &T) -> c_long {
    std::ptr::from_ref(value).cast::<u8>() as c_long
}

/// Makes a call of the 32-bit table, with the same results.
fn call_i386(number: i32, first: u32, second: u32) -> c_long {
    match c_long::from(raw::int80(number, first, second)) {
        error if error < 0 => {
            // SAFETY: the thread's own variable.
            unsafe { *libc::__errno_location() = -error as c_int };
            -1
        }
        result => result,
    }
}

/// Prepares the arguments of 32-bit calls: a name, an address, and socketcall's arguments.
fn prepare_low_memory(scene: &PreparedResources) -> Outcome {
    map(LOW_MEMORY, libc::PROT_READ | libc::PROT_WRITE)?;
    let connect =
        [scene.stream as u32, LOW_MEMORY as u32 + 256, size_of::<libc::sockaddr_in>() as u32];
    // SAFETY: three addresses within the page just mapped.
    unsafe {
        (LOW_MEMORY as *mut [u8; 8]).write(*b"removed\0");
        ((LOW_MEMORY + 256) as *mut libc::sockaddr_in).write(address(1, scene.port));
        ((LOW_MEMORY + 512) as *mut [u32; 3]).write(connect);
    }
    Ok(())
}

fn prepare(port: u16, victim: c_long) -> Result<PreparedResources, crate::failure::Failure> {
    // SAFETY: plain calls, with a name that ends.
    let [stream, datagram, file] = unsafe {
        [
            libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0),
            libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0),
            libc::open(c"there".as_ptr(), libc::O_WRONLY),
        ]
    };
    for descriptor in [stream, datagram, file] {
        check(descriptor, "open what the side effect needs")?;
    }
    let scene = PreparedResources { stream, datagram, file, port, victim };
    map(MEMORY, libc::PROT_READ | libc::PROT_WRITE)?;
    prepare_low_memory(&scene)?;
    Ok(scene)
}

#[rustfmt::skip]
fn perform(side_effect: &str, scene: &PreparedResources) -> Option<c_long> {
    use libc::*;
    let at = AT_FDCWD as c_long;
    let (removed, made, there) = (pointer(c"removed"), pointer(c"made"), pointer(c"there"));
    let (folder, other) = (pointer(c"folder"), c"./other");
    let PreparedResources { stream, datagram, file, port, victim } = *scene;
    let peer = |last, port| address(last, port);
    let length = size_of::<sockaddr_in>() as c_long;
    let words = [other.as_ptr(), c"exit".as_ptr(), c"7".as_ptr(), std::ptr::null()];
    let group = [OTHER_ID as gid_t];
    let map_flags = (MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE) as c_long;
    let executable = (PROT_READ | PROT_EXEC) as c_long;
    // BPF_MAP_CREATE of an array (2): keys and values of four bytes, one entry.
    let array = [2_u32, 4, 4, 1];
    let usr1 = SIGUSR1 as c_long;
    let to = peer(1, port);
    let own = peer(2, port);
    let flags = (O_CREAT | O_EXCL | O_WRONLY) as c_long;
    let new_area = NEW_AREA as c_long;
    let no_words = pointer(&words[3]);
    Some(match side_effect {
        "nothing" => 0,
        "execve" => call(SYS_execve, [pointer(other), pointer(&words), no_words, 0, 0, 0]),
        "create" => call(SYS_openat, [at, made, flags, 0o644, 0, 0]),
        "truncate" => call(SYS_openat, [at, there, (O_TRUNC | O_WRONLY) as c_long, 0, 0, 0]),
        "mkdir" => call(SYS_mkdir, [made, 0o755, 0, 0, 0, 0]),
        "mknod" => call(SYS_mknodat, [at, made, (S_IFIFO | 0o644) as c_long, 0, 0, 0]),
        "link" => call(SYS_link, [there, made, 0, 0, 0, 0]),
        "symlink" => call(SYS_symlink, [there, made, 0, 0, 0, 0]),
        "unlink" => call(SYS_unlink, [removed, 0, 0, 0, 0, 0]),
        "unlink-i386" => call_i386(I386_UNLINK, LOW_MEMORY as u32, 0),
        "rmdir" => call(SYS_rmdir, [folder, 0, 0, 0, 0, 0]),
        "rename" => call(SYS_rename, [removed, made, 0, 0, 0, 0]),
        "chmod" => call(SYS_chmod, [there, 0o666, 0, 0, 0, 0]),
        "connect" => call(SYS_connect, [stream.into(), pointer(&to), length, 0, 0, 0]),
        "connect-i386" => call_i386(I386_SOCKETCALL, I386_CONNECT, LOW_MEMORY as u32 + 512),
        "bind" => call(SYS_bind, [datagram.into(), pointer(&own), length, 0, 0, 0]),
        "send" => call(SYS_sendto, [datagram.into(), there, 5, 0, pointer(&to), length]),
        "socket" => call(SYS_socket, [AF_INET as c_long, SOCK_STREAM as c_long, 0, 0, 0, 0]),
        "mmap" => call(SYS_mmap, [new_area, PAGE as c_long, executable, map_flags, -1, 0]),
        "mprotect" => call(SYS_mprotect, [MEMORY as c_long, PAGE as c_long, executable, 0, 0, 0]),
        "mprotect-all" => {
            let all = executable | PROT_WRITE as c_long;
            call(SYS_mprotect, [MEMORY as c_long, PAGE as c_long, all, 0, 0, 0])
        }
        "ptrace" => call(SYS_ptrace, [PTRACE_SEIZE as c_long, victim, 0, 0, 0, 0]),
        "kill" => call(SYS_kill, [victim, usr1, 0, 0, 0, 0]),
        "kill-group" => call(SYS_kill, [-victim, usr1, 0, 0, 0, 0]),
        "setuid" => call(SYS_setresuid, [OTHER_ID, OTHER_ID, OTHER_ID, 0, 0, 0]),
        "setgid" => call(SYS_setresgid, [OTHER_ID, OTHER_ID, OTHER_ID, 0, 0, 0]),
        "setgroups" => call(SYS_setgroups, [1, pointer(&group), 0, 0, 0, 0]),
        "bpf" => call(SYS_bpf, [0, pointer(&array), size_of_val(&array) as c_long, 0, 0, 0]),
        "fork" => call(SYS_fork, [0; 6]),
        "write" => call(SYS_pwrite64, [file.into(), made, 4, 0, 0, 0]),
        _ => return None,
    })
}

pub fn side_effect(mut arguments: Arguments) -> Outcome {
    let side_effect = arguments.path("SIDE-EFFECT")?;
    let folder = arguments.path("FOLDER")?;
    let port = arguments.number("PORT", 1..=65535)? as u16;
    let victim = arguments.number("VICTIM", 1..=MAX_REPETITIONS)? as c_long;
    arguments.end()?;
    let folder =
        CString::new(folder.as_os_str().as_bytes()).map_err(|_| failed("a folder with a NUL"))?;
    let side_effect = side_effect.to_str().unwrap_or_default();
    // SAFETY: a name that ends.
    check(unsafe { libc::chdir(folder.as_ptr()) }, "go to the folder")?;
    let scene = prepare(port, victim)?;
    (0..100).for_each(|_| routine::round());
    let Some(result) = perform(side_effect, &scene) else {
        return Err(failed(format!("no side effect {side_effect:?}")));
    };
    // SAFETY: reads the thread's own variable; ends the process, with no call in between.
    unsafe { libc::_exit(if result == -1 { *libc::__errno_location() } else { 0 }) }
}

/// A hold must not be visible: a call that was undone and not restarted would fail with error 513.
pub fn sockets_in_threads(mut arguments: Arguments) -> Outcome {
    let threads = arguments.number("THREADS", 1..=64)?;
    let times = arguments.number("TIMES", 0..=MAX_REPETITIONS)?;
    arguments.end()?;
    let worker = move || -> Outcome {
        for _ in 0..times {
            // SAFETY: makes a descriptor, and closes it.
            let socket = check(
                unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0) },
                "make a socket",
            )?;
            // SAFETY: as above.
            check(unsafe { libc::close(socket) }, "close it")?;
        }
        Ok(())
    };
    let workers: Vec<_> = (0..threads).map(|_| std::thread::spawn(worker)).collect();
    workers
        .into_iter()
        .try_for_each(|worker| worker.join().map_err(|_| failed("a thread panicked"))?)
}
