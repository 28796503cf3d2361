//! The latest calls of a thread, with what each has cost (docs/in-band.md).
//!
//! The records are in memory that this process maps for reading; reading one is a few plain loads.
//! This works in a command of `tollgate run --in-band`.

use std::cell::Cell;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, Ordering, fence};
use std::time::Duration;
use std::{mem, ptr};

use crate::Error;

/// The variable of the environment that names the socket.
const VARIABLE: &str = "TOLLGATE_IN_BAND";
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

// bpf/wire/in_band.h
const VERSION: u32 = 1;
const PAGE: usize = 4096;
const ENTRIES: usize = 257;
const CALLS: usize = 16;
const SLEEPS: usize = 5;
// crates/tollgate/src/lens/in_band_server.rs
const RECORDS_OF_THREAD: u32 = 1;
const NAME_OF_SITE: u32 = 2;
/// No kernel function has a longer name (include/linux/kallsyms.h, KSYM_NAME_LEN).
const NAME_LEN: u64 = 512;

/// The sleeps of a call in one site.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sleep {
    /// The time asleep, without the waits for a processor that followed.
    pub ns: u64,
    /// The number of the site in this process, for [`site_name`]; 0: it is not known, or
    /// there are too many.
    pub site: u32,
    /// How often the call has slept there.
    pub count: u32,
}

/// A call that has ended. Times are in nanoseconds.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// The result; an error is negative.
    pub result: i64,
    /// When it ended, by CLOCK_MONOTONIC.
    pub ended_ns: u64,
    /// From its beginning to its end.
    pub wall_ns: u64,
    /// Asleep.
    pub blocked_ns: u64,
    /// Ready to run, but not on a processor.
    pub waiting_ns: u64,
    /// Page faults that needed no input.
    pub minor_faults: u32,
    /// Page faults that waited for input.
    pub major_faults: u32,
    /// The number of the call in its ABI.
    pub number: u16,
    /// 0: x86-64, 1: i386, 2: x32.
    pub abi: u8,
    /// 1: seccomp or a tracer rejected the call. It has no times unless it waited for that.
    pub is_rejected: u8,
    sleeps: u32,
    /// The time asleep in further sites.
    pub other_sleeps_ns: u64,
    unused: [u64; 6],
    sleep: [Sleep; SLEEPS],
}

impl Call {
    /// The time on a processor.
    pub fn on_cpu_ns(&self) -> u64 {
        self.wall_ns.saturating_sub(self.blocked_ns + self.waiting_ns)
    }

    /// The sleeps by site, at most five.
    pub fn sleeps(&self) -> &[Sleep] {
        &self.sleep[..(self.sleeps as usize).min(SLEEPS)]
    }
}

#[repr(C)]
struct ThreadPage {
    sequence: u64,
    unused: [u64; 63],
    calls: [Call; CALLS],
    unused_end: [u64; PAGE / 8 - 64 - CALLS * size_of::<Call>() / 8],
}

const _: () = assert!(size_of::<ThreadPage>() == PAGE && size_of::<Call>() == 192);

/// The memory of this process; NULL before the first thread has requested it.
static MEMORY: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
/// Held while the memory is being mapped, and during a fork, so that no child gets the memory or
/// its descriptor.
static FORK_LOCK: ForkLock = ForkLock(std::cell::UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER));

struct ForkLock(std::cell::UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: the mutex is used only through the functions of libc, by its address.
unsafe impl Sync for ForkLock {}

impl ForkLock {
    fn lock(&self) {
        // SAFETY: an initialized mutex, which never moves.
        unsafe { libc::pthread_mutex_lock(self.0.get()) };
    }

    fn unlock(&self) {
        // SAFETY: as above; the caller has locked it.
        unsafe { libc::pthread_mutex_unlock(self.0.get()) };
    }
}

thread_local! {
    /// The page of this thread; NULL: it has none yet.
    static OWN: Cell<*const ThreadPage> = const { Cell::new(ptr::null()) };
}

extern "C" fn before_fork() {
    FORK_LOCK.lock();
}

extern "C" fn in_parent() {
    FORK_LOCK.unlock();
}

/// The child has no records. Where its parent's memory was, it gets empty pages, so that a pointer
/// to them still leads to memory.
extern "C" fn in_child() {
    let memory = MEMORY.swap(ptr::null_mut(), Ordering::Relaxed);
    if !memory.is_null() {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: the range is the library's. It is not mapped in the child (MADV_DONTFORK).
        unsafe { libc::mmap(memory.cast(), ENTRIES * PAGE, libc::PROT_READ, flags, -1, 0) };
    }
    let _ = OWN.try_with(|own| own.set(ptr::null()));
    FORK_LOCK.unlock();
}

/// The records of the calling thread. The thread's first call requests them from Tollgate, which
/// takes some hundred microseconds.
pub fn thread() -> Result<ThreadRecords, Error> {
    let own = OWN.try_with(Cell::get).unwrap_or_default();
    if own.is_null() { open() } else { Ok(ThreadRecords(own)) }
}

fn open() -> Result<ThreadRecords, Error> {
    static HANDLERS: Once = Once::new();
    HANDLERS.call_once(|| {
        // SAFETY: the handlers live as long as the process.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
    });
    FORK_LOCK.lock();
    let opened = request_entry();
    FORK_LOCK.unlock();
    let page = opened?;
    let _ = OWN.try_with(|own| own.set(page));
    Ok(ThreadRecords(page))
}

/// A connection on which a request was sent.
struct Connection {
    stream: UnixStream,
    name: String,
}

impl Connection {
    /// `of`: of which thread or site.
    fn open(request: u32, of: u32) -> Result<Self, Error> {
        let name = std::env::var(VARIABLE).unwrap_or_default();
        if name.is_empty() {
            let reason = "this process has no in-band records: TOLLGATE_IN_BAND is not set, as \
                          `tollgate run --in-band` does";
            return Err(Error::Refused(reason.into()));
        }
        let connect = || -> io::Result<UnixStream> {
            let mut stream = match name.strip_prefix('@') {
                Some(name) => UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?,
                None => UnixStream::connect(&name)?,
            };
            stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
            stream.write_all([request, of].map(u32::to_ne_bytes).as_flattened())?;
            Ok(stream)
        };
        match connect() {
            Ok(stream) => Ok(Self { stream, name }),
            Err(error) => Err(Error::Unreachable(error, name)),
        }
    }

    fn failed(&self, error: io::Error) -> Error {
        Error::Unreachable(error, self.name.clone())
    }
}

/// Requests the entry of this thread, and maps the memory if this process has not done so.
fn request_entry() -> Result<*const ThreadPage, Error> {
    // SAFETY: takes no arguments and cannot fail.
    let mut connection = Connection::open(RECORDS_OF_THREAD, unsafe { libc::gettid() as u32 })?;
    let received = receive(&mut connection.stream);
    let (errno, descriptor) = received.map_err(|error| connection.failed(error))?;
    let Some(descriptor) = descriptor.filter(|_| errno == 0) else {
        return Err(Error::Refused(match errno {
            libc::ESRCH => "Tollgate does not follow this thread".to_owned(),
            libc::EUSERS => "too many threads or processes have in-band records".to_owned(),
            _ => format!("Tollgate cannot give this thread in-band records (error {errno})"),
        }));
    };
    let mut word = [0; 4];
    let entry = connection.stream.read_exact(&mut word).map(|()| u32::from_ne_bytes(word) as usize);
    let entry = entry.map_err(|error| connection.failed(error))?;
    let mut memory = MEMORY.load(Ordering::Relaxed);
    if memory.is_null() {
        memory = map(&descriptor).map_err(Error::Kernel)?;
        MEMORY.store(memory, Ordering::Relaxed);
    }
    // SAFETY: the first page of the memory.
    let version = unsafe { memory.cast::<u32>().read_volatile() };
    if version != VERSION || entry >= ENTRIES {
        return Err(Error::Refused(format!(
            "Tollgate has in-band records of version {version}, and libtollgate needs {VERSION}"
        )));
    }
    // SAFETY: within the memory.
    Ok(unsafe { memory.add(entry * PAGE) }.cast())
}

fn map(descriptor: &OwnedFd) -> io::Result<*mut u8> {
    let (length, fd) = (ENTRIES * PAGE, descriptor.as_raw_fd());
    // SAFETY: a new mapping.
    let memory =
        unsafe { libc::mmap(ptr::null_mut(), length, libc::PROT_READ, libc::MAP_SHARED, fd, 0) };
    if memory == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping of above.
    if unsafe { libc::madvise(memory, length, libc::MADV_DONTFORK) } != 0 {
        let error = io::Error::last_os_error();
        // SAFETY: as above.
        unsafe { libc::munmap(memory, length) };
        return Err(error);
    }
    Ok(memory.cast())
}

/// Receives an errno, and a descriptor if there is one.
fn receive(stream: &mut UnixStream) -> io::Result<(i32, Option<OwnedFd>)> {
    let mut word = [0_u8; 4];
    // Room for one descriptor, aligned as a header.
    let mut control = [0_u64; 4];
    let mut part = libc::iovec { iov_base: word.as_mut_ptr().cast(), iov_len: word.len() };
    // SAFETY: all bytes may be zero.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    // SAFETY: the header's parts outlive the call.
    let got =
        unsafe { libc::recvmsg(stream.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    if got < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has filled `control` up to msg_controllen.
    let descriptor = unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (!header.is_null() && (*header).cmsg_type == libc::SCM_RIGHTS)
            .then(|| OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<i32>().read_unaligned()))
    };
    stream.read_exact(&mut word[got as usize..])?;
    Ok((i32::from_ne_bytes(word), descriptor))
}

/// The records of a thread. They stay readable until the process ends or executes another program,
/// and also when the thread or Tollgate has ended; but then they do not advance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadRecords(*const ThreadPage);

// SAFETY: the memory is never unmapped, and any thread may read it.
unsafe impl Send for ThreadRecords {}
// SAFETY: as above.
unsafe impl Sync for ThreadRecords {}

impl ThreadRecords {
    /// The page, for the functions of the C interface.
    pub(crate) fn page(self) -> *const std::ffi::c_void {
        self.0.cast()
    }

    /// The number of calls that were recorded.
    pub fn sequence(self) -> u64 {
        // SAFETY: mapped memory, which the kernel changes.
        let sequence = unsafe { (&raw const (*self.0).sequence).read_volatile() };
        fence(Ordering::Acquire);
        sequence
    }

    /// The record with this number. `None`: it does not exist any more, or not yet.
    pub fn call(self, number: u64) -> Option<Call> {
        let index = number.checked_sub(1)? as usize % CALLS;
        // SAFETY: as above; any bytes are a valid record.
        let call = unsafe { (&raw const (*self.0).calls[index]).read_volatile() };
        fence(Ordering::Acquire);
        // The gate may be overwriting the oldest record.
        let newer = self.sequence().checked_sub(number)?;
        (newer < CALLS as u64 - 1).then_some(call)
    }

    /// The latest call, if it was recorded after the sequence number `before`. `None`: Tollgate
    /// does not record this thread any more.
    pub fn latest(self, before: u64) -> Option<Call> {
        let sequence = self.sequence();
        (sequence > before).then(|| self.call(sequence)).flatten()
    }
}

/// The kernel function in which a call slept. This is a request to Tollgate, which takes some
/// hundred microseconds; the name of a site does not change while the process runs.
pub fn site_name(site: u32) -> Result<String, Error> {
    let mut connection = Connection::open(NAME_OF_SITE, site)?;
    let mut name = String::new();
    let received = receive(&mut connection.stream)
        .and_then(|_| (&connection.stream).take(NAME_LEN).read_to_string(&mut name));
    match received {
        Ok(0) => Err(Error::Refused(format!("no call of this process has slept in a site {site}"))),
        Ok(_) => Ok(name),
        Err(error) => Err(connection.failed(error)),
    }
}
