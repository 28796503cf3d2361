//! The lens in the cost lab.

use kernel::wire;

use super::session::LensSetup;
use crate::extension::ExtensionSetup;
use crate::extension_arm::ExtensionArm;

/// The first one is the lens of `tollgate run`.
pub const ARMS: [ExtensionArm; 6] = [
    ExtensionArm {
        name: "lens",
        description: "lens, as `tollgate run` uses it",
        setup: || lens(wire::LENS | wire::LENS_SITES),
    },
    ExtensionArm {
        name: "lens-no-sites",
        description: "lens without blocking sites",
        setup: || lens(wire::LENS),
    },
    ExtensionArm {
        name: "lens-sample",
        description: "lens that times one in sixteen cheap calls",
        setup: || lens(wire::LENS | wire::LENS_SITES | wire::LENS_SAMPLE),
    },
    ExtensionArm {
        name: "lens-files",
        description: "lens that also counts calls by file",
        setup: || lens(wire::LENS | wire::LENS_SITES | wire::LENS_FILES),
    },
    ExtensionArm {
        name: "lens-why",
        description: "lens that records why calls block",
        setup: || lens(wire::LENS | wire::LENS_SITES | wire::LENS_WHY),
    },
    ExtensionArm {
        name: "lens-in-band",
        description: "lens with in-band records, which the benchmark does not request",
        setup: || lens(wire::LENS | wire::LENS_SITES | wire::LENS_IN_BAND),
    },
];

fn lens(mask: u32) -> Box<dyn ExtensionSetup> {
    Box::new(LensSetup { mask, ..LensSetup::off() })
}
