//! What can go wrong at the border, each with a sentence that says what to do.

use std::io;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("Tollgate needs root to load its gate into the kernel; run it with sudo")]
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
    #[error("cannot {doing}: {cause}")]
    Io { doing: String, cause: io::Error },
    #[error("another version of Tollgate holds the gate: end it, or use the same version")]
    OtherVersion,
    #[error("{0} Tollgate sessions run already, which is the limit: end one")]
    SessionsFull(u32),
}

pub type Result<T> = std::result::Result<T, Error>;

pub(crate) trait Doing<T> {
    /// Names what was being done, in the words of the sentence "cannot …" or "refused … while …".
    fn doing(self, doing: impl Into<String>) -> Result<T>;
}

impl<T> Doing<T> for libbpf_rs::Result<T> {
    fn doing(self, doing: impl Into<String>) -> Result<T> {
        self.map_err(|cause| Error::Bpf { doing: doing.into(), cause })
    }
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, doing: impl Into<String>) -> Result<T> {
        self.map_err(|cause| Error::Io { doing: doing.into(), cause })
    }
}
