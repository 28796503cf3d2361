//! The kernel's refusals.

use std::io;

/// The kernel refused a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeError {
    /// The program, the map or the operation that it refused.
    pub what: String,
    /// The positive number of the error.
    pub errno: i32,
}

/// The result of a probe. An error means that this kernel lacks something, or that this process may
/// not try it.
pub type ProbeResult<T = ()> = Result<T, ProbeError>;

impl ProbeError {
    /// `errno` is positive.
    pub(super) fn new(what: impl Into<String>, errno: i32) -> Self {
        Self { what: what.into(), errno }
    }

    /// An error without a number counts as EIO.
    pub(super) fn of(what: &str, error: &io::Error) -> Self {
        Self::new(what, error.raw_os_error().unwrap_or(libc::EIO))
    }

    /// Whether the probe was refused for lack of privileges, or by a policy. The kernel may have
    /// the feature nevertheless.
    pub fn is_permission(&self) -> bool {
        self.errno == libc::EPERM
    }

    /// The symbol of the error, such as "EPERM". A number that BPF does not return is given as
    /// "error N".
    pub fn errno_name(&self) -> String {
        /// Internal to the kernel, but BPF returns it.
        const ENOTSUPP: i32 = 524;
        let name = match self.errno {
            libc::EPERM => "EPERM",
            libc::ENOENT => "ENOENT",
            libc::ESRCH => "ESRCH",
            libc::E2BIG => "E2BIG",
            libc::EACCES => "EACCES",
            libc::EBUSY => "EBUSY",
            libc::ENODEV => "ENODEV",
            libc::EINVAL => "EINVAL",
            libc::ENOSYS => "ENOSYS",
            libc::EOPNOTSUPP => "EOPNOTSUPP",
            libc::ENOMEM => "ENOMEM",
            ENOTSUPP => "ENOTSUPP",
            other => return format!("error {other}"),
        };
        name.into()
    }
}
