//! A program whose threads and children sleep in one site, and which knows how many do. Only these
//! workloads sleep in eventfd_read, so the numbers are exact.

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use tollgate::in_band::{Others, Sleep};

use crate::arguments::Arguments;
use crate::clock::nap;
use crate::failure::{Failure, Outcome, check, failed, os_failure};
use crate::in_band::{own, record_of};
use crate::output::print_line;

const UNPRIVILEGED: libc::uid_t = 65534;
const WAITING: usize = 3;
/// Some kernels do not report each switch, so a thread may sleep uncounted.
const TRIES: usize = 10;
const NOBODY: Others = Others { same_user: 0, outside: 0 };

/// A descriptor whose reader sleeps until there is a token.
struct Tokens(i32);

impl Tokens {
    fn new() -> Result<Self, Failure> {
        // SAFETY: takes numbers only.
        let descriptor = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
        Ok(Self(check(descriptor, "make an eventfd")?))
    }

    fn take(&self) {
        let mut token = 0_u64;
        // SAFETY: room for eight bytes.
        unsafe { libc::read(self.0, (&raw mut token).cast(), 8) };
    }

    fn give(&self) {
        let token = 1_u64;
        // SAFETY: eight bytes.
        unsafe { libc::write(self.0, (&raw const token).cast(), 8) };
    }
}

impl Drop for Tokens {
    fn drop(&mut self) {
        // SAFETY: its own descriptor.
        unsafe { libc::close(self.0) };
    }
}

fn own_number() -> u32 {
    // SAFETY: takes no arguments and cannot fail.
    unsafe { libc::gettid() as u32 }
}

/// Waits until a task sleeps in a read of this descriptor, or has ended.
fn wait_until_it_reads(task: u32, tokens: &Tokens) -> Outcome {
    let begin = format!("{} {:#x} ", libc::SYS_read, tokens.0);
    loop {
        match fs::read_to_string(format!("/proc/{task}/syscall")) {
            Ok(call) if call.starts_with(&begin) => return Ok(()),
            Ok(_) => nap(1)?,
            Err(error) => return Err(os_failure("see another thread", error)),
        }
    }
}

/// This thread's sleep, during which another one calls `meanwhile`.
fn sleep_while(meanwhile: impl FnOnce() -> Outcome + Send) -> Result<Option<Sleep>, Failure> {
    let (records, tokens, own) = (own()?, Tokens::new()?, own_number());
    thread::scope(|scope| {
        let giver = scope.spawn(|| {
            let outcome = wait_until_it_reads(own, &tokens).and_then(|()| meanwhile());
            tokens.give();
            outcome
        });
        // The call must be the only one between two readings.
        let call = record_of(records, || tokens.take());
        giver.join().expect("it has not panicked")?;
        Ok(call?.sleeps().first().copied())
    })
}

fn find(
    expected: (Others, Others),
    mut sleep: impl FnMut() -> Result<Option<Sleep>, Failure>,
) -> Outcome {
    let mut latest = None;
    for _ in 0..TRIES {
        latest = sleep()?;
        if latest.is_some_and(|slept| (slept.at_entry, slept.at_exit) == expected) {
            return Ok(());
        }
    }
    Err(failed(format!("{expected:?} are expected: {latest:?}")))
}

/// Others wait when a sleep begins, and one of them not any more when it ends.
fn beside_threads() -> Outcome {
    let others = |same_user| Others { same_user, outside: 0 };
    find((others(WAITING as u16), others(WAITING as u16 - 1)), || {
        let numbers = [const { AtomicU32::new(0) }; WAITING];
        let tokens: Vec<_> = (0..WAITING).map(|_| Tokens::new()).collect::<Result<_, _>>()?;
        thread::scope(|scope| {
            let mut waiting = Vec::new();
            for (number, tokens) in numbers.iter().zip(&tokens) {
                waiting.push(scope.spawn(move || {
                    own()?;
                    number.store(own_number(), Ordering::SeqCst);
                    tokens.take();
                    Ok::<(), Failure>(())
                }));
            }
            for (number, tokens) in numbers.iter().zip(&tokens) {
                while number.load(Ordering::SeqCst) == 0 {
                    nap(1)?;
                }
                wait_until_it_reads(number.load(Ordering::SeqCst), tokens)?;
            }
            let first = waiting.remove(0);
            let slept = sleep_while(|| {
                tokens[0].give();
                first.join().expect("it has not panicked")
            });
            tokens[1..].iter().for_each(Tokens::give);
            for thread in waiting {
                thread.join().expect("it has not panicked")?;
            }
            slept
        })
    })
}

/// A child with records sleeps when a sleep begins, and is killed during it.
fn beside_killed_child(user: Option<libc::uid_t>, expected: Others) -> Outcome {
    find((expected, NOBODY), || {
        let tokens = Tokens::new()?;
        // SAFETY: this process has one thread now.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: takes a number.
            let changed = user.is_none_or(|user| unsafe { libc::setuid(user) } == 0);
            if changed && own().is_ok() {
                tokens.take();
            }
            // SAFETY: ends the child.
            unsafe { libc::_exit(1) };
        }
        wait_until_it_reads(child as u32, &tokens)?;
        sleep_while(|| {
            // SAFETY: its own child, which it has not waited for.
            unsafe {
                libc::kill(child, libc::SIGKILL);
                libc::waitpid(child, std::ptr::null_mut(), 0);
            }
            Ok(())
        })
    })
}

/// Compares how many wait with what it knows.
pub fn waiters(arguments: Arguments) -> Outcome {
    arguments.end()?;
    find((NOBODY, NOBODY), || sleep_while(|| Ok(())))?;
    beside_threads()?;
    beside_killed_child(None, Others { same_user: 1, outside: 0 })?;
    // SAFETY: takes no arguments and cannot fail.
    if unsafe { libc::geteuid() } == 0 {
        beside_killed_child(Some(UNPRIVILEGED), Others { same_user: 0, outside: 1 })?;
    }
    find((NOBODY, NOBODY), || sleep_while(|| Ok(())))?;
    print_line("ok")
}

/// Sleeps for ever.
pub fn wait(arguments: Arguments) -> Outcome {
    arguments.end()?;
    own()?;
    let tokens = Tokens::new()?;
    print_line("waiting")?;
    tokens.take();
    Ok(())
}
