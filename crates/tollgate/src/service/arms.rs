//! Services in the cost lab.

use std::path::PathBuf;

use anyhow::Result;
use kernel::session::SessionOptions;
use kernel::wire;

use super::extension::Services;
use crate::extension::{Extension, ExtensionSetup, SessionContext};
use crate::extension_arm::{ExtensionArm, KernelSideOnly};
use crate::source_file::SourceFile;

pub const ARMS: [ExtensionArm; 4] = [
    ExtensionArm {
        name: "service",
        description: "services, with a rule that applies to each message",
        setup: || Box::new(RulesAlone { mask: wire::SERVICE, text: ADOPTS }),
    },
    ExtensionArm {
        name: "service-file",
        description: "services, with a rule for the file that open-close opens",
        setup: || Box::new(RulesAlone { mask: FILES, text: FILE }),
    },
    ExtensionArm {
        name: "service-file-other",
        description: "services, with a rule for another file",
        setup: || Box::new(RulesAlone { mask: FILES, text: OTHER_FILE }),
    },
    ExtensionArm {
        name: "service-file-changes",
        description: "services, with rules that change the service at each open of open-close",
        setup: || Box::new(RulesAlone { mask: FILES, text: FILE_CHANGES }),
    },
];

const FILES: u32 = wire::SERVICE | wire::SERVICE_FILES;

const ADOPTS: &str = "[[rule]]\nadopts-peer = true";
const FILE: &str = "service.a = {}\n[[rule]]\nfile = '/dev/null'\nbelongs-to = 'a'";
const OTHER_FILE: &str = "service.a = {}\n[[rule]]\nfile = '/dev/zero'\nbelongs-to = 'a'";
const FILE_CHANGES: &str = "
service = { a = {}, b = {} }
rule = [
    { file = '/dev/null', belongs-to = 'a' },
    { file = '/dev/null', service = 'a', belongs-to = 'b' },
]";

/// Rules in the kernel, and nothing in user space: sockets are not limited, no thread is migrated,
/// and requests have no reply.
struct RulesAlone {
    /// As [`super::extension::mask`] computes it.
    mask: u32,
    text: &'static str,
}

impl ExtensionSetup for RulesAlone {
    fn configure(&self, options: &mut SessionOptions) {
        options.mask |= self.mask;
    }

    fn start(self: Box<Self>, context: &mut SessionContext<'_>) -> Result<Box<dyn Extension>> {
        let source = SourceFile::new("its own".into(), self.text.into());
        // The rules stay active until the session ends.
        drop(Services::start(context.gate, context.session, PathBuf::new(), &source)?);
        Ok(Box::new(KernelSideOnly))
    }
}

#[cfg(test)]
mod tests {
    use super::super::extension::mask;
    use super::super::rule_file::parsed;
    use super::*;

    #[test]
    fn masks_are_those_of_the_rules() {
        for (own, text) in
            [(wire::SERVICE, ADOPTS), (FILES, FILE), (FILES, OTHER_FILE), (FILES, FILE_CHANGES)]
        {
            let file = parsed(&SourceFile::new("its own".into(), text.into())).expect("rules");
            assert_eq!(mask(&file), own, "{text}");
        }
    }
}
