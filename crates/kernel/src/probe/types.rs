//! The kernel's own description of its types.

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::{Func, MemberAttr, Struct, Typedef};

use super::error::{ProbeError, ProbeResult};

/// Where the gate reads them, and nowhere else.
const FILE: &str = "/sys/kernel/btf/vmlinux";

pub struct Types(Btf<'static>);

impl Types {
    pub fn read() -> ProbeResult<Self> {
        // This gives the reason for a failure, which libbpf does not.
        std::fs::File::open(FILE).map_err(|error| ProbeError::of(FILE, &error))?;
        Btf::from_path(FILE).map(Self).map_err(|_| ProbeError::new(FILE, libc::EINVAL))
    }

    /// Whether BPF programs can call this function: they may call every kfunc that the kernel
    /// describes.
    pub fn has_function(&self, name: &str) -> bool {
        self.0.type_by_name::<Func>(name).is_some()
    }

    pub fn has_tracepoint(&self, name: &str) -> bool {
        self.tracepoint(name).is_some()
    }

    /// The number of the tracepoint's type.
    pub fn tracepoint(&self, name: &str) -> Option<u32> {
        self.0
            .type_by_name::<Typedef>(&format!("btf_trace_{name}"))
            .map(|found| u32::from(found.type_id()))
    }

    /// The offset in bytes of a member that is not a bit field.
    pub fn offset_of(&self, structure: &str, member: &str) -> Option<u32> {
        let structure = self.0.type_by_name::<Struct>(structure)?;
        let found = structure.iter().find(|found| found.name.is_some_and(|name| name == member))?;
        match found.attr {
            MemberAttr::Normal { offset } => Some(offset / 8),
            MemberAttr::BitField { .. } => None,
        }
    }

    pub fn has_member(&self, structure: &str, member: &str) -> bool {
        let Some(structure) = self.0.type_by_name::<Struct>(structure) else {
            return false;
        };
        structure.iter().any(|found| found.name.is_some_and(|name| name == member))
    }
}
