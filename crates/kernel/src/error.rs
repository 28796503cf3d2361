//! What can go wrong at the border, each with a sentence that says what to do.

use std::io;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("Tollgate needs root to load programs into the kernel; run it with sudo")]
    NotRoot,
    #[error(
        "this kernel does not describe its types: /sys/kernel/btf/vmlinux is missing (CONFIG_DEBUG_INFO_BTF); \
         `tollgate doctor` shows what else is needed"
    )]
    NoBtf,
    #[error(
        "the kernel refused the gate while {doing}: {cause}; `tollgate doctor` shows what this kernel offers"
    )]
    Bpf { doing: String, cause: libbpf_rs::Error },
    #[error("the kernel refused the plugin: {cause}; its verifier said:\n{log}")]
    Refused { log: String, line: Option<usize>, cause: io::Error },
    #[error("Tollgate needs more than {limit} open files: raise the limit (ulimit -n)")]
    TooFewFiles { limit: u64 },
    #[error("cannot {doing}: {cause}")]
    Io { doing: String, cause: io::Error },
    #[error(
        "another version of Tollgate holds the gate: end it (`pgrep -a tollgate` finds it), or use the same version"
    )]
    OtherVersion,
    #[error("process {0} has services in force already: one daemon does that for the whole machine")]
    ServicesInForce(u32),
    #[error("{0} handlers of plugins are linked at this hook already: take one away")]
    HookFull(usize),
    #[error(
        "{0} handlers of plugins are loaded for this hook already, of all Tollgates together: take one away"
    )]
    NoPlaceAtHook(u32),
    #[error(
        "cannot attach a plugin to {device}: the XDP program {number} ({name}) is there, and the kernel takes one: end who attached it, \
         or, where nobody holds it, `ip link set dev {device} xdp off`"
    )]
    XdpTaken { device: String, number: u32, name: String },
    #[error(
        "this plugin is for hooks of control groups, and the second version of control groups is not mounted \
         (mount -t cgroup2 none /sys/fs/cgroup/unified)"
    )]
    NoControlGroups,
    #[error(
        "the plugin's maps need {needed} MiB, and of the {available} MiB that are available it may have half: give them fewer entries"
    )]
    TooMuchMemory { needed: u64, available: u64 },
    #[error("{0} Tollgate sessions run already, which is the limit: end one")]
    SessionsFull(u32),
}

impl Error {
    /// Whether something was not there.
    pub fn is_absence(&self) -> bool {
        match self {
            Self::Io { cause, .. } => cause.kind() == io::ErrorKind::NotFound,
            Self::Bpf { cause, .. } => cause.kind() == libbpf_rs::ErrorKind::NotFound,
            _ => false,
        }
    }
}

pub type Result<T> = std::result::Result<T, Error>;

pub(crate) trait Doing<T> {
    /// Names what was being done, in the words of the sentence "cannot …" or "refused … while …".
    fn doing(self, doing: impl Into<String>) -> Result<T>;
}

impl<T> Doing<T> for libbpf_rs::Result<T> {
    fn doing(self, doing: impl Into<String>) -> Result<T> {
        self.map_err(|cause| {
            if is_out_of_files(&cause) { too_few_files() } else { Error::Bpf { doing: doing.into(), cause } }
        })
    }
}

fn is_out_of_files(error: &libbpf_rs::Error) -> bool {
    // libbpf-rs keeps the number to itself, and says it where all causes are asked for.
    format!("{error:#}").contains(&io::Error::from_raw_os_error(libc::EMFILE).to_string())
}

fn too_few_files() -> Error {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid place for the result.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    Error::TooFewFiles { limit: limit.rlim_cur }
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, doing: impl Into<String>) -> Result<T> {
        self.map_err(|cause| Error::Io { doing: doing.into(), cause })
    }
}
