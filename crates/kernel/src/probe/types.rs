//! The kernel's own description of its types.

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::{Func, MemberAttr, Struct, Typedef};

use super::{Answer, Refusal};

/// Where the gate reads them, and nowhere else.
const FILE: &str = "/sys/kernel/btf/vmlinux";

pub struct Types(Btf<'static>);

impl Types {
    pub fn read() -> Answer<Self> {
        // Says why; libbpf would not.
        std::fs::File::open(FILE).map_err(|error| Refusal::of(FILE, &error))?;
        Btf::from_path(FILE).map(Self).map_err(|_| Refusal::new(FILE, libc::EINVAL))
    }

    /// Can BPF programs call this function? For kfuncs: those that the kernel describes, they may call.
    pub fn has_function(&self, name: &str) -> bool {
        self.0.type_by_name::<Func>(name).is_some()
    }

    pub fn has_tracepoint(&self, name: &str) -> bool {
        self.tracepoint(name).is_some()
    }

    /// Its number.
    pub fn tracepoint(&self, name: &str) -> Option<u32> {
        self.0.type_by_name::<Typedef>(&format!("btf_trace_{name}")).map(|found| u32::from(found.type_id()))
    }

    /// In bytes, of a member that is no bit field.
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
