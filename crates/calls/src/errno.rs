//! Names of errors.
//!
//! The names are those of the `syscalls` crate, which is generated from the kernel's
//! `include/uapi/asm-generic/errno*.h` and `include/linux/errno.h`.

use std::borrow::Cow;

use syscalls::Errno;

/// The name of error `n`, which is positive: 2 is `ENOENT`. For an error with two names, this is
/// the first one: `EAGAIN`, `EDEADLK`, `EOPNOTSUPP`.
///
/// The kernel's internal codes from 512 up have names too. A program never sees them, but at the
/// boundary they show that a signal interrupted the call and what happens next, for example
/// `ERESTARTSYS` and `ERESTART_RESTARTBLOCK`.
pub fn errno_name(n: i32) -> Option<&'static str> {
    Errno::new(n).name()
}

/// The name of error `n`, or `errno_N`.
pub fn display_errno(n: i32) -> Cow<'static, str> {
    match errno_name(n) {
        Some(name) => Cow::Borrowed(name),
        None => Cow::Owned(format!("errno_{n}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Unused numbers below 134: 41 and 58 were once second numbers of EAGAIN and EDEADLK.
    const HOLES: [i32; 2] = [41, 58];

    #[test]
    fn every_error_a_program_can_see_has_a_name() {
        for n in 1..=133 {
            assert_eq!(errno_name(n).is_none(), HOLES.contains(&n), "{n}");
        }
    }

    #[test]
    fn primary_names() {
        assert_eq!(errno_name(1), Some("EPERM"));
        assert_eq!(errno_name(2), Some("ENOENT"));
        assert_eq!(errno_name(11), Some("EAGAIN"));
        assert_eq!(errno_name(35), Some("EDEADLK"));
        assert_eq!(errno_name(38), Some("ENOSYS"));
        assert_eq!(errno_name(95), Some("EOPNOTSUPP"));
        assert_eq!(errno_name(110), Some("ETIMEDOUT"));
        assert_eq!(errno_name(133), Some("EHWPOISON"));
    }

    #[test]
    fn codes_that_show_only_at_the_boundary() {
        assert_eq!(errno_name(512), Some("ERESTARTSYS"));
        assert_eq!(errno_name(513), Some("ERESTARTNOINTR"));
        assert_eq!(errno_name(514), Some("ERESTARTNOHAND"));
        assert_eq!(errno_name(515), Some("ENOIOCTLCMD"));
        assert_eq!(errno_name(516), Some("ERESTART_RESTARTBLOCK"));
    }

    #[test]
    fn unknown_errors_show_their_number() {
        assert_eq!(display_errno(2), "ENOENT");
        assert_eq!(display_errno(41), "errno_41");
        assert_eq!(display_errno(0), "errno_0");
        assert_eq!(display_errno(-2), "errno_-2");
        assert_eq!(display_errno(4095), "errno_4095");
    }
}
