//! A server that works for several tenants, for a known time at each request, and the tenants that
//! send the requests.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use tollgate::TaskRef;

use crate::arguments::Arguments;
use crate::cpu_time::{thread_ns, work_for};
use crate::endpoint::{self, ByteStream, Endpoint, Listener};
use crate::failure::{Failure, Outcome, check, failed, os_failure};
use crate::output::{after_stdin_line, print_line, until_stdin_ends};

/// Names of tenants.
const TAGS: std::ops::RangeInclusive<u8> = b'a'..=b'y';
/// The name in the request that ends the server.
const END: u8 = b'z';
const MAX_MS: u64 = 60_000;

/// The server's work for each tenant, over all its processes.
struct TenantWork(*const AtomicU64);

// SAFETY: shared memory of atomics that is there until the process ends.
unsafe impl Sync for TenantWork {}
// SAFETY: as above.
unsafe impl Send for TenantWork {}

impl TenantWork {
    fn new() -> Result<Self, Failure> {
        let bytes = 256 * size_of::<AtomicU64>();
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: new memory at an address of the kernel's choice.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(os_failure("share memory", io::Error::last_os_error()));
        }
        Ok(Self(base.cast()))
    }

    fn of(&self, tag: u8) -> &AtomicU64 {
        // SAFETY: 256 of them are there.
        unsafe { &*self.0.add(tag.into()) }
    }
}

/// Measures a thread's work, which from one message to the next belongs to the sender of the first.
struct TenantMeter<'a> {
    work: &'a TenantWork,
    tag: Option<u8>,
    since: u64,
}

impl TenantMeter<'_> {
    fn switch_tenant(&mut self, tag: Option<u8>) {
        let now = thread_ns();
        if let Some(before) = std::mem::replace(&mut self.tag, tag) {
            self.work.of(before).fetch_add(now - self.since, Ordering::SeqCst);
        }
        self.since = now;
    }
}

/// How a server handles requests.
#[derive(Clone, Copy)]
struct ServeOptions {
    /// Each connection has a thread.
    threads: bool,
    /// Each request's work is done by a child.
    children: bool,
    end: fn(&TenantWork),
}

fn work_by_a_child(work: &TenantWork, tag: u8, ms: u64) -> io::Result<()> {
    // SAFETY: the child makes plain system calls only.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            work_for(ms);
            work.of(tag).fetch_add(thread_ns(), Ordering::SeqCst);
            // SAFETY: _exit has no preconditions.
            unsafe { libc::_exit(0) }
        }
        child => {
            // SAFETY: no status is requested.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
            Ok(())
        }
    }
}

/// Handles one connection's requests until the one that ends the server.
fn serve(
    connection: Box<dyn ByteStream>,
    meter: &mut TenantMeter<'_>,
    options: ServeOptions,
) -> io::Result<()> {
    let mut connection = BufReader::with_capacity(64, connection);
    let mut line = String::new();
    while connection.read_line(&mut line)? > 0 {
        let tag = line.as_bytes()[0];
        meter.switch_tenant((tag != END).then_some(tag));
        if tag == END {
            (options.end)(meter.work);
            // SAFETY: the other threads wait for tenants, and none are left.
            unsafe { libc::_exit(0) };
        }
        let ms = line[1..].trim().parse().unwrap_or(0);
        if options.children {
            work_by_a_child(meter.work, tag, ms)?;
        } else {
            work_for(ms);
        }
        connection.get_mut().write_all(b"done\n")?;
        // Adds the work so far, because the server may be ended at any time.
        meter.switch_tenant(Some(tag));
        line.clear();
    }
    Ok(())
}

fn print_work(work: &TenantWork) {
    for tag in TAGS.filter(|tag| work.of(*tag).load(Ordering::SeqCst) > 0) {
        let _ = print_line(&format!("{} {}", tag as char, work.of(tag).load(Ordering::SeqCst)));
    }
}

/// Prints where it listens, serves tenants until the request that ends it, and then prints how many
/// nanoseconds it has worked for each.
pub fn backend(mut arguments: Arguments) -> Outcome {
    let endpoint = Endpoint::of(&arguments.path(endpoint::FORM)?);
    let forks = arguments.flag("--forks", "N", 1..=100)?;
    let threads = arguments.flag("--threads", "N", 0..=1)?.unwrap_or(0) == 1;
    let children = arguments.flag("--children", "N", 0..=1)?.unwrap_or(0) == 1;
    let io_uring = arguments.flag("--io-uring", "CALL", 425..=426)?;
    arguments.end()?;
    if let Some(call) = io_uring {
        // No such ring exists; the kernel refuses the call, but it still counts as a use of
        // io_uring.
        // SAFETY: the call is refused, and takes no addresses.
        unsafe { libc::syscall(call as libc::c_long, u32::MAX, 0, 0, 0, 0, 0) };
    }
    let (listener, found) = endpoint.listen().map_err(|error| os_failure("listen", error))?;
    let work: &'static TenantWork = Box::leak(Box::new(TenantWork::new()?));
    print_line(&found)?;
    let options = ServeOptions { threads, children, end: print_work };
    let Some(forks) = forks else { return accept_all(&listener, work, options) };
    for _ in 0..forks {
        // SAFETY: this process has one thread.
        if check(unsafe { libc::fork() }, "fork")? == 0 {
            return accept_all(&listener, work, ServeOptions { end: |_| (), ..options });
        }
    }
    // One of the processes receives the request to end.
    // SAFETY: a null pointer requests no status.
    check(unsafe { libc::wait(std::ptr::null_mut()) }, "wait")?;
    print_work(work);
    // SAFETY: signals the process's own process group, and ignores the signal itself.
    unsafe {
        libc::signal(libc::SIGTERM, libc::SIG_IGN);
        libc::kill(0, libc::SIGTERM);
    }
    Ok(())
}

fn accept_all(listener: &Listener, work: &'static TenantWork, options: ServeOptions) -> Outcome {
    let mut meter = TenantMeter { work, tag: None, since: 0 };
    loop {
        let connection = listener().map_err(|error| os_failure("accept", error))?;
        // Errors are ignored, because a tenant may have ended.
        if options.threads {
            thread::spawn(move || {
                let mut meter = TenantMeter { work, tag: None, since: 0 };
                let _ = serve(connection, &mut meter, options);
                meter.switch_tenant(None);
            });
        } else {
            let _ = serve(connection, &mut meter, options);
        }
    }
}

/// After a line of stdin, sends requests to a back end, prints how many nanoseconds it has worked
/// itself, and waits for the end of stdin.
pub fn tenant(mut arguments: Arguments) -> Outcome {
    let endpoint = Endpoint::of(&arguments.path(endpoint::FORM)?);
    let tag = arguments.path("TAG")?;
    let ms = arguments.number("MS", 0..=MAX_MS)?;
    let requests = arguments.number("REQUESTS", 0..=1_000_000)?;
    let each = arguments.number_or(1, "PER-CONNECTION", 1..=1_000_000)?;
    arguments.end()?;
    let tag = match tag.to_str().map(str::as_bytes) {
        Some([tag]) if *tag == END || TAGS.contains(tag) => *tag as char,
        _ => return Err(Failure::Usage("TAG must be a letter".into())),
    };
    let mut connection = None;
    after_stdin_line(|| {
        for request in 0..requests {
            if request % each == 0 {
                let new = endpoint.connect().map_err(|error| os_failure("connect", error))?;
                connection = Some(BufReader::with_capacity(64, new));
            }
            let connection = connection.as_mut().expect("connected");
            let mut reply = String::new();
            connection
                .get_mut()
                .write_all(format!("{tag} {ms}\n").as_bytes())
                .map_err(|error| os_failure("request", error))?;
            // The server ends without a reply.
            if tag == END as char {
                continue;
            }
            connection
                .read_line(&mut reply)
                .map_err(|error| os_failure("wait for a reply", error))?;
            if reply != "done\n" {
                return Err(failed(format!("a reply of {reply:?}")));
            }
        }
        Ok(())
    })?;
    // A server with one thread can then serve others.
    drop(connection);
    until_stdin_ends()
}

/// Binds a process with the library, as a program would bind itself.
pub fn assign(mut arguments: Arguments) -> Outcome {
    let pid = arguments.number("PID", 0..=u64::from(u32::MAX))? as u32;
    let service = arguments.path("SERVICE")?;
    arguments.end()?;
    let (who, thread) =
        if pid == 0 { (TaskRef::OwnProcess, None) } else { (TaskRef::Process(pid), Some(pid)) };
    let done = tollgate::assign(who, &service.to_string_lossy())
        .and_then(|()| tollgate::service_of(thread));
    print_line(&done.map_err(|error| failed(error.to_string()))?)
}
