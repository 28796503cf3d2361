//! Calls on known files, pipes and sockets, with known numbers of bytes.

use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome, check, failed, os_failure};
use crate::output::print_line;
use std::fs::{self, File, OpenOptions};
use std::io::{IoSlice, Read, Seek, Write};
use std::mem::zeroed;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::ptr::null_mut;

/// What the file `data` has: ten blocks, and two parts of one writev.
const BLOCK: usize = 1000;
const BLOCKS: usize = 10;
const PART: usize = 100;

fn open(path: &Path) -> Result<File, Failure> {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(false).open(path);
    file.map_err(|error| os_failure(format!("open {}", path.display()), error))
}

fn io<T>(result: std::io::Result<T>) -> Result<T, Failure> {
    result.map_err(|error| os_failure("use a file", error))
}

/// Holds a write lease of a file until stdin ends. Another process that opens the file meanwhile
/// waits for the end of the lease.
pub fn lease(mut arguments: Arguments) -> Outcome {
    let path = arguments.path("FILE")?;
    arguments.end()?;
    let file = io(File::open(&path))?;
    // SAFETY: plain calls on an open descriptor. The signal, by which the kernel asks for the end
    // of the lease, would end the process.
    let leased = unsafe {
        libc::signal(libc::SIGIO, libc::SIG_IGN);
        libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK)
    };
    check(leased, "take a lease")?;
    print_line("leased")?;
    io(std::io::stdin().read_to_end(&mut Vec::new()))?;
    Ok(())
}

pub fn use_files(mut arguments: Arguments) -> Outcome {
    let folder = arguments.path("DIR")?;
    arguments.end()?;
    use_regular(&folder)?;
    move_between(&folder)?;
    send_messages()?;
    use_unix(&folder)?;
    poll()?;
    let (server, client) = use_tcp()?;
    print_line(&format!(r#"{{"server":{server},"client":{client}}}"#))
}

/// Writes and reads a file that has two names, one that is removed meanwhile, and one that cannot
/// be read.
fn use_regular(folder: &Path) -> Outcome {
    let path = folder.join("data");
    let mut data = open(&path)?;
    for _ in 0..BLOCKS {
        io(data.write(&[1; BLOCK]))?;
    }
    io(data.write_at(&[2; BLOCK / 2], 0))?;
    io(data.write_vectored(&[IoSlice::new(&[3; PART]), IoSlice::new(&[4; PART])]))?;
    drop(data);
    let link = folder.join("link");
    io(fs::hard_link(&path, &link))?;
    let mut linked = io(File::open(&link))?;
    let mut block = [0; 4096];
    while io(linked.read(&mut block))? > 0 {}
    drop(linked);

    let path = folder.join("removed");
    let mut removed = open(&path)?;
    io(fs::remove_file(&path))?;
    io(removed.write(&[5; 77]))?;
    examine(&removed)?;

    let mut closed = io(OpenOptions::new().append(true).open(folder.join("data")))?;
    match closed.read(&mut block) {
        Err(_) => Ok(()),
        Ok(bytes) => Err(failed(format!("{bytes} bytes of a file for writing alone were read"))),
    }
}

/// Calls about the file of a descriptor whose path is empty, and one about a path in vain.
fn examine(file: &File) -> Outcome {
    // SAFETY: all zeros is a valid value of it.
    let mut status: libc::stat = unsafe { zeroed() };
    let fd = file.as_raw_fd();
    // SAFETY: an open descriptor, a text with its NUL, and room for the result.
    let done = unsafe { libc::fstatat(fd, c"".as_ptr(), &mut status, libc::AT_EMPTY_PATH) };
    check(done, "examine a file")?;
    // SAFETY: as above.
    match unsafe { libc::fstatat(fd, c"name".as_ptr(), &mut status, 0) } {
        0 => Err(failed("a file has a file in it")),
        _ => Ok(()),
    }
}

/// Moves bytes by calls with two descriptors: from the file `data` to the file `copy`, directly and
/// through a pipe.
fn move_between(folder: &Path) -> Outcome {
    let (mut data, copy) = (open(&folder.join("data"))?, open(&folder.join("copy"))?);
    io(data.rewind())?;
    let (from, to) = (data.as_raw_fd(), copy.as_raw_fd());
    // SAFETY: open descriptors, and no offset.
    check(unsafe { libc::sendfile(to, from, null_mut(), 5000) } as i64, "send a file")?;
    let mut ends = [0; 2];
    // SAFETY: room for both descriptors.
    check(unsafe { libc::pipe(ends.as_mut_ptr()) }, "make a pipe")?;
    // SAFETY: new descriptors.
    let [reader, writer] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
    for (from, to) in [(from, writer.as_raw_fd()), (reader.as_raw_fd(), to)] {
        // SAFETY: open descriptors, and no offsets.
        let moved = unsafe { libc::splice(from, null_mut(), to, null_mut(), 3000, 0) };
        check(moved as i64, "move bytes through a pipe")?;
    }
    Ok(())
}

/// Sends two messages of 10 and 20 bytes by one call, and receives them by one.
fn send_messages() -> Outcome {
    let mut ends = [0; 2];
    // SAFETY: room for both descriptors.
    let made =
        unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0, ends.as_mut_ptr()) };
    check(made, "make a pair of sockets")?;
    // SAFETY: new descriptors.
    let [left, right] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
    let mut bytes = [[0u8; 20]; 2];
    let [first, second] = &mut bytes;
    let mut vectors = [
        libc::iovec { iov_base: first.as_mut_ptr().cast(), iov_len: 10 },
        libc::iovec { iov_base: second.as_mut_ptr().cast(), iov_len: 20 },
    ];
    // SAFETY: plain numbers and addresses.
    let mut messages: [libc::mmsghdr; 2] = unsafe { zeroed() };
    for (message, vector) in messages.iter_mut().zip(&mut vectors) {
        message.msg_hdr.msg_iov = vector;
        message.msg_hdr.msg_iovlen = 1;
    }
    let at = messages.as_mut_ptr();
    // SAFETY: two messages, whose buffers live until the end of this function.
    check(unsafe { libc::sendmmsg(left.as_raw_fd(), at, 2, 0) }, "send messages")?;
    // SAFETY: as above.
    let received = unsafe { libc::recvmmsg(right.as_raw_fd(), at, 2, 0, null_mut()) };
    match check(received, "receive messages")? {
        2 => Ok(()),
        other => Err(failed(format!("{other} of 2 messages have arrived"))),
    }
}

fn use_unix(folder: &Path) -> Outcome {
    let path = folder.join("socket");
    let listener = io(UnixListener::bind(&path))?;
    let mut client = io(UnixStream::connect(&path))?;
    let (mut server, _) = io(listener.accept())?;
    io(client.write(b"hello"))?;
    io(server.read(&mut [0; 64])).map(drop)
}

fn poll() -> Outcome {
    // SAFETY: takes no address.
    let epoll = check(unsafe { libc::epoll_create1(0) }, "make an epoll instance")?;
    // SAFETY: a new descriptor.
    let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: room for one event.
    check(unsafe { libc::epoll_wait(epoll.as_raw_fd(), &mut event, 1, 0) }, "poll").map(drop)
}

/// Sends 123 bytes over a TCP connection. Returns the ports.
fn use_tcp() -> Result<(u16, u16), Failure> {
    let listener = io(TcpListener::bind("127.0.0.1:0"))?;
    let address = io(listener.local_addr())?;
    let mut client = io(TcpStream::connect(address))?;
    let (mut server, from) = io(listener.accept())?;
    io(client.write(&[6; 123]))?;
    io(server.read(&mut [0; 256]))?;
    Ok((address.port(), from.port()))
}
