//! seccomp filters that deny, trap or kill getppid and allow all other calls.

use crate::arguments::{Arguments, HOUR_MS, MAX_REPETITIONS};
use crate::failure::{Failure, Outcome, check, failed};
use crate::{process, raw};
use libc::{c_int, c_void, siginfo_t, sock_filter, sock_fprog, ucontext_t};
use std::mem::offset_of;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// `AUDIT_ARCH_X86_64` of linux/audit.h: EM_X86_64, 64-bit, little-endian.
const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
/// `si_code` of a SIGSYS that a filter caused.
const SYS_SECCOMP: c_int = 1;

const DENIED: i64 = -(libc::EPERM as i64);

const fn instruction(code: u32, jump_true: u8, jump_false: u8, operand: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: jump_true, jf: jump_false, k: operand }
}

/// Installs a filter with this `action` for getppid.
fn install(action: u32) -> Outcome {
    install_with_flags(action, 0).map(drop)
}

/// The same; returns what seccomp(2) returns: with SECCOMP_FILTER_FLAG_NEW_LISTENER, the
/// descriptor of the supervisor.
fn install_with_flags(action: u32, flags: libc::c_ulong) -> Result<RawFd, Failure> {
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    let architecture = offset_of!(libc::seccomp_data, arch) as u32;
    let number = offset_of!(libc::seccomp_data, nr) as u32;
    let mut filter = [
        instruction(LOAD, 0, 0, architecture),
        instruction(IF_EQUAL, 0, 3, AUDIT_ARCH_X86_64),
        instruction(LOAD, 0, 0, number),
        instruction(IF_EQUAL, 0, 1, libc::SYS_getppid as u32),
        instruction(RETURN, 0, 0, action),
        instruction(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: PR_SET_NO_NEW_PRIVS takes integers only.
    let promised = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    check(promised, "set no_new_privs")?;
    // SAFETY: `program` names `filter` and its length; the kernel copies both during the call.
    let installed = unsafe {
        let mode = libc::c_long::from(libc::SECCOMP_SET_MODE_FILTER);
        libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program)
    };
    check(installed as c_int, "install a seccomp filter")
}

/// getppid `times` times, each of which must fail with EPERM.
fn denied_calls(times: u64) -> Outcome {
    for _ in 0..times {
        let result = raw::getppid();
        if result != DENIED {
            return Err(failed(format!("getppid returned {result}, not -EPERM")));
        }
    }
    Ok(())
}

/// From now on, getppid fails with EPERM.
pub fn deny_getppid() -> Outcome {
    install(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32)
}

pub fn errno(mut arguments: Arguments) -> Outcome {
    let times = arguments.number("N", 0..=MAX_REPETITIONS)?;
    arguments.end()?;
    deny_getppid()?;
    denied_calls(times)?;
    for _ in 0..times {
        raw::getuid();
    }
    Ok(())
}

/// Answers `times` notifications: each waits `wait`, and then fails with EPERM or, if it is an odd
/// one, continues.
fn supervise(listener: RawFd, times: u64, wait: Duration) -> Outcome {
    for index in 0..times {
        // SAFETY: the kernel wants an all-zero request, and fills it.
        let mut request: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: `request` is a valid destination.
        let received = unsafe { libc::ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &raw mut request) };
        check(received, "receive a notification")?;
        thread::sleep(wait);
        let continues = index % 2 == 1;
        let response = libc::seccomp_notif_resp {
            id: request.id,
            val: 0,
            error: if continues { 0 } else { DENIED as i32 },
            flags: if continues { libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32 } else { 0 },
        };
        // SAFETY: `response` is a valid response.
        let sent = unsafe { libc::ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &raw const response) };
        check(sent, "answer a notification")?;
    }
    Ok(())
}

/// SECCOMP_IOCTL_NOTIF_RECV and SECCOMP_IOCTL_NOTIF_SEND of linux/seccomp.h: _IOWR('!', 0, …) and
/// _IOWR('!', 1, …).
const SECCOMP_IOCTL_NOTIF_RECV: libc::Ioctl = 0xc050_2100;
const SECCOMP_IOCTL_NOTIF_SEND: libc::Ioctl = 0xc018_2101;

pub fn supervised(mut arguments: Arguments) -> Outcome {
    let times = arguments.number("N", 0..=MAX_REPETITIONS)?;
    let wait = Duration::from_millis(arguments.number("MS", 0..=HOUR_MS)?);
    arguments.end()?;
    let listener =
        install_with_flags(libc::SECCOMP_RET_USER_NOTIF, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER)?;
    let supervisor = thread::spawn(move || supervise(listener, times, wait));
    for index in 0..times {
        let result = raw::getppid();
        if (result == DENIED) != (index % 2 == 0) {
            return Err(failed(format!("getppid {index} returned {result}")));
        }
    }
    supervisor.join().map_err(|_| failed("the supervisor panicked"))?
}

pub fn kill(arguments: Arguments) -> Outcome {
    arguments.end()?;
    process::forbid_core_dump()?;
    install(libc::SECCOMP_RET_KILL_PROCESS)?;
    let result = raw::getppid();
    Err(failed(format!("survived getppid, which returned {result}")))
}

static TRAPS: AtomicU64 = AtomicU64::new(0);

/// Counts the trap and gives the call the result that a filter with ERRNO would give it.
extern "C" fn on_trap(_signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo to a handler installed with SA_SIGINFO.
    let code = unsafe { (*info).si_code };
    if code == SYS_SECCOMP {
        TRAPS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: it passes a valid ucontext too, from which rt_sigreturn takes the registers.
        unsafe {
            (*context.cast::<ucontext_t>()).uc_mcontext.gregs[libc::REG_RAX as usize] = DENIED
        };
    }
}

pub fn trap(mut arguments: Arguments) -> Outcome {
    let times = arguments.number("N", 0..=MAX_REPETITIONS)?;
    arguments.end()?;
    // SAFETY: a zeroed sigaction is a valid one: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_trap as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: `on_trap` has the signature of SA_SIGINFO and is safe at any point of the program.
    let handled = unsafe { libc::sigaction(libc::SIGSYS, &action, std::ptr::null_mut()) };
    check(handled, "handle SIGSYS")?;
    install(libc::SECCOMP_RET_TRAP)?;
    denied_calls(times)?;
    let traps = TRAPS.load(Ordering::Relaxed);
    if traps != times {
        return Err(failed(format!("{traps} traps came for {times} calls")));
    }
    Ok(())
}
