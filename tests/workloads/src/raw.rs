//! System calls without a wrapper: nothing between two of them but the loop itself, and through
//! all three entries that a 64-bit process has.

use std::arch::asm;

/// Bit 30 of a call's number selects the x32 ABI (`__X32_SYSCALL_BIT`).
const X32_BIT: i64 = 0x4000_0000;
/// `getpid` in the 32-bit table.
const I386_GETPID: i32 = 20;

/// A call without arguments, by the `syscall` instruction. Returns the result, or minus the errno.
///
/// # Safety
/// `number` names a call that takes no arguments and does not touch the process's memory.
#[inline(always)]
unsafe fn syscall0(number: i64) -> i64 {
    let result;
    // SAFETY: the caller promises a call without arguments or effects on memory; `syscall` itself
    // overwrites rcx and r11 only, and never the stack.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

#[inline(always)]
pub fn getppid() -> i64 {
    // SAFETY: getppid takes no arguments and touches no memory.
    unsafe { syscall0(libc::SYS_getppid) }
}

#[inline(always)]
pub fn getuid() -> i64 {
    // SAFETY: getuid takes no arguments and touches no memory.
    unsafe { syscall0(libc::SYS_getuid) }
}

/// `getpid` under its x32 number. A kernel without x32 returns `-ENOSYS`.
#[inline(always)]
pub fn x32_getpid() -> i64 {
    // SAFETY: getpid takes no arguments and touches no memory, in the x32 table too.
    unsafe { syscall0(X32_BIT | libc::SYS_getpid) }
}

/// `getpid` through the 32-bit entry. A kernel without 32-bit emulation sends SIGSEGV.
#[inline(always)]
pub fn int80_getpid() -> i32 {
    let result;
    // SAFETY: the 32-bit getpid takes no arguments and touches no memory; r8 to r11 are named
    // because kernels before 4.17 zero them on this entry.
    unsafe {
        asm!(
            "int 0x80",
            inlateout("eax") I386_GETPID => result,
            lateout("r8") _,
            lateout("r9") _,
            lateout("r10") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// A call with two arguments through the 32-bit entry. Returns the result, or minus the errno.
#[inline(always)]
pub fn int80(number: i32, first: u32, second: u32) -> i32 {
    let result;
    // SAFETY: as above; what the call does is its caller's concern. The compiler keeps rbx for
    // itself.
    unsafe {
        asm!(
            "xchg {first}, rbx",
            "int 0x80",
            "xchg {first}, rbx",
            first = inout(reg) u64::from(first) => _,
            inlateout("eax") number => result,
            in("ecx") second,
            in("edx") 0,
            lateout("r8") _,
            lateout("r9") _,
            lateout("r10") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}
