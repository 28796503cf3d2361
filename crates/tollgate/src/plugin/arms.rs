//! Plugins in the cost lab.

use kernel::wire;

use super::session::PluginSetup;
use crate::extension::ExtensionSetup;
use crate::extension_arm::ExtensionArm;

pub const ARMS: [ExtensionArm; 5] = [
    ExtensionArm {
        name: "plugin",
        description: "a gate with hooks for plugins, without a plugin",
        setup: || plugins(wire::PLUGIN, &[]),
    },
    ExtensionArm {
        name: "plugin-null",
        description: "an empty plugin, which runs at the beginning of each call",
        setup: || plugins(wire::PLUGIN, &[NULL]),
    },
    ExtensionArm {
        name: "plugin-null-4",
        description: "four plugins that do nothing, one after the other",
        setup: || plugins(wire::PLUGIN, &[NULL; 4]),
    },
    ExtensionArm {
        name: "plugin-count",
        description: "a plugin that counts calls by number",
        setup: || plugins(wire::PLUGIN, &[COUNT]),
    },
    ExtensionArm {
        name: "plugin-histogram",
        description: "a plugin that makes a histogram of the times of calls",
        setup: || plugins(BOTH_ENDS, &[HISTOGRAM]),
    },
];

const BOTH_ENDS: u32 = wire::PLUGIN | wire::PLUGIN_EXIT;
const NULL: &str = "on enter {}";
const COUNT: &str = "map<u32, u64> count[600]; on enter { count[call]++; }";
const HISTOGRAM: &str = "
map<u32, u64> began[10240];
u64 times[64];
on enter { began[tid()] = now(); }
on exit {
    u64 took = now() - began[tid()];
    int bucket = 0;
    while (took >>= 1)
        bucket++;
    times[bucket]++;
}";

fn plugins(mask: u32, texts: &[&str]) -> Box<dyn ExtensionSetup> {
    Box::new(PluginSetup::of_arm(mask, texts))
}

#[cfg(test)]
mod tests {
    use super::super::suitability::{PluginHost, mask};
    use super::*;
    use crate::source_file::SourceFile;

    #[test]
    fn masks_are_those_of_the_plugins() {
        for (own, text) in [(wire::PLUGIN, NULL), (wire::PLUGIN, COUNT), (BOTH_ENDS, HISTOGRAM)] {
            let source = SourceFile::new("plugin".into(), text.into());
            let host = PluginHost { has_guard: false, takes_calls: true };
            assert_eq!(mask(&[source], 1, Some(""), host).expect("a plugin"), own, "{text}");
        }
    }
}
