//! Errors at the boundary, each with a sentence that says what to do.

use std::io;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("Tollgate needs root to load programs into the kernel; run it with sudo")]
    NotRoot,
    #[error(
        "this kernel does not describe its types: /sys/kernel/btf/vmlinux is missing \
         (CONFIG_DEBUG_INFO_BTF); `tollgate doctor` shows what else is needed"
    )]
    NoBtf,
    #[error(
        "the kernel reported an error while {doing}: {cause}; `tollgate doctor` shows what this \
        kernel offers"
    )]
    Bpf { doing: String, cause: libbpf_rs::Error },
    #[error("the kernel refused the plugin: {cause}; log of the kernel's verifier:\n{log}")]
    Refused { log: String, line: Option<usize>, cause: io::Error },
    #[error("Tollgate needs more than {limit} open files: raise the limit (ulimit -n)")]
    FileLimitTooLow { limit: u64 },
    #[error("cannot {doing}: {cause}")]
    Io { doing: String, cause: io::Error },
    #[error(
        "another version of Tollgate has loaded the gate: stop it (`pgrep -a tollgate` finds it), \
        or use the same version"
    )]
    OtherVersion,
    #[error(
        "process {0} already has active services: only one daemon of a machine can have services"
    )]
    ServicesInForce(u32),
    #[error("this hook already has {0} linked plugin handlers: unload one")]
    HookFull(usize),
    #[error(
        "this hook already has {0} loaded plugin handlers, counting all Tollgate processes: \
        unload one"
    )]
    NoSlotAtHook(u32),
    #[error(
        "cannot attach a plugin to {device}: XDP program {number} ({name}) is attached, and the \
        kernel allows only one: stop the process that attached it, or detach it with `ip link set \
        dev {device} xdp off`"
    )]
    XdpOccupied { device: String, number: u32, name: String },
    #[error(
        "this plugin has cgroup hooks, but cgroup v2 is not mounted (mount -t cgroup2 none \
        /sys/fs/cgroup/unified)"
    )]
    NoCgroup2,
    #[error(
        "the plugin's maps need {needed} MiB, but may take at most half of the {available} MiB \
        available: reduce their numbers of entries"
    )]
    TooMuchMemory { needed: u64, available: u64 },
    #[error("{0} Tollgate sessions are running, which is the limit: end one of them")]
    SessionsFull(u32),
}

impl Error {
    /// Whether something did not exist.
    pub fn is_absence(&self) -> bool {
        match self {
            Self::Io { cause, .. } => cause.kind() == io::ErrorKind::NotFound,
            Self::Bpf { cause, .. } => cause.kind() == libbpf_rs::ErrorKind::NotFound,
            _ => false,
        }
    }
}

pub type Result<T> = std::result::Result<T, Error>;

pub(crate) trait ErrorContext<T> {
    /// Names the failed operation, to complete the sentence "cannot …" or "refused … while …".
    fn doing(self, doing: impl Into<String>) -> Result<T>;
}

impl<T> ErrorContext<T> for libbpf_rs::Result<T> {
    fn doing(self, doing: impl Into<String>) -> Result<T> {
        self.map_err(|cause| {
            if is_out_of_files(&cause) {
                too_few_files()
            } else {
                Error::Bpf { doing: doing.into(), cause }
            }
        })
    }
}

/// To be called at once after a failed call: libbpf-rs hides the error's number, but libbpf leaves
/// it in `errno`, and what is closed since then does not change that.
fn is_out_of_files(error: &libbpf_rs::Error) -> bool {
    let errno = io::Error::last_os_error().raw_os_error();
    error.kind() == libbpf_rs::ErrorKind::Other && errno == Some(libc::EMFILE)
}

fn too_few_files() -> Error {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid destination for the result.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    Error::FileLimitTooLow { limit: limit.rlim_cur }
}

impl<T> ErrorContext<T> for io::Result<T> {
    fn doing(self, doing: impl Into<String>) -> Result<T> {
        self.map_err(|cause| Error::Io { doing: doing.into(), cause })
    }
}
