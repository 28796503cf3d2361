//! The kernel's own description of its types.

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::{Func, MemberAttr, Struct, Typedef};

use super::error::{ProbeError, ProbeResult};

/// The gate reads the types only from this file, and so does the probe.
const FILE: &str = "/sys/kernel/btf/vmlinux";

/// The kernel's types, functions and tracepoints (BTF).
pub struct Types(Btf<'static>);

impl Types {
    /// Reads the types, which takes some milliseconds. Fails if the kernel has no such file, or if
    /// this process may not read it.
    pub fn read() -> ProbeResult<Self> {
        // This gives the reason for a failure, which libbpf does not.
        std::fs::File::open(FILE).map_err(|error| ProbeError::of(FILE, &error))?;
        Btf::from_path(FILE).map(Self).map_err(|_| ProbeError::new(FILE, libc::EINVAL))
    }

    /// Whether the kernel describes this function. If it is a kfunc, BPF programs can then call it.
    pub fn has_function(&self, name: &str) -> bool {
        self.0.type_by_name::<Func>(name).is_some()
    }

    /// Whether programs can be attached to this tracepoint, named as in the kernel's source.
    pub fn has_tracepoint(&self, name: &str) -> bool {
        self.tracepoint(name).is_some()
    }

    /// The number of the tracepoint's type, by which programs are loaded for it.
    pub fn tracepoint(&self, name: &str) -> Option<u32> {
        self.0
            .type_by_name::<Typedef>(&format!("btf_trace_{name}"))
            .map(|found| u32::from(found.type_id()))
    }

    /// The offset of a struct's member, in bytes. `None` if there is no such member, or if it is a
    /// bit field.
    pub fn offset_of(&self, structure: &str, member: &str) -> Option<u32> {
        let structure = self.0.type_by_name::<Struct>(structure)?;
        let found = structure.iter().find(|found| found.name.is_some_and(|name| name == member))?;
        match found.attr {
            MemberAttr::Normal { offset } => Some(offset / 8),
            MemberAttr::BitField { .. } => None,
        }
    }

    /// Whether the struct exists and has this member.
    pub fn has_member(&self, structure: &str, member: &str) -> bool {
        let Some(structure) = self.0.type_by_name::<Struct>(structure) else {
            return false;
        };
        structure.iter().any(|found| found.name.is_some_and(|name| name == member))
    }
}
