//! Uses resources that services limit, on command, and prints how much it got.

use std::fs::File;
use std::io::{self, BufRead as _, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use crate::arguments::Arguments;
use crate::connections::connections;
use crate::failure::{Outcome, failed, os_failure};
use crate::output::print_line;

#[derive(Default)]
struct HeldResources {
    sockets: Vec<OwnedFd>,
    connections: Vec<TcpStream>,
    memory: Vec<Vec<u8>>,
}

/// Executes each line of its input, and replies with a line.
pub fn consumer(arguments: Arguments) -> Outcome {
    arguments.end()?;
    let mut taken = HeldResources::default();
    for line in io::stdin().lock().lines() {
        let line = line.map_err(|error| os_failure("read stdin", error))?;
        let words: Vec<_> = line.split(' ').collect();
        let number =
            |index: usize| words.get(index).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
        let reply = match words[0] {
            "burn" => burn(Duration::from_millis(number(1)), number(2).max(1)),
            "sockets" => got(number(1), || socket().map(|socket| taken.sockets.push(socket))),
            "connect" => got(number(2), || {
                TcpStream::connect(("127.0.0.1", number(1) as u16))
                    .map(|stream| taken.connections.push(stream))
            }),
            "connections" => {
                let ends = connections(number(1) as usize)
                    .map_err(|error| os_failure("connect", error))?;
                taken.connections.extend(ends);
                taken.connections.len().to_string()
            }
            "fork" => got(number(1), fork),
            "memory" => {
                // Written to, so that the memory is allocated.
                taken.memory.push(vec![1; number(1) as usize]);
                taken.memory.len().to_string()
            }
            "setuid" => got(1, || {
                // SAFETY: a plain call.
                if unsafe { libc::setuid(number(1) as libc::uid_t) } < 0 {
                    Err(io::Error::last_os_error())
                } else {
                    Ok(())
                }
            }),
            "threads" => {
                (0..number(1)).for_each(|_| drop(thread::spawn(thread::park)));
                number(1).to_string()
            }
            "file" => file(words.get(1).copied().unwrap_or_default(), number(2))
                .map_err(|error| os_failure("write and read a file", error))?,
            "send" => {
                send(number(1) as u16, number(2)).map_err(|error| os_failure("send", error))?
            }
            "close" => {
                taken = HeldResources::default();
                "closed".into()
            }
            other => return Err(failed(format!("there is no {other:?}"))),
        };
        print_line(&reply)?;
    }
    Ok(())
}

/// Works in several threads until the time is over; returns their processor time in nanoseconds.
fn burn(time: Duration, threads: u64) -> String {
    let (began, before) = (Instant::now(), cpu_ns());
    let work = || {
        while began.elapsed() < time {
            for _ in 0..1000 {
                std::hint::spin_loop();
            }
        }
    };
    thread::scope(|scope| {
        (1..threads).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    (cpu_ns() - before).to_string()
}

fn cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: room for the result.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns how often the action succeeded, and the errno of the first failure (0: none).
fn got(wanted: u64, mut one: impl FnMut() -> io::Result<()>) -> String {
    let failure = (0..wanted)
        .map(|done| (done, one()))
        .find_map(|(done, result)| Some((done, result.err()?)));
    match failure {
        Some((done, error)) => format!("{done} {}", error.raw_os_error().unwrap_or(-1)),
        None => format!("{wanted} 0"),
    }
}

fn socket() -> io::Result<OwnedFd> {
    // SAFETY: a plain call.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0) };
    // SAFETY: a new descriptor that nothing else owns.
    if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(unsafe { OwnedFd::from_raw_fd(fd) }) }
}

/// Starts a child that lives until its parent's end.
fn fork() -> io::Result<()> {
    // SAFETY: the child only makes system calls.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => loop {
            // SAFETY: plain calls.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                libc::pause();
            }
        },
        _ => Ok(()),
    }
}

/// Writes bytes to a new file and reads them again, from the disk if the file is on one.
fn file(path: &str, bytes: u64) -> io::Result<String> {
    let mut file = File::create(path)?;
    file.write_all(&vec![1; bytes as usize])?;
    file.sync_all()?;
    // SAFETY: a plain call.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    let read = File::open(path)?.read_to_end(&mut Vec::new())?;
    Ok(read.to_string())
}

/// Sends bytes to a port; returns nanoseconds until the other end has received all of them.
fn send(port: u16, bytes: u64) -> io::Result<String> {
    const PIECE: usize = 4096;
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    let began = Instant::now();
    for _ in 0..bytes.div_ceil(PIECE as u64) {
        stream.write_all(&[b'.'; PIECE])?;
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    stream.read_to_end(&mut Vec::new())?;
    Ok(began.elapsed().as_nanos().to_string())
}
