//! Tasks with deadlines, whose work is known: begun by the program itself, or to be inferred.

use std::ffi::CString;
use std::fs::File;
use std::hint;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::process::{self, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread;
use std::time::Duration;

use tollgate::pace::{Task, TaskType};

use crate::arguments::{Arguments, HOUR_MS};
use crate::clock::nap;
use crate::cpu_time::{process_ns, thread_ns, work_for};
use crate::failure::{Outcome, os_failure};
use crate::output::print_line;
use crate::pipe::Pipe;
use crate::sleepers::is_asleep;

const MAX_TASKS: u64 = 100_000;

/// Prints a measured amount of processor time.
fn print_ns(ns: u64) -> Outcome {
    print_line(&ns.to_string())
}

/// Tasks that the program begins and ends. Prints the processor time within them.
pub fn own_tasks(mut arguments: Arguments) -> Outcome {
    let tasks = arguments.number("N", 1..=MAX_TASKS)?;
    let ms = arguments.number("MS", 0..=HOUR_MS)?;
    arguments.end()?;
    let kind = TaskType::new(c"frame");
    let mut ns = 0;
    for _ in 0..tasks {
        let task = kind.begin();
        let began = thread_ns();
        work_for(ms);
        ns += thread_ns() - began;
        task.end();
        nap(1)?;
    }
    print_ns(ns)
}

/// Tasks of which each ends where the next one begins.
pub fn chained_tasks(mut arguments: Arguments) -> Outcome {
    let tasks = arguments.number("N", 1..=MAX_TASKS)?;
    arguments.end()?;
    let kind = TaskType::new(c"frame");
    let mut task = kind.begin();
    for _ in 1..tasks {
        task = task.end_and_begin(kind);
    }
    task.end();
    Ok(())
}

/// Tasks that are unfinished at the same time. Another thread ends them, each twice, except the
/// last one, which nobody ends.
pub fn tasks_at_once(mut arguments: Arguments) -> Outcome {
    let tasks = arguments.number("N", 1..=MAX_TASKS)?;
    arguments.end()?;
    let kind = TaskType::new(c"frame");
    let begun: Vec<Task> = (0..tasks).map(|_| kind.begin()).collect();
    let ender = thread::spawn(move || {
        for task in &begun[..begun.len() - 1] {
            task.end();
            task.end();
        }
    });
    ender.join().expect("the thread does not panic");
    Ok(())
}

/// A task within a task. Prints the processor time of the outer and of the inner one.
pub fn nested_tasks(mut arguments: Arguments) -> Outcome {
    let ms = arguments.number("MS", 1..=HOUR_MS)?;
    arguments.end()?;
    let (outer, inner) = (TaskType::new(c"outer"), TaskType::new(c"inner"));
    let task = outer.begin();
    task.set_deadline(Duration::from_millis(HOUR_MS));
    let began = thread_ns();
    work_for(ms);
    let nested = inner.begin();
    let begun = thread_ns();
    work_for(ms);
    let inner_ns = thread_ns() - begun;
    nested.end();
    work_for(ms);
    let outer_ns = thread_ns() - began;
    task.end();
    print_line(&format!("{outer_ns} {inner_ns}"))
}

/// Tasks whose work a second thread does, which the first one wakes. Prints the processor time of
/// the process within the tasks.
pub fn handed_tasks(arguments: Arguments) -> Outcome {
    shared_tasks(arguments, |ms, back, _| {
        work_for(ms);
        back.send()
    })
}

/// The same, but the second thread still works when the first one ends the task.
pub fn running_tasks(arguments: Arguments) -> Outcome {
    shared_tasks(arguments, |ms, back, has_ended| {
        work_for(ms);
        back.send()?;
        while !has_ended.load(Ordering::SeqCst) {
            hint::spin_loop();
        }
        has_ended.store(false, Ordering::SeqCst);
        Ok(())
    })
}

/// Tasks whose work a new thread does. Prints the processor time of the process within the tasks.
pub fn created_tasks(mut arguments: Arguments) -> Outcome {
    let tasks = arguments.number("N", 1..=MAX_TASKS)?;
    let ms = arguments.number("MS", 1..=HOUR_MS)?;
    arguments.end()?;
    let kind = TaskType::new(c"frame");
    let began = process_ns();
    for _ in 0..tasks {
        let task = kind.begin();
        task.set_deadline(Duration::from_millis(20));
        thread::spawn(move || work_for(ms)).join().expect("the thread does not panic");
        task.end();
    }
    print_ns(process_ns() - began)
}

/// Tasks of one thread, with work of another one. The work gets its length in ms, the pipe that
/// tells the first thread to end the task, and whether the task has ended.
fn shared_tasks(
    mut arguments: Arguments,
    work: impl Fn(u64, &Pipe, &AtomicBool) -> Outcome + Sync,
) -> Outcome {
    let tasks = arguments.number("N", 1..=MAX_TASKS)?;
    let ms = arguments.number("MS", 1..=HOUR_MS)?;
    arguments.end()?;
    let (to, back) = (Pipe::new()?, Pipe::new()?);
    let kind = TaskType::new(c"frame");
    let (number, has_ended) = (AtomicI32::new(0), AtomicBool::new(false));
    let mut ns = 0;
    let outcome = thread::scope(|scope| {
        let worker = scope.spawn(|| {
            // SAFETY: takes no arguments.
            number.store(unsafe { libc::gettid() }, Ordering::SeqCst);
            (0..tasks).try_for_each(|_| {
                to.receive()?;
                work(ms, &back, &has_ended)
            })
        });
        for _ in 0..tasks {
            // The other thread falls asleep, so that this one wakes it.
            while !is_asleep(number.load(Ordering::SeqCst)) {
                nap(1)?;
            }
            let task = kind.begin();
            let began = process_ns();
            to.send()?;
            back.receive()?;
            ns += process_ns() - began;
            task.end();
            has_ended.store(true, Ordering::SeqCst);
        }
        worker.join().expect("the thread does not panic")
    });
    outcome?;
    print_ns(ns)
}

/// Work after each sleep of a timer. Prints the processor time between the sleeps.
pub fn ticks(mut arguments: Arguments) -> Outcome {
    let ticks = arguments.number("N", 1..=MAX_TASKS)?;
    let ms = arguments.number("MS", 0..=HOUR_MS)?;
    arguments.end()?;
    let mut ns = 0;
    for _ in 0..ticks {
        nap(3)?;
        let began = thread_ns();
        work_for(ms);
        ns += thread_ns() - began;
    }
    nap(3)?;
    print_ns(ns)
}

/// Messages over TCP, each of which makes the receiver work. Prints the port of the receiver.
pub fn worked_messages(mut arguments: Arguments) -> Outcome {
    let count = arguments.number("N", 1..=MAX_TASKS)?;
    let ms = arguments.number("MS", 0..=HOUR_MS)?;
    let port = arguments.flag("--port", "PORT", 1..=u16::MAX.into())?.unwrap_or(0);
    arguments.end()?;
    let port = serve(count, ms, port as u16).map_err(|error| os_failure("pass messages", error))?;
    print_line(&port.to_string())
}

/// Port 0 stands for one that is free.
fn serve(count: u64, ms: u64, port: u16) -> io::Result<u16> {
    // An address of its own: the port is free there.
    let [_, a, b, c] = process::id().to_be_bytes();
    let listener = TcpListener::bind((Ipv4Addr::new(127, a, b, c), port))?;
    let address = listener.local_addr()?;
    let server = thread::spawn(move || -> io::Result<()> {
        let (mut connection, _) = listener.accept()?;
        for _ in 0..count {
            connection.read_exact(&mut [0])?;
            work_for(ms);
        }
        Ok(())
    });
    let mut client = TcpStream::connect(address)?;
    client.set_nodelay(true)?;
    for _ in 0..count {
        thread::sleep(Duration::from_millis(ms + 3));
        client.write_all(b".")?;
    }
    server.join().expect("the thread does not panic")?;
    Ok(address.port())
}

/// Work after each wait that times out. A poll that does not wait is part of the work.
pub fn timeouts(mut arguments: Arguments) -> Outcome {
    let waits = arguments.number("N", 1..=MAX_TASKS)?;
    let ms = arguments.number("MS", 0..=HOUR_MS)?;
    arguments.end()?;
    // SAFETY: there is no descriptor to poll.
    let wait = |ms| unsafe { libc::poll(std::ptr::null_mut(), 0, ms) };
    for _ in 0..waits {
        wait(3);
        work_for(ms);
        wait(0);
        work_for(ms);
    }
    Ok(())
}

/// Reads of an input device (include/uapi/linux/input.h).
pub fn read_keys(mut arguments: Arguments) -> Outcome {
    /// The size of struct input_event, and where its type, code and value are.
    const EVENT: usize = 24;
    const EV_KEY: u16 = 1;
    const PRESSED: i32 = 1;
    let device = arguments.path("DEVICE")?;
    let mut left = arguments.number("N", 1..=MAX_TASKS)?;
    arguments.end()?;
    let failed = |error| os_failure("read the input device", error);
    let mut device = File::open(device).map_err(failed)?;
    while left > 0 {
        let mut events = [0; 16 * EVENT];
        let read = device.read(&mut events).map_err(failed)?;
        for event in events[..read].chunks_exact(EVENT) {
            let kind = u16::from_ne_bytes([event[16], event[17]]);
            let value = i32::from_ne_bytes([event[20], event[21], event[22], event[23]]);
            left -= u64::from(kind == EV_KEY && value == PRESSED).min(left);
        }
    }
    Ok(())
}

/// Connections over TCP, each of which gets a reply. Prints the port of the server.
pub fn replies(mut arguments: Arguments) -> Outcome {
    let count = arguments.number("N", 1..=MAX_TASKS)?;
    arguments.end()?;
    let exchange = || -> io::Result<u16> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        let server = thread::spawn(move || -> io::Result<()> {
            for _ in 0..count {
                let (mut connection, _) = listener.accept()?;
                connection.read_exact(&mut [0])?;
                connection.write_all(b".")?;
            }
            Ok(())
        });
        for _ in 0..count {
            let mut client = TcpStream::connect(address)?;
            client.write_all(b".")?;
            client.read_exact(&mut [0])?;
        }
        server.join().expect("the thread does not panic")?;
        Ok(address.port())
    };
    let port = exchange().map_err(|error| os_failure("exchange messages", error))?;
    print_line(&port.to_string())
}

/// Names types when it gets a byte.
pub fn named_types(mut arguments: Arguments) -> Outcome {
    let types = arguments.number("N", 1..=MAX_TASKS)?;
    arguments.end()?;
    io::stdin().read_exact(&mut [0]).map_err(|error| os_failure("read stdin", error))?;
    for number in 0..types {
        TaskType::new(&CString::new(number.to_string()).expect("it has no NUL"));
    }
    Ok(())
}

/// Tasks of many types, one of each. After each, a task of a type that is used often.
pub fn tasks_of_types(mut arguments: Arguments) -> Outcome {
    /// The gate keeps some thousand tasks until they are read.
    const PAUSE_AFTER: u64 = 250;
    let types = arguments.number("N", 1..=MAX_TASKS)?;
    arguments.end()?;
    let often = TaskType::new(c"often");
    for number in 0..types {
        TaskType::new(&CString::new(number.to_string()).expect("it has no NUL")).begin().end();
        often.begin().end();
        if number % PAUSE_AFTER == 0 {
            nap(200)?;
        }
    }
    Ok(())
}

/// Ends while a child begins and ends tasks.
pub fn orphaned_tasks(mut arguments: Arguments) -> Outcome {
    let tasks = arguments.number("N", 1..=MAX_TASKS)?;
    arguments.end()?;
    let mut command = Command::new("/proc/self/exe");
    command.args(["own-tasks", &tasks.to_string(), "0"]).stdout(Stdio::null());
    command.spawn().map(drop).map_err(|error| os_failure("execute itself", error))
}

/// A task that is not ended before the process executes another program, which has tasks, too.
pub fn exec_in_task(mut arguments: Arguments) -> Outcome {
    let tasks = arguments.number("N", 1..=MAX_TASKS)?;
    arguments.end()?;
    TaskType::new(c"frame").begin();
    let mut command = Command::new("/proc/self/exe");
    let error = command.args(["chained-tasks", &tasks.to_string()]).exec();
    Err(os_failure("execute itself", error))
}
