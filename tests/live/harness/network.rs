//! A network namespace for one test.

use std::fs::File;
use std::io::Error;
use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;

/// Keeps this thread, and processes that it starts, in a network namespace until dropped.
pub struct OwnNetwork(File);

impl OwnNetwork {
    /// Enters a new namespace, whose "lo" is up and has no packets or programs of others.
    pub fn enter() -> Self {
        let before = File::open("/proc/thread-self/ns/net").expect("namespaces of networks");
        // SAFETY: a plain call.
        let unshared = unsafe { libc::unshare(libc::CLONE_NEWNET) };
        assert_eq!(unshared, 0, "{}", Error::last_os_error());
        let own = Self(before);
        bring_up("lo");
        own
    }
}

impl Drop for OwnNetwork {
    fn drop(&mut self) {
        // SAFETY: a descriptor that is open.
        unsafe { libc::setns(self.0.as_raw_fd(), libc::CLONE_NEWNET) };
    }
}

/// A request that only names a device.
pub fn request(name: &str) -> libc::ifreq {
    // SAFETY: all zeros is a valid value of it.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request
}

fn bring_up(device: &str) {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    let mut request = request(device);
    request.ifr_ifru.ifru_flags = libc::IFF_UP as i16;
    // SAFETY: a request that is there until the call is over.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    assert_eq!(done, 0, "{}", Error::last_os_error());
}
