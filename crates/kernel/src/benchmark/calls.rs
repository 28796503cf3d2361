//! Benchmarks of single calls. No library caches their results.

use std::ffi::CStr;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::{ptr, thread};

use super::unit::{BenchmarkFn, spin};

/// A benchmark whose unit is one run of a function.
fn call(mut one: impl FnMut() + 'static) -> BenchmarkFn {
    Box::new(move |units| {
        for _ in 0..units {
            one();
        }
    })
}

pub fn getpid() -> BenchmarkFn {
    call(|| {
        // SAFETY: takes nothing and cannot fail.
        unsafe { libc::syscall(libc::SYS_getpid) };
    })
}

pub fn getppid() -> BenchmarkFn {
    call(|| {
        // SAFETY: takes nothing and cannot fail.
        unsafe { libc::syscall(libc::SYS_getppid) };
    })
}

pub fn getrusage() -> BenchmarkFn {
    // SAFETY: an all-zero rusage is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    call(move || {
        // SAFETY: a valid destination for the result.
        unsafe { libc::syscall(libc::SYS_getrusage, libc::RUSAGE_SELF, &raw mut usage) };
    })
}

pub fn gettimeofday() -> BenchmarkFn {
    let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
    call(move || {
        // SAFETY: a valid destination for the result; no time zone is requested.
        unsafe {
            libc::syscall(libc::SYS_gettimeofday, &raw mut time, ptr::null::<libc::c_void>())
        };
    })
}

pub fn sigaction() -> BenchmarkFn {
    // SAFETY: an all-zero sigaction is a valid one: the default action.
    let action: libc::sigaction = unsafe { std::mem::zeroed() };
    call(move || {
        // SAFETY: valid, and for a signal that is not sent.
        unsafe { libc::sigaction(libc::SIGUSR2, &action, ptr::null_mut()) };
    })
}

extern "C" fn handle(_signal: libc::c_int) {}

pub fn signal() -> BenchmarkFn {
    // SAFETY: a zeroed sigaction is a valid one: an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handle as *const () as usize;
    // SAFETY: valid; the handler does nothing.
    unsafe { libc::sigaction(libc::SIGUSR1, &action, ptr::null_mut()) };
    call(|| {
        // SAFETY: the signal is handled.
        unsafe { libc::raise(libc::SIGUSR1) };
    })
}

pub fn write_null() -> BenchmarkFn {
    let null = File::options().write(true).open("/dev/null").expect("/dev/null can be opened");
    let byte = 0u8;
    call(move || {
        // SAFETY: one byte from a local, to an open descriptor.
        unsafe { libc::syscall(libc::SYS_write, null.as_raw_fd(), &raw const byte, 1) };
    })
}

pub fn poll_ready() -> BenchmarkFn {
    let (reader, mut writer) = std::io::pipe().expect("a pipe can be made");
    writer.write_all(&[0]).expect("a pipe has room for a byte");
    call(move || {
        let mut wait = libc::pollfd { fd: reader.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry.
        unsafe { libc::syscall(libc::SYS_poll, &raw mut wait, 1, -1) };
    })
}

pub fn pread(bytes: usize) -> BenchmarkFn {
    let file = memory_file(c"tollgate-pread", &vec![1; bytes]);
    let mut buffer = vec![0u8; bytes];
    call(move || {
        // SAFETY: no more bytes than the buffer has, from an open descriptor.
        unsafe {
            libc::syscall(libc::SYS_pread64, file.as_raw_fd(), buffer.as_mut_ptr(), bytes, 0)
        };
    })
}

/// A file that exists in the page cache only.
pub fn memory_file(name: &CStr, content: &[u8]) -> OwnedFd {
    // SAFETY: a NUL-terminated name; the descriptor, if it is one, is only ours.
    let file = unsafe {
        let fd = libc::memfd_create(name.as_ptr(), 0);
        assert!(fd >= 0, "a file in memory can be made");
        OwnedFd::from_raw_fd(fd)
    };
    // SAFETY: the bytes of a slice, to an open descriptor.
    let written = unsafe { libc::write(file.as_raw_fd(), content.as_ptr().cast(), content.len()) };
    assert_eq!(written, content.len() as isize, "a file in memory can be written");
    file
}

pub fn open_close() -> BenchmarkFn {
    call(|| {
        // SAFETY: a NUL-terminated path; the descriptor is closed at once.
        unsafe {
            let fd = libc::syscall(
                libc::SYS_openat,
                libc::AT_FDCWD,
                c"/dev/null".as_ptr(),
                libc::O_RDONLY,
                0,
            );
            libc::syscall(libc::SYS_close, fd);
        }
    })
}

pub fn cpu_loop() -> BenchmarkFn {
    call(|| spin(1000))
}

/// A benchmark whose unit is a message of one byte, which the same thread writes and reads.
fn message(mut to: impl Write + 'static, mut from: impl Read + 'static) -> BenchmarkFn {
    Box::new(move |units| {
        let mut byte = [0];
        for _ in 0..units {
            to.write_all(&byte).expect("the other end is open");
            from.read_exact(&mut byte).expect("there is a byte");
        }
    })
}

pub fn unix_message() -> BenchmarkFn {
    // A socket pair would not do: one end has to accept the other, as servers do.
    let address = SocketAddr::from_abstract_name(format!(
        "tollgate-{}-{:?}",
        std::process::id(),
        thread::current().id()
    ));
    let listener =
        UnixListener::bind_addr(&address.expect("a short name")).expect("a name of its own");
    let to =
        UnixStream::connect_addr(&listener.local_addr().expect("it is bound")).expect("it listens");
    message(to, listener.accept().expect("a connection waits").0)
}

pub fn tcp_message() -> BenchmarkFn {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let to = TcpStream::connect(listener.local_addr().expect("it is bound")).expect("it listens");
    to.set_nodelay(true).expect("an option of every connection");
    message(to, listener.accept().expect("a connection waits").0)
}
