//! The arms that are built in, with their descriptions.

use kernel::floor::FloorProgram;
use kernel::gate_programs::GateHook;
use kernel::wire;

use super::arms::{Arm, ArmKind, ArmSetup, FILES, OFF};

/// All built-in arms, with descriptions.
pub fn built_in() -> Vec<(Arm, String)> {
    let lens = GateHook::used(wire::LENS);
    let clocks = Arm::new(
        "empty-clocks",
        ArmKind::Empty { hooks: lens.clone(), only: FloorProgram::Clocks },
    );
    let place = Arm::new(
        "empty-place",
        ArmKind::Empty { hooks: vec![GateHook::SYS_ENTER], only: FloorProgram::Place },
    );
    let mut all =
        vec![
        (Arm::new(OFF, ArmKind::Off), "nothing is on: the base of all comparisons".to_owned()),
        (
            Arm::floor(&lens),
            "empty programs on lens's six hooks, its floor; arms from a file name their own \
            hooks".to_owned(),
        ),
        (clocks, "as empty, with one clock reading at each end of a call".to_owned()),
        (
            place,
            "a hook for plugins at the beginning of a call, without a plugin; its floor is one \
            empty program".to_owned(),
        ),
    ];
    for (name, mask, with, what) in GATED {
        let arm = |name: String, bystander| {
            Arm::new(name, ArmKind::Gate { mask: *mask, with: *with, bystander })
        };
        all.push((arm((*name).to_owned(), false), (*what).to_owned()));
        all.push((
            arm(format!("{name}-bystander"), true),
            format!("{name} is on, but the workload is not gated"),
        ));
    }
    all
}

/// The gate's extensions, as `tollgate run` would enable them.
const GATED: &[(&str, u32, ArmSetup, &str)] = &[
    ("lens", wire::LENS | wire::LENS_SITES, ArmSetup::Nothing, "lens, as `tollgate run` uses it"),
    ("lens-no-sites", wire::LENS, ArmSetup::Nothing, "lens without blocking sites"),
    (
        "lens-sample",
        wire::LENS | wire::LENS_SITES | wire::LENS_SAMPLE,
        ArmSetup::Nothing,
        "lens that times one in sixteen cheap calls",
    ),
    ("guard", wire::GUARD, ArmSetup::Nothing, "guard with both models, which learns the workload"),
    (
        "lens+guard",
        wire::LENS | wire::LENS_SITES | wire::GUARD,
        ArmSetup::Nothing,
        "lens and guard together",
    ),
    (
        "service",
        wire::SERVICE,
        ArmSetup::Rules(ADOPTS),
        "services, with a rule that applies to each message",
    ),
    (
        "service-file",
        FILES,
        ArmSetup::Rules(FILE),
        "services, with a rule for the file that open-close opens",
    ),
    (
        "service-file-other",
        FILES,
        ArmSetup::Rules(OTHER_FILE),
        "services, with a rule for another file",
    ),
    (
        "service-file-changes",
        FILES,
        ArmSetup::Rules(FILE_CHANGES),
        "services, with rules that change the service at each open of open-close",
    ),
    (
        "plugin",
        wire::PLUGIN,
        ArmSetup::Plugins(&[]),
        "a gate with hooks for plugins, without a plugin",
    ),
    (
        "plugin-null",
        wire::PLUGIN,
        ArmSetup::Plugins(&[NULL]),
        "a plugin that does nothing when a call begins",
    ),
    (
        "plugin-null-4",
        wire::PLUGIN,
        ArmSetup::Plugins(&[NULL; 4]),
        "four plugins that do nothing, one after the other",
    ),
    (
        "plugin-count",
        wire::PLUGIN,
        ArmSetup::Plugins(&[COUNT]),
        "a plugin that counts calls by number",
    ),
    (
        "plugin-histogram",
        BOTH_ENDS,
        ArmSetup::Plugins(&[HISTOGRAM]),
        "a plugin that makes a histogram of the times of calls",
    ),
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

const ADOPTS: &str = "[[rule]]\nadopts-peer = true";
const FILE: &str = "service.a = {}\n[[rule]]\nfile = '/dev/null'\nbelongs-to = 'a'";
const OTHER_FILE: &str = "service.a = {}\n[[rule]]\nfile = '/dev/zero'\nbelongs-to = 'a'";
const FILE_CHANGES: &str = "
service = { a = {}, b = {} }
rule = [
    { file = '/dev/null', belongs-to = 'a' },
    { file = '/dev/null', service = 'a', belongs-to = 'b' },
]";
