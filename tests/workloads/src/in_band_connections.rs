//! A program whose connections to Tollgate outlive the program or the process that has opened them.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, RawFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::{env, fs, ptr, thread};

use tollgate::in_band;

use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome, check, failed, os_failure};
use crate::in_band::own;
use crate::output::print_line;

/// What Tollgate sends first: an error number, and a challenge (crates/control/src/in_band.rs).
type Greeting = [u8; 12];

fn own_thread() -> u32 {
    // SAFETY: takes no arguments and cannot fail.
    unsafe { libc::gettid() as u32 }
}

pub fn connect() -> Result<(UnixStream, Greeting), Failure> {
    let name = env::var("TOLLGATE_IN_BAND").unwrap_or_default();
    let connect = || -> io::Result<(UnixStream, Greeting)> {
        let address = SocketAddr::from_abstract_name(name.trim_start_matches('@'))?;
        let mut stream = UnixStream::connect_addr(&address)?;
        let mut greeting = Greeting::default();
        stream.read_exact(&mut greeting)?;
        Ok((stream, greeting))
    };
    connect().map_err(|error| os_failure("connect to Tollgate", error))
}

/// The bytes of a request for the records of a thread.
pub fn request(greeting: Greeting, thread: u32) -> Vec<u8> {
    [&greeting[4..], [1, thread].map(u32::to_ne_bytes).as_flattened()].concat()
}

/// Reads the error number of a reply.
pub fn errno(stream: &mut UnixStream) -> Result<i32, Failure> {
    let mut errno = [0; 4];
    stream.read_exact(&mut errno).map_err(|error| os_failure("read a reply", error))?;
    Ok(i32::from_ne_bytes(errno))
}

fn expect_errno(stream: &mut UnixStream, expected: i32) -> Outcome {
    match errno(stream)? {
        number if number == expected => Ok(()),
        number => Err(failed(format!("the reply is {number}, and not {expected}"))),
    }
}

/// Keeps a descriptor open in the next program.
fn keep(descriptor: RawFd) -> Result<i32, Failure> {
    // SAFETY: a descriptor of this process.
    check(unsafe { libc::dup(descriptor) }, "copy a descriptor")
}

/// The kernel's number of the memory that has this descriptor.
fn map_number(descriptor: RawFd) -> Result<String, Failure> {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{descriptor}")).unwrap_or_default();
    let number = text.lines().find_map(|line| line.strip_prefix("map_id:"));
    number.map(|number| number.trim().to_owned()).ok_or_else(|| failed("it is not a BPF map"))
}

fn memory() -> Result<std::os::fd::OwnedFd, Failure> {
    let memory = in_band::memory_of(own_thread()).map_err(|error| failed(error.to_string()))?;
    memory.map_err(|errno| failed(format!("no memory: {errno}")))
}

/// Requests records, connects once more, and executes the program again: in this thread, or in
/// another one, which has no records.
pub fn before_exec(mut arguments: Arguments) -> Outcome {
    let in_other_thread = arguments.number("0|1", 0..=1)? == 1;
    arguments.end()?;
    own()?;
    let (stream, greeting) = connect()?;
    let (stream, memory) = (keep(stream.as_raw_fd())?, keep(memory()?.as_raw_fd())?);
    let challenge = u64::from_ne_bytes(greeting[4..].try_into().expect("eight bytes"));
    let program = env::current_exe().map_err(|error| os_failure("find the program", error))?;
    let mut command = Command::new(program);
    command.arg("in-band-after-exec");
    command.args([stream.to_string(), challenge.to_string(), memory.to_string()]);
    let error = match in_other_thread {
        true => thread::spawn(move || command.exec()).join().expect("it has not panicked"),
        false => command.exec(),
    };
    Err(os_failure("execute", error))
}

/// The program after the one above, in the same process: the old connection is of no use, and its
/// memory is another one.
pub fn after_exec(mut arguments: Arguments) -> Outcome {
    let stream = arguments.number("SOCKET", 0..=u64::from(u16::MAX))? as RawFd;
    let challenge = arguments.number("CHALLENGE", 0..=u64::MAX)?;
    let old = arguments.number("MEMORY", 0..=u64::from(u16::MAX))? as RawFd;
    arguments.end()?;
    // SAFETY: inherited, and of nobody else.
    let mut stream = unsafe { UnixStream::from_raw_fd(stream) };
    let mut greeting = Greeting::default();
    greeting[4..].copy_from_slice(&challenge.to_ne_bytes());
    let sent = stream.write_all(&request(greeting, own_thread()));
    sent.map_err(|error| os_failure("send a request", error))?;
    expect_errno(&mut stream, libc::ESRCH)?;
    own()?;
    if map_number(old)? == map_number(memory()?.as_raw_fd())? {
        return Err(failed("the memory of the program before is that of this one"));
    }
    print_line("ok")
}

struct OfChild(Option<Result<(UnixStream, Greeting), Failure>>);

extern "C" fn connect_in_child(found: *mut libc::c_void) -> libc::c_int {
    // SAFETY: the parent has given its variable, and waits.
    unsafe { &mut *found.cast::<OfChild>() }.0 = Some(connect());
    0
}

/// A child connects and ends. Another one gets its number, and uses the connection.
pub fn pid_reuse(arguments: Arguments) -> Outcome {
    arguments.end()?;
    let mut stack = vec![0_u64; 65536];
    let mut found = OfChild(None);
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES | libc::SIGCHLD;
    // SAFETY: the stack, which grows downwards, and the variable outlive the child, for which this
    // thread waits. The child shares the memory and the descriptors.
    let first = unsafe {
        let top = stack.as_mut_ptr().add(stack.len()).cast();
        libc::clone(connect_in_child, top, flags, (&raw mut found).cast())
    };
    check(first, "create a child")?;
    // SAFETY: its own child.
    unsafe { libc::waitpid(first, ptr::null_mut(), 0) };
    let (mut stream, greeting) = found.0.ok_or_else(|| failed("the child did not connect"))??;
    let numbers = [first];
    // SAFETY: all bytes may be zero.
    let mut clone: libc::clone_args = unsafe { std::mem::zeroed() };
    clone.exit_signal = libc::SIGCHLD as u64;
    clone.set_tid = numbers.as_ptr().addr() as u64;
    clone.set_tid_size = 1;
    // SAFETY: as fork; the child only writes to a socket, waits, and ends.
    let second = unsafe { libc::syscall(libc::SYS_clone3, &raw mut clone, size_of_val(&clone)) };
    if second == 0 {
        let sent = stream.write_all(&request(greeting, first as u32));
        let reply = sent.is_ok() && expect_errno(&mut stream, libc::ESRCH).is_ok();
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!reply)) };
    }
    check(second, "create a child with a given number")?;
    let mut status = 0;
    // SAFETY: a valid destination.
    unsafe { libc::waitpid(first, &raw mut status, 0) };
    if status != 0 {
        return Err(failed("the second child got what the first one has requested"));
    }
    print_line("ok")
}

/// More connections than one process may have without a request
/// (crates/tollgate/src/lens/in_band_server.rs, MAX_WAITING_OF_PROCESS).
const IDLE: usize = 65;

/// Opens connections without sending requests: the oldest one is closed, and requests are served.
pub fn idle(arguments: Arguments) -> Outcome {
    arguments.end()?;
    let mut streams: Vec<_> = (0..IDLE).map(|_| connect()).collect::<Result<_, _>>()?;
    let mut byte = [0];
    let first = &mut streams[0].0;
    if !matches!(first.read(&mut byte), Ok(0)) {
        return Err(failed("the oldest connection is open"));
    }
    let last = &mut streams[IDLE - 1].0;
    let set = last.set_nonblocking(true);
    set.map_err(|error| os_failure("change a socket", error))?;
    if !last.read(&mut byte).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
        return Err(failed("the latest connection is closed"));
    }
    own()?;
    print_line("ok")
}

/// Listens as Tollgate does, and requests in-band records of itself.
pub fn impostor(arguments: Arguments) -> Outcome {
    arguments.end()?;
    let name = format!("impostor-{}", std::process::id());
    let listen = || UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?);
    let _listener = listen().map_err(|error| os_failure("listen", error))?;
    // SAFETY: no other thread reads the environment.
    unsafe { env::set_var("TOLLGATE_IN_BAND", format!("@{name}")) };
    own().map(drop)
}
