//! The latest calls of a thread, with what each has cost (docs/in-band.md).
//!
//! The records are in memory that this process maps for reading; reading one is a few plain loads.
//! This works in a command of `tollgate run --in-band`, and in any program that a
//! `tollgate daemon --in-band` gates.

use std::cell::{Cell, UnsafeCell};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;
use std::{env, mem, ptr};

use control::{Challenge, DEFAULT_IN_BAND_SOCKET, IN_BAND_VARIABLE, InBandRequest};

use crate::Error;

const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

// bpf/wire/in_band.h
const VERSION: u32 = 2;
const PAGE: usize = 4096;
const ENTRIES: usize = 257;
const CALLS: usize = 16;
const SLEEPS: usize = 5;
/// The most bytes of a name or of a place in the source (include/linux/kallsyms.h, KSYM_NAME_LEN;
/// include/uapi/linux/limits.h, PATH_MAX).
const MAX_TEXT_LEN: u64 = 4096;

/// How many other threads with in-band records sleep in a site; 65535: it is not known.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Others {
    /// Threads of the same user, of all processes.
    pub same_user: u16,
    /// Threads of other users.
    pub outside: u16,
}

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
    /// Who else slept there when the first of these sleeps began.
    pub at_entry: Others,
    /// Who else slept there when the last of these sleeps ended.
    pub at_exit: Others,
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
    /// 1: seccomp or a tracer rejected the call. `wall_ns` is 0 unless it waited for that.
    pub is_rejected: u8,
    sleeps: u32,
    /// The time asleep in further sites.
    pub other_sleeps_ns: u64,
    unused: u64,
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
    losses: u64,
    unused: [u64; 62],
    calls: [Call; CALLS],
    unused_end: [u64; PAGE / 8 - 64 - CALLS * size_of::<Call>() / 8],
}

const _: () = assert!(size_of::<ThreadPage>() == PAGE && size_of::<Call>() == 192);

/// MappedMemory of this process.
struct MappedMemory {
    /// Tollgate's number of it.
    number: u32,
    start: *mut u8,
}

/// What this process has mapped: one memory for each Tollgate from which it has requested records.
/// None is unmapped, because records in it may still be read.
static MEMORY: ForkLock = ForkLock {
    mutex: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
    mapped: UnsafeCell::new(Vec::new()),
};

/// Held while memory is being mapped, and during a fork, so that no child gets the memory or its
/// descriptor.
struct ForkLock {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    mapped: UnsafeCell<Vec<MappedMemory>>,
}

// SAFETY: the mutex is used only through the functions of libc, by its address, and the list only
// by those who hold the mutex.
unsafe impl Sync for ForkLock {}

impl ForkLock {
    fn lock(&self) {
        // SAFETY: an initialized mutex, which never moves.
        unsafe { libc::pthread_mutex_lock(self.mutex.get()) };
    }

    fn unlock(&self) {
        // SAFETY: as above; the caller has locked it.
        unsafe { libc::pthread_mutex_unlock(self.mutex.get()) };
    }
}

/// The process that has mapped the memory. A child that was created by a system call, and not by
/// the fork of the C library, does not have it.
static OWNER: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// The page of this thread; NULL: it has none yet.
    static OWN: Cell<*const ThreadPage> = const { Cell::new(ptr::null()) };
}

extern "C" fn before_fork() {
    MEMORY.lock();
}

extern "C" fn in_parent() {
    MEMORY.unlock();
}

/// The child has no records. Where its parent's memory was, it gets empty pages, so that a pointer
/// to them still leads to memory.
extern "C" fn in_child() {
    // SAFETY: the lock is held since `before_fork`.
    let mapped = unsafe { &mut *MEMORY.mapped.get() };
    for memory in mapped.drain(..) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: the range is the library's. It is not mapped in the child (MADV_DONTFORK).
        unsafe { libc::mmap(memory.start.cast(), ENTRIES * PAGE, libc::PROT_READ, flags, -1, 0) };
    }
    let _ = OWN.try_with(|own| own.set(ptr::null()));
    MEMORY.unlock();
}

/// The records of the calling thread. The thread's first call requests them from Tollgate, which
/// takes some hundred microseconds, and some ten milliseconds if many processes request their first
/// ones at the same time. A later one makes system calls to see whether they still advance, and
/// requests them anew if not: from a daemon that was restarted, for example. Records that were
/// requested before stay readable.
pub fn thread() -> Result<ThreadRecords, Error> {
    let own = OWN.try_with(Cell::get).unwrap_or_default();
    let is_mapped = !own.is_null() && OWNER.load(Ordering::Relaxed) == std::process::id();
    let records = ThreadRecords(own);
    if is_mapped && records.advance() { Ok(records) } else { open() }
}

fn open() -> Result<ThreadRecords, Error> {
    static HANDLERS: Once = Once::new();
    HANDLERS.call_once(|| {
        // SAFETY: the handlers live as long as the process.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
    });
    MEMORY.lock();
    let process = std::process::id();
    if OWNER.swap(process, Ordering::Relaxed) != process {
        // SAFETY: the lock is held. The memory of the parent is not mapped here.
        unsafe { (*MEMORY.mapped.get()).clear() };
    }
    let opened = request_entry();
    MEMORY.unlock();
    let page = opened?;
    let _ = OWN.try_with(|own| own.set(page));
    Ok(ThreadRecords(page))
}

/// Makes a call again that a signal has interrupted. With a time limit on the socket, the kernel
/// does not do so itself (signal(7)).
fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// A connection on which a request was sent.
struct Connection {
    stream: UnixStream,
    name: String,
}

/// The socket that the environment names. A program that has more rights than its user, as a
/// set-user-ID program has, does not let him choose where it sends requests.
fn socket_of_variable() -> Option<String> {
    // SAFETY: takes no arguments and cannot fail.
    let has_more_rights = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    let name = env::var(IN_BAND_VARIABLE).ok().filter(|name| !name.is_empty());
    name.filter(|_| !has_more_rights)
}

/// Whether root listens at the other end. Any user can have a name in the abstract namespace that
/// Tollgate has left.
fn is_roots(stream: &UnixStream) -> bool {
    /// Root in a user namespace that does not have root (user_namespaces(7)).
    const UNMAPPED: u32 = 65534;
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: a destination of the given length.
    unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    let has_all_users = || {
        let users = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        users.split_whitespace().eq(["0", "0", "4294967295"])
    };
    peer.uid == 0 || peer.uid == UNMAPPED && !has_all_users()
}

/// Why Tollgate refuses a request (crates/tollgate/src/lens/in_band_server.rs, errno_of).
fn refused(errno: i32) -> Error {
    Error::Refused(match errno {
        libc::ESRCH => "Tollgate does not gate this thread".to_owned(),
        libc::EBUSY => {
            "this thread counts in another session of Tollgate, and not in the one that gives \
            in-band records"
                .to_owned()
        }
        libc::EUSERS => "too many processes have in-band records (255 at a time)".to_owned(),
        libc::ENOSPC => {
            "too many threads of this process have in-band records (256 at a time)".to_owned()
        }
        _ => format!("Tollgate has refused: {}", io::Error::from_raw_os_error(errno)),
    })
}

impl Connection {
    fn open(request: InBandRequest) -> Result<Self, Error> {
        let variable = socket_of_variable();
        let is_set = variable.is_some();
        let name = variable.unwrap_or_else(|| DEFAULT_IN_BAND_SOCKET.into());
        let connect = || match name.strip_prefix('@') {
            Some(name) => UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?),
            None => control::connect(&name),
        };
        let stream = match uninterrupted(connect) {
            Ok(stream) => stream,
            Err(error) if is_set => return Err(Error::NoRecords(error, name)),
            Err(error) => {
                return Err(Error::Refused(format!(
                    "this process has no in-band records: {IN_BAND_VARIABLE} is not set, as \
                    `tollgate run --in-band` does, and no `tollgate daemon --in-band` can be \
                    reached at {name}: {error}"
                )));
            }
        };
        if !is_roots(&stream) {
            let reason = format!("who listens at {name} is not root, and so is not Tollgate");
            return Err(Error::Refused(reason));
        }
        let mut connection = Self { stream, name };
        let timeout = connection.stream.set_read_timeout(Some(REPLY_TIMEOUT));
        timeout.map_err(|error| connection.failed(error))?;
        match connection.word()? {
            0 => {}
            errno => return Err(refused(errno as i32)),
        }
        connection.send(request).map_err(|error| connection.failed(error))?;
        Ok(connection)
    }

    fn send(&mut self, request: InBandRequest) -> io::Result<()> {
        let mut challenge = Challenge::default();
        self.stream.read_exact(&mut challenge)?;
        self.stream.write_all(&request.to_bytes(challenge))
    }

    fn failed(&self, error: io::Error) -> Error {
        Error::NoRecords(error, self.name.clone())
    }

    fn word(&mut self) -> Result<u32, Error> {
        let mut word = [0; 4];
        let read = self.stream.read_exact(&mut word);
        read.map(|()| u32::from_ne_bytes(word)).map_err(|error| self.failed(error))
    }
}

/// What Tollgate has given to a thread.
struct Granted {
    memory: OwnedFd,
    entry: u32,
    memory_number: u32,
}

/// Requests the records of a thread. Returns the error number with which Tollgate refuses.
fn request_records(thread: u32) -> Result<Result<Granted, i32>, Error> {
    let mut connection = Connection::open(InBandRequest::Records(thread))?;
    let received = uninterrupted(|| receive(&mut connection.stream));
    let received = received.map_err(|error| connection.failed(error))?;
    match received {
        (0, Some(memory)) => {
            let (entry, memory_number) = (connection.word()?, connection.word()?);
            Ok(Ok(Granted { memory, entry, memory_number }))
        }
        (0, None) => Ok(Err(libc::EMFILE)),
        (errno, _) => Ok(Err(errno)),
    }
}

/// The descriptor of this process's memory, as the library gets it for one of the process's
/// threads, or the error number. Tests use it to try what a program must not be able to do.
#[doc(hidden)]
pub fn memory_of(thread: u32) -> Result<Result<OwnedFd, i32>, Error> {
    Ok(request_records(thread)?.map(|granted| granted.memory))
}

/// Requests the entry of this thread, and maps the memory if this process has not done so.
fn request_entry() -> Result<*const ThreadPage, Error> {
    // SAFETY: takes no arguments and cannot fail.
    let granted = request_records(unsafe { libc::gettid() as u32 })?.map_err(refused)?;
    // SAFETY: the caller holds the lock.
    let mapped = unsafe { &mut *MEMORY.mapped.get() };
    let known = mapped.iter().find(|memory| memory.number == granted.memory_number);
    let start = match known.map(|memory| memory.start) {
        Some(start) => start,
        None => {
            let start = map(&granted.memory).map_err(Error::Kernel)?;
            mapped.push(MappedMemory { number: granted.memory_number, start });
            start
        }
    };
    // SAFETY: the first page of the memory.
    let version = unsafe { start.cast::<u32>().read_volatile() };
    let entry = granted.entry as usize;
    if version != VERSION || entry >= ENTRIES {
        return Err(Error::Refused(format!(
            "Tollgate has in-band records of version {version}, and libtollgate needs {VERSION}"
        )));
    }
    // SAFETY: within the memory.
    Ok(unsafe { start.add(entry * PAGE) }.cast())
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

    /// Whether a call of this thread is recorded here.
    fn advance(self) -> bool {
        let before = self.sequence();
        // SAFETY: takes no arguments and cannot fail.
        unsafe { libc::syscall(libc::SYS_gettid) };
        self.sequence() != before
    }

    /// The number of calls that were recorded.
    pub fn sequence(self) -> u64 {
        // SAFETY: mapped memory, which the kernel changes.
        let sequence = unsafe { (&raw const (*self.0).sequence).read_volatile() };
        fence(Ordering::Acquire);
        sequence
    }

    /// The number of calls that have ended without a record.
    pub fn losses(self) -> u64 {
        // SAFETY: as above.
        unsafe { (&raw const (*self.0).losses).read_volatile() }
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
    /// does not record this thread any more, or could not record the call ([`Self::losses`]).
    pub fn latest(self, before: u64) -> Option<Call> {
        let sequence = self.sequence();
        (sequence > before).then(|| self.call(sequence)).flatten()
    }

    /// The time for which the calls after the sequence number `before` were blocked, as far as
    /// their records still exist. A call that a signal handler interrupts has a record for each
    /// part, and the handler's own calls have theirs.
    pub fn blocked_since(self, before: u64) -> u64 {
        let sequence = self.sequence();
        let first = (before + 1).max(sequence.saturating_sub(CALLS as u64 - 2));
        (first..=sequence).filter_map(|number| self.call(number)).map(|call| call.blocked_ns).sum()
    }
}

/// The kernel function in which a call slept. This is a request to Tollgate, which takes some
/// hundred microseconds; the name of a site does not change while the process runs.
pub fn site_name(site: u32) -> Result<String, Error> {
    let none = || Error::Refused(format!("no call of this process has slept in a site {site}"));
    request_text(InBandRequest::SiteName(site))?.ok_or_else(none)
}

/// The file and line of the kernel's source where a call slept, such as "fs/pipe.c:325". `None`:
/// they are not known, because the kernel's debug information is not installed, for example. This
/// is a request to Tollgate, whose first reply may take some seconds.
pub fn site_source(site: u32) -> Result<Option<String>, Error> {
    request_text(InBandRequest::SiteSource(site))
}

/// `None`: the text is empty.
fn request_text(request: InBandRequest) -> Result<Option<String>, Error> {
    let mut connection = Connection::open(request)?;
    let errno = connection.word()?;
    if errno != 0 {
        return Err(refused(errno as i32));
    }
    let mut text = String::new();
    let read = (&connection.stream).take(MAX_TEXT_LEN).read_to_string(&mut text);
    read.map_err(|error| connection.failed(error))?;
    Ok(Some(text).filter(|text| !text.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records whose calls were blocked for as many ns as their numbers say.
    fn records(sequence: u64) -> ThreadRecords {
        // SAFETY: all bytes may be zero.
        let mut page: Box<ThreadPage> = unsafe { Box::new(mem::zeroed()) };
        page.sequence = sequence;
        for number in sequence.saturating_sub(CALLS as u64 - 1).max(1)..=sequence {
            page.calls[(number - 1) as usize % CALLS].blocked_ns = number;
        }
        ThreadRecords(Box::leak(page))
    }

    #[test]
    fn parts_of_an_interrupted_call_add_up() {
        assert_eq!(records(20).blocked_since(17), 18 + 19 + 20);
        assert_eq!(records(20).blocked_since(20), 0);
        assert_eq!(records(3).blocked_since(0), 1 + 2 + 3);
        assert_eq!(records(0).blocked_since(0), 0);
    }

    #[test]
    fn overwritten_records_do_not_count() {
        assert_eq!(records(100).blocked_since(0), (86..=100).sum::<u64>());
    }

    #[test]
    fn interrupted_call_is_made_again() {
        let mut calls = 0;
        let done = uninterrupted(|| {
            calls += 1;
            if calls < 3 { Err(io::ErrorKind::Interrupted.into()) } else { Ok(calls) }
        });
        assert_eq!(done.expect("it succeeds"), 3);
    }
}
