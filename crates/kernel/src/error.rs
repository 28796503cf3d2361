//! Errors at the boundary to the kernel. Where the user can do something about an error, its
//! message says what.

use std::io;
use std::path::PathBuf;

use crate::capability::has_sys_admin;
use crate::user_namespace::is_in_user_namespace;

/// An error of this crate. Its message is one sentence for the user.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process does not have root's rights.
    #[error("Tollgate needs root to load programs into the kernel; run it with sudo")]
    NotRoot,
    /// This process has root's rights only in its user namespace.
    #[error(
        "the kernel does not let Tollgate load programs, because it runs in a user namespace: root \
        of a user namespace is not enough, root of the machine is needed"
    )]
    UserNamespace,
    /// Root lacks the capability CAP_SYS_ADMIN (capabilities(7)).
    #[error(
        "the kernel does not let Tollgate load programs, because root lacks the capability \
        CAP_SYS_ADMIN here: run it on the host itself, or in a container with this capability \
        (--cap-add SYS_ADMIN)"
    )]
    NoCapability,
    /// /proc cannot be read, or shows the processes of another PID namespace.
    #[error("the /proc of this PID namespace is not mounted: processes cannot be found")]
    NoProc,
    /// The kernel was built without BTF.
    #[error(
        "this kernel does not describe its types: /sys/kernel/btf/vmlinux is missing \
         (CONFIG_DEBUG_INFO_BTF); `tollgate doctor` shows what else is needed"
    )]
    NoBtf,
    /// An operation of libbpf failed.
    #[error(
        "the kernel reported an error while {doing}: {cause}; `tollgate doctor` shows what this \
        kernel offers"
    )]
    Bpf {
        /// The operation, as a participle: "opening a map".
        doing: String,
        /// What libbpf returned.
        cause: libbpf_rs::Error,
    },
    /// The verifier rejected a plugin's program, or the kernel could not load it.
    #[error("the kernel refused the plugin: {cause}; log of the kernel's verifier:\n{log}")]
    Refused {
        /// The verifier's log. It is empty if the verifier did not reject the program.
        log: String,
        /// The line of the plugin's text at which the verifier stopped, if it is known.
        line: Option<usize>,
        /// The error of the system call.
        cause: io::Error,
    },
    /// The process has as many files open as it may have.
    #[error(
        "Tollgate needs more than {limit} open files: raise the limit to {enough} (ulimit -n \
        {enough})"
    )]
    FileLimitTooLow {
        /// The process's soft limit (RLIMIT_NOFILE).
        limit: u64,
        /// A limit that suffices.
        enough: u64,
    },
    /// A file cannot be created in a read-only file system.
    #[error(
        "{} cannot be created, because its file system is read-only: all Tollgate processes use \
        this file, so it needs a writable folder (for a container: --tmpfs /run)", path.display()
    )]
    ReadOnly {
        /// The file.
        path: PathBuf,
    },
    /// An operation on files or processes failed.
    #[error("cannot {doing}: {cause}")]
    Io {
        /// The operation, as an infinitive: "open a file".
        doing: String,
        /// The error of the system call.
        cause: io::Error,
    },
    /// The loaded gate was made by another build, so this process cannot join it.
    #[error(
        "another version of Tollgate has loaded the gate: stop it (`pgrep -a tollgate` finds it), \
        or use the same version"
    )]
    OtherVersion,
    /// Another process, which has this number, has active services.
    #[error(
        "process {0} already has active services: only one daemon of a machine can have services"
    )]
    ServicesActive(u32),
    /// Another process sets the speeds of the processors.
    #[error(
        "another Tollgate process already sets the speeds of this machine: only one can do so at \
        a time"
    )]
    SpeedsInUse,
    /// All positions of a hook's chain are in use.
    #[error(
        "a hook of the plugin already has {} linked plugin handlers: unload one", .0.owners.len()
    )]
    HookFull(HookUse),
    /// All plugin slots of a hook are in use.
    #[error(
        "a hook of the plugin already has {} loaded plugin handlers, counting all Tollgate \
        processes: unload one", .0.owners.len()
    )]
    NoSlotAtHook(HookUse),
    /// A device has an XDP program that Tollgate did not attach.
    #[error(
        "cannot attach a plugin to {device}: XDP program {number} ({name}) is attached, and the \
        kernel allows only one: stop the process that attached it, or detach it with `ip link set \
        dev {device} xdp off`"
    )]
    XdpOccupied {
        /// The network device's name.
        device: String,
        /// The ID of the attached program.
        number: u32,
        /// The name of the attached program.
        name: String,
    },
    /// A plugin has hooks of control groups, and no cgroup2 file system is mounted.
    #[error(
        "this plugin has cgroup hooks, but cgroup v2 is not mounted (mount -t cgroup2 none \
        /sys/fs/cgroup/unified)"
    )]
    NoCgroup2,
    /// A plugin's maps are too large for this machine.
    #[error(
        "the plugin's maps need {needed} MiB, but may take at most half of the {available} MiB \
        available: reduce their numbers of entries"
    )]
    TooMuchMemory {
        /// The size of the plugin's maps, in MiB.
        needed: u64,
        /// The kernel's estimate of available memory, in MiB.
        available: u64,
    },
    /// All entries for sessions are in use. There are this many.
    #[error("{0} Tollgate sessions are running, which is the limit: end one of them")]
    SessionsFull(u32),
}

/// Who has the plugins at a hook.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HookUse {
    /// The index of the program that has no room there, among those of the new plugin.
    pub program: usize,
    /// For each plugin at the hook, the PID of its owner in the owner's PID namespace.
    pub owners: Vec<u32>,
}

impl Error {
    /// Names the program of a plugin, by its index, for which a hook has no room.
    pub(crate) fn of_program(self, program: usize) -> Self {
        match self {
            Self::HookFull(at) => Self::HookFull(HookUse { program, ..at }),
            Self::NoSlotAtHook(at) => Self::NoSlotAtHook(HookUse { program, ..at }),
            other => other,
        }
    }

    /// Whether a file or a kernel object did not exist (ENOENT).
    pub fn is_absence(&self) -> bool {
        match self {
            Self::Io { cause, .. } => cause.kind() == io::ErrorKind::NotFound,
            Self::Bpf { cause, .. } => cause.kind() == libbpf_rs::ErrorKind::NotFound,
            _ => false,
        }
    }
}

/// What the fallible functions of this crate return.
pub type Result<T> = std::result::Result<T, Error>;

pub(crate) trait ErrorContext<T> {
    /// Names the failed operation. For an I/O error, the text completes the sentence "cannot …",
    /// as "open a file" does. For an error of libbpf, it completes "the kernel reported an error
    /// while …", as "opening a map" does.
    fn doing(self, doing: impl Into<String>) -> Result<T>;
}

impl<T> ErrorContext<T> for libbpf_rs::Result<T> {
    fn doing(self, doing: impl Into<String>) -> Result<T> {
        self.map_err(|cause| {
            if is_out_of_files(&cause) {
                too_few_files()
            } else if cause.kind() == libbpf_rs::ErrorKind::PermissionDenied
                && let Some(missing) = missing_rights()
            {
                missing
            } else {
                Error::Bpf { doing: doing.into(), cause }
            }
        })
    }
}

/// The rights that this process lacks, if it lacks any.
fn missing_rights() -> Option<Error> {
    if is_in_user_namespace() {
        Some(Error::UserNamespace)
    } else if !has_sys_admin() {
        Some(Error::NoCapability)
    } else {
        None
    }
}

/// Whether an operation of libbpf failed because the process has too many open files (EMFILE).
///
/// libbpf-rs has no [`ErrorKind`](libbpf_rs::ErrorKind) for this and does not return the error's
/// number, so that it has to be read from `errno`. The number is still there if no system call has
/// failed since the operation.
fn is_out_of_files(error: &libbpf_rs::Error) -> bool {
    let errno = io::Error::last_os_error().raw_os_error();
    error.kind() == libbpf_rs::ErrorKind::Other && errno == Some(libc::EMFILE)
}

fn too_few_files() -> Error {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid destination for the result.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    // What the kernel gives the first process (INR_OPEN_CUR of include/uapi/linux/fs.h).
    const USUAL: u64 = 1024;
    let enough = if limit.rlim_cur < USUAL { USUAL } else { limit.rlim_cur.saturating_mul(2) };
    Error::FileLimitTooLow { limit: limit.rlim_cur, enough }
}

impl<T> ErrorContext<T> for io::Result<T> {
    fn doing(self, doing: impl Into<String>) -> Result<T> {
        self.map_err(|cause| Error::Io { doing: doing.into(), cause })
    }
}
