//! A pseudo-terminal for one test.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

pub struct Terminal {
    master: File,
    slave: OwnedFd,
    screen: vt100::Parser,
}

const ROWS: u16 = 30;
const COLUMNS: u16 = 110;

impl Terminal {
    pub fn new() -> Self {
        Self::of_columns(COLUMNS)
    }

    pub fn of_columns(columns: u16) -> Self {
        let mut ends = [-1; 2];
        let [master, slave] = &mut ends;
        let null = std::ptr::null_mut();
        let size = libc::winsize { ws_row: ROWS, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: two valid destinations and a size; a null name and termios are allowed.
        let made = unsafe { libc::openpty(master, slave, null, null.cast(), &size) };
        assert_eq!(made, 0, "a terminal can be made: {}", io::Error::last_os_error());
        // SAFETY: new descriptors that nothing else owns. No child may keep the master open.
        let [master, slave] = ends.map(|end| unsafe {
            libc::fcntl(end, libc::F_SETFD, libc::FD_CLOEXEC);
            OwnedFd::from_raw_fd(end)
        });
        Self { master: master.into(), slave, screen: vt100::Parser::new(ROWS, columns, 0) }
    }

    pub fn open(&self) -> OwnedFd {
        self.slave.try_clone().expect("a descriptor can be copied")
    }

    /// Changes the width. The kernel sends SIGWINCH to the foreground process group.
    pub fn resize(&mut self, columns: u16) {
        let size = libc::winsize { ws_row: ROWS, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: a valid descriptor and a size.
        let done = unsafe { libc::ioctl(self.master.as_raw_fd(), libc::TIOCSWINSZ, &size) };
        assert_eq!(done, 0, "{}", io::Error::last_os_error());
        self.screen.set_size(ROWS, columns);
    }

    /// Makes stdin the controlling terminal of the child that calls this.
    pub fn take() -> io::Result<()> {
        // SAFETY: system calls without pointers.
        let taken = unsafe { libc::setsid() != -1 && libc::ioctl(0, libc::TIOCSCTTY, 0) != -1 };
        if taken { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Sends keys as if from the keyboard.
    pub fn press(&mut self, keys: &[u8]) {
        self.master.write_all(keys).expect("the terminal takes keys");
    }

    /// Returns the output up to and including `end`, or until no output has come for the time
    /// limit.
    pub fn read_until(&mut self, end: &str) -> String {
        let mut seen = String::new();
        let until = Instant::now() + super::LIMIT;
        while !seen.contains(end) && Instant::now() < until {
            let mut wait =
                libc::pollfd { fd: self.master.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one valid entry.
            if unsafe { libc::poll(&mut wait, 1, 1000) } == 0 {
                continue;
            }
            let mut bytes = [0; 4096];
            match self.master.read(&mut bytes) {
                Ok(0) | Err(_) => std::thread::sleep(Duration::from_millis(10)),
                Ok(n) => seen += &String::from_utf8_lossy(&bytes[..n]),
            }
        }
        seen
    }

    /// Waits until the screen satisfies `is_it`, and returns its content.
    #[track_caller]
    pub fn shows(&mut self, what: &str, is_it: impl Fn(&str) -> bool) -> String {
        super::eventually(what, || {
            let mut wait =
                libc::pollfd { fd: self.master.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            let mut bytes = [0; 4096];
            // SAFETY: one valid entry.
            while unsafe { libc::poll(&mut wait, 1, 0) } == 1
                && let Ok(n) = self.master.read(&mut bytes)
            {
                self.screen.process(&bytes[..n]);
            }
            is_it(&self.screen.screen().contents())
        });
        self.screen.screen().contents()
    }

    /// Closes the terminal; the kernel sends SIGHUP to its session.
    pub fn hang_up(self) {
        drop(self);
    }
}
