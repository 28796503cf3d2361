//! Messages over UNIX sockets with what the kernel adds to them: descriptors, and the sender.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;

/// Room for a header and a `ucred` or a descriptor, aligned as a header.
type ControlBuffer = [u64; 8];

const _: () = {
    // SAFETY: these only compute.
    let (credentials, descriptor) =
        unsafe { (libc::CMSG_SPACE(size_of::<libc::ucred>() as u32), libc::CMSG_SPACE(4)) };
    assert!(size_of::<ControlBuffer>() >= credentials as usize);
    assert!(size_of::<ControlBuffer>() >= descriptor as usize);
};

fn header(part: *mut libc::iovec, control: &mut ControlBuffer, length: usize) -> libc::msghdr {
    // SAFETY: all bytes may be zero.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = length;
    message
}

/// Sends bytes with a descriptor.
pub fn send_with_descriptor(
    socket: &UnixStream,
    bytes: &[u8],
    descriptor: &OwnedFd,
) -> io::Result<()> {
    let mut part = IoSlice::new(bytes);
    let mut control = ControlBuffer::default();
    let space = size_of::<i32>() as u32;
    // SAFETY: the header's parts point to buffers that outlive the call. CMSG_FIRSTHDR points into
    // `control`, which has room for a descriptor.
    let sent = unsafe {
        let length = libc::CMSG_SPACE(space) as usize;
        let message = header((&raw mut part).cast(), &mut control, length);
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(space) as usize;
        libc::CMSG_DATA(header).cast::<i32>().write_unaligned(descriptor.as_raw_fd());
        libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL)
    };
    match sent {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// From now on, the kernel adds the sender's process to each message (SO_PASSCRED).
pub fn request_senders(socket: &UnixStream) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: a value of the given length.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PASSCRED,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Receives a message, after [`request_senders`]. Returns its length and its sender, as this
/// process's PID namespace numbers it. Only a process with CAP_SYS_ADMIN can name another one
/// (unix(7), SCM_CREDENTIALS).
pub fn receive_with_sender(socket: &UnixStream, bytes: &mut [u8]) -> io::Result<(usize, u32)> {
    let mut part = IoSliceMut::new(bytes);
    let mut control = ControlBuffer::default();
    // SAFETY: this only computes. There is no room for descriptors, so the kernel discards them.
    let room = unsafe { libc::CMSG_SPACE(size_of::<libc::ucred>() as u32) };
    let mut message = header((&raw mut part).cast(), &mut control, room as usize);
    // SAFETY: the header's parts outlive the call.
    let got =
        unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    let length = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the kernel has filled `control` up to msg_controllen. The credentials come first, and
    // any bytes are valid ones (v6.18 include/net/scm.h, scm_recv_unix).
    let sender = unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        let has_sender = !header.is_null() && (*header).cmsg_type == libc::SCM_CREDENTIALS;
        has_sender.then(|| libc::CMSG_DATA(header).cast::<libc::ucred>().read_unaligned().pid)
    };
    Ok((length, sender.and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn kernel_names_the_sender() {
        let (near, mut far) = UnixStream::pair().expect("a pair of sockets");
        request_senders(&near).expect("it is a UNIX socket");
        far.write_all(b"hello").expect("there is room");
        let mut bytes = [0; 8];
        let received = receive_with_sender(&near, &mut bytes).expect("a message");
        assert_eq!(received, (5, std::process::id()));
    }
}
