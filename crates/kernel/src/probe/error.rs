//! What the kernel answers when it refuses something.

use std::io;

/// The kernel's refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeError {
    /// The program or map, or the operation.
    pub what: String,
    pub errno: i32,
}

pub type ProbeResult<T = ()> = Result<T, ProbeError>;

impl ProbeError {
    pub(super) fn new(what: impl Into<String>, errno: i32) -> Self {
        Self { what: what.into(), errno }
    }

    pub(super) fn of(what: &str, error: &io::Error) -> Self {
        Self::new(what, error.raw_os_error().unwrap_or(libc::EIO))
    }

    /// Whether privileges or a policy are the reason; the kernel may have the capability all the
    /// same.
    pub fn is_permission(&self) -> bool {
        self.errno == libc::EPERM
    }

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
