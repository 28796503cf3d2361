//! The result of testing a capability, and what a refusal of the kernel means.

use kernel::probe::{self, ProbeError, ProbeResult, Types};
use kernel::process::is_root;

use super::security::Security;

pub struct Capability {
    pub name: &'static str,
    pub needed_by: &'static [&'static str],
    /// Whether `tollgate run` cannot work without it.
    pub required: bool,
    /// What is used if the capability is missing; empty if nothing replaces it.
    pub fallback: &'static str,
    pub remedy: &'static str,
    pub test: fn(&KernelFacts) -> Finding,
}

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Finding {
    pub have: Option<bool>,
    pub detail: String,
    /// Replaces [`Capability::fallback`] for this machine.
    pub fallback: Option<String>,
    pub remedy: Option<String>,
}

impl Finding {
    pub fn yes(detail: impl Into<String>) -> Self {
        Self { have: Some(true), detail: detail.into(), ..Self::default() }
    }

    pub fn no(detail: impl Into<String>) -> Self {
        Self { have: Some(false), detail: detail.into(), ..Self::default() }
    }

    pub fn untried(detail: impl Into<String>) -> Self {
        Self { detail: detail.into(), ..Self::default() }
    }

    pub fn fallback(self, instead: impl Into<String>) -> Self {
        Self { fallback: Some(instead.into()), ..self }
    }

    pub fn remedy(self, how: impl Into<String>) -> Self {
        Self { remedy: Some(how.into()), ..self }
    }
}

/// Facts that all findings depend on, read once.
pub struct KernelFacts {
    pub may_use_bpf: ProbeResult,
    pub types: ProbeResult<Types>,
    pub security: Security,
}

/// How to test what needs root.
pub const AS_ROOT: &str = "sudo tollgate doctor";
/// The same for a process of root that lacks capabilities.
pub const WITH_RIGHTS: &str = "the rights of root, as above";

/// How to test what this user may not do.
pub fn with_rights() -> &'static str {
    if is_root() { WITH_RIGHTS } else { AS_ROOT }
}

impl KernelFacts {
    pub fn read_all() -> Self {
        Self { may_use_bpf: probe::may_use_bpf(), types: Types::read(), security: Security::read() }
    }

    /// Interprets the result of a probe of a kernel feature.
    pub fn probe_finding(&self, answer: ProbeResult) -> Finding {
        match answer {
            Ok(()) => Finding::yes(""),
            Err(refusal) => self.refusal_finding(&refusal),
        }
    }

    /// As [`Self::probe_finding`], for a probe that needs the kernel's types.
    pub fn typed_probe_finding(&self, probe: impl FnOnce() -> ProbeResult) -> Finding {
        match &self.types {
            Ok(_) => self.probe_finding(probe()),
            Err(_) => without_types(),
        }
    }

    /// Requires all of several probes to succeed, and names the one that did not.
    pub fn all_of(&self, names: &[&str], probe: fn(&str) -> ProbeResult) -> Finding {
        match names.iter().try_for_each(|name| probe(name)) {
            Ok(()) => Finding::yes(names.join(" ")),
            Err(refusal) => {
                let finding = self.refusal_finding(&refusal);
                Finding { detail: format!("{}: {}", refusal.what, finding.detail), ..finding }
            }
        }
    }

    pub fn refusal_finding(&self, refusal: &ProbeError) -> Finding {
        let errno = refusal.errno_name();
        if !refusal.is_permission() {
            return Finding::no(format!("the kernel does not have it ({errno})"));
        }
        if self.may_use_bpf.is_err() {
            return Finding::untried("not tried").remedy(with_rights());
        }
        Finding::no(format!("refused ({errno})")).remedy(self.security.policy())
    }

    /// Whether the kernel has a kfunc. BPF programs may call the kfuncs that the kernel's types
    /// describe.
    pub fn kfunc(&self, name: &str) -> Finding {
        self.described(|types| types.has_function(name))
    }

    pub fn tracepoint(&self, name: &str) -> Finding {
        self.described(|types| types.has_tracepoint(name))
    }

    /// The finding for a feature that the kernel has exactly if its types describe it.
    fn described(&self, is_there: impl FnOnce(&Types) -> bool) -> Finding {
        match &self.types {
            Ok(types) if is_there(types) => Finding::yes(""),
            Ok(_) => Finding::no("the kernel does not have it"),
            Err(_) => without_types(),
        }
    }
}

/// The finding for a feature that cannot be tested without the kernel's types.
pub fn without_types() -> Finding {
    Finding::untried("needs the kernel's types").remedy("kernel types (BTF), as above")
}
