//! seccomp filters that deny, trap or kill getppid and allow all other calls.

use crate::arguments::{Arguments, MAX_REPETITIONS};
use crate::failure::{Outcome, check, failed};
use crate::{process, raw};
use libc::{c_int, c_void, siginfo_t, sock_filter, sock_fprog, ucontext_t};
use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering};

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
    let installed =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    check(installed, "install a seccomp filter")?;
    Ok(())
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

pub fn errno(mut arguments: Arguments) -> Outcome {
    let times = arguments.number("N", 0..=MAX_REPETITIONS)?;
    arguments.end()?;
    install(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32)?;
    denied_calls(times)?;
    for _ in 0..times {
        raw::getuid();
    }
    Ok(())
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
