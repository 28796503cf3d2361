//! Complete writes to stdout and stderr. A command shares these with Tollgate, and may leave them
//! non-blocking; a program on an event loop often does.

use std::io::{self, ErrorKind, Write};
use std::os::fd::{FromRawFd as _, OwnedFd};

use crate::start_state::was_closed;

/// stdout or stderr, without a buffer. If a program has left the terminal in raw mode, lines begin
/// at the left nevertheless.
#[derive(Debug, Clone, Copy)]
pub struct StandardStream(libc::c_int);

impl StandardStream {
    /// This process's stdout.
    pub const STDOUT: Self = Self(libc::STDOUT_FILENO);
    /// This process's stderr.
    pub const STDERR: Self = Self(libc::STDERR_FILENO);

    /// Whether the process was started without it. A write would go to /dev/null then.
    pub fn was_closed(self) -> bool {
        was_closed(self.0)
    }

    /// The width of the terminal, if it is one that has a size.
    pub fn columns(self) -> Option<usize> {
        // SAFETY: an all-zero size is a valid destination.
        let size = unsafe {
            let mut size: libc::winsize = std::mem::zeroed();
            (libc::ioctl(self.0, libc::TIOCGWINSZ, &raw mut size) == 0).then_some(size)
        };
        size.map(|size| size.ws_col.into()).filter(|columns| *columns > 0)
    }

    /// Whether it is a terminal that does not begin a new line at the left (termios(3)).
    fn is_raw_terminal(self) -> bool {
        // SAFETY: all-zero settings are a valid destination.
        unsafe {
            let mut settings: libc::termios = std::mem::zeroed();
            let converts = libc::OPOST | libc::ONLCR;
            libc::tcgetattr(self.0, &mut settings) == 0 && settings.c_oflag & converts != converts
        }
    }

    /// Writes at least one byte of them, and returns how many.
    fn write_some(self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            // SAFETY: as many bytes as given.
            let written = unsafe { libc::write(self.0, bytes.as_ptr().cast(), bytes.len()) };
            if let Ok(written) = written.try_into() {
                return Ok(written);
            }
            let error = io::Error::last_os_error();
            if error.kind() != ErrorKind::WouldBlock {
                return Err(error);
            }
            self.wait();
        }
    }

    /// Waits until it accepts more, or until its other end is closed.
    fn wait(self) {
        self.wait_for(libc::POLLOUT);
    }

    /// Waits until nothing reads this pipe or socket any more.
    pub fn wait_for_end(self) {
        while self.wait_for(0) & (libc::POLLERR | libc::POLLHUP) == 0 {}
    }

    fn wait_for(self, events: libc::c_short) -> libc::c_short {
        let mut poll = libc::pollfd { fd: self.0, events, revents: 0 };
        // SAFETY: one entry, as given.
        unsafe { libc::poll(&raw mut poll, 1, -1) };
        poll.revents
    }
}

impl Write for StandardStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.is_raw_terminal() {
            return self.write_some(bytes);
        }
        let lines: Vec<u8> = bytes.iter().flat_map(with_return).copied().collect();
        let mut left = lines.as_slice();
        while !left.is_empty() {
            left = &left[self.write_some(left)?..];
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A descriptor with which this process was started, as one of its own that the command does not
/// get. Fails if it is not open for writing.
pub fn inherited(number: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: plain calls that take numbers.
    let (flags, copy) = unsafe {
        (libc::fcntl(number, libc::F_GETFL), libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3))
    };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that only this process owns.
    let copy = unsafe { OwnedFd::from_raw_fd(copy) };
    if flags & libc::O_ACCMODE == libc::O_RDONLY {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    Ok(copy)
}

/// A byte as a terminal in raw mode needs it.
fn with_return(byte: &u8) -> &[u8] {
    match byte {
        b'\n' => b"\r\n",
        _ => std::slice::from_ref(byte),
    }
}
