//! What is known of a capability, and how a refusal of the kernel is read.

use kernel::probe::{self, Answer, Refusal, Types};

use super::security::Security;

pub struct Capability {
    pub name: &'static str,
    pub needed_by: &'static [&'static str],
    /// Without it, `tollgate run` cannot work.
    pub required: bool,
    /// What is used where it is missing; empty: nothing.
    pub instead: &'static str,
    pub how: &'static str,
    pub test: fn(&Machine) -> Finding,
}

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Finding {
    pub have: Option<bool>,
    pub detail: String,
    /// In place of what the list of capabilities says in general.
    pub instead: Option<String>,
    pub how: Option<String>,
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

    pub fn instead(self, instead: impl Into<String>) -> Self {
        Self { instead: Some(instead.into()), ..self }
    }

    pub fn how(self, how: impl Into<String>) -> Self {
        Self { how: Some(how.into()), ..self }
    }
}

/// What all findings rest on, read once.
pub struct Machine {
    pub may_use_bpf: Answer,
    pub types: Answer<Types>,
    pub security: Security,
}

/// How to learn what was not tried for want of root.
pub const AS_ROOT: &str = "sudo tollgate doctor";

impl Machine {
    pub fn look() -> Self {
        Self { may_use_bpf: probe::may_use_bpf(), types: Types::read(), security: Security::read() }
    }

    /// Reads the kernel's answer to something that it has or does not have.
    pub fn answer(&self, answer: Answer) -> Finding {
        match answer {
            Ok(()) => Finding::yes(""),
            Err(refusal) => self.refused(&refusal),
        }
    }

    /// The same for what needs the kernel's types.
    pub fn typed_answer(&self, probe: impl FnOnce() -> Answer) -> Finding {
        match &self.types {
            Ok(_) => self.answer(probe()),
            Err(_) => without_types(),
        }
    }

    /// All of several probes must succeed; says which did not.
    pub fn each(&self, names: &[&str], probe: fn(&str) -> Answer) -> Finding {
        match names.iter().try_for_each(|name| probe(name)) {
            Ok(()) => Finding::yes(names.join(" ")),
            Err(refusal) => {
                let finding = self.refused(&refusal);
                Finding { detail: format!("{}: {}", refusal.what, finding.detail), ..finding }
            }
        }
    }

    pub fn refused(&self, refusal: &Refusal) -> Finding {
        let errno = refusal.errno_name();
        if !refusal.is_permission() {
            return Finding::no(format!("the kernel does not have it ({errno})"));
        }
        if self.may_use_bpf.is_err() {
            return Finding::untried("not tried").how(AS_ROOT);
        }
        Finding::no(format!("refused ({errno})")).how(self.security.policy())
    }

    /// A kfunc: BPF programs may call those that the kernel describes.
    pub fn kfunc(&self, name: &str) -> Finding {
        match &self.types {
            Ok(types) if types.has_function(name) => Finding::yes(""),
            Ok(_) => Finding::no("the kernel does not have it"),
            Err(_) => without_types(),
        }
    }
}

pub fn without_types() -> Finding {
    Finding::untried("needs the kernel's types").how("kernel types (BTF), as above")
}
