//! Loopback connections with both ends in this process, in a network namespace of their own.

use std::io::{self, Write as _};
use std::net::{TcpListener, TcpStream};

/// Opens connections and sends a byte from each end.
pub fn connections(count: usize) -> io::Result<Vec<TcpStream>> {
    own_loopback()?;
    allow_descriptors()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut ends = Vec::with_capacity(2 * count);
    for _ in 0..count {
        let opened = TcpStream::connect(listener.local_addr()?)?;
        let (accepted, _) = listener.accept()?;
        for mut end in [opened, accepted] {
            end.write_all(b".")?;
            ends.push(end);
        }
    }
    Ok(ends)
}

fn own_loopback() -> io::Result<()> {
    // SAFETY: an empty request is a valid one, and has room for a name.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[..2].copy_from_slice(&[b'l' as libc::c_char, b'o' as libc::c_char]);
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: plain calls, and a valid request.
    unsafe {
        done(libc::unshare(libc::CLONE_NEWNET))?;
        let socket = done(libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0))?;
        done(libc::ioctl(socket, libc::SIOCSIFFLAGS as _, &raw const request))?;
        done(libc::close(socket)).map(drop)
    }
}

/// Raises the limit of descriptors to the maximum of this user.
fn allow_descriptors() -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: room for a limit, and a valid one.
    unsafe {
        done(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit))?;
        limit.rlim_cur = limit.rlim_max;
        done(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit)).map(drop)
    }
}

fn done(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
