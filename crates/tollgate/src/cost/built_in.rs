//! The arms that are built in, with their descriptions.

use kernel::floor::FloorProgram;
use kernel::gate_programs::GateHook;
use kernel::wire;

use super::arms::{Arm, ArmKind, OFF, SetupFn};
use crate::extension_arm::ExtensionArm;
use crate::{guard, lens, pace, plugin, service};

/// All built-in arms, with descriptions.
pub fn built_in() -> Vec<(Arm, String)> {
    let lens = GateHook::used(wire::LENS);
    let clocks = Arm::new(
        "empty-clocks",
        ArmKind::Empty { hooks: lens.clone(), only: FloorProgram::Clocks },
    );
    let place = Arm::new(
        "empty-place",
        ArmKind::Empty { hooks: vec![GateHook::SYS_ENTER], only: FloorProgram::Chain },
    );
    let mut all = vec![
        (Arm::new(OFF, ArmKind::Off), "nothing is on: the base of all comparisons".to_owned()),
        (
            Arm::floor(&lens),
            "empty programs at the hooks of lens: its floor; --arm-file can list other hooks"
                .to_owned(),
        ),
        (clocks, "as empty, with one clock reading at each end of a call".to_owned()),
        (
            place,
            "a hook for plugins at the beginning of a call, without a plugin; its floor is one \
            empty program"
                .to_owned(),
        ),
    ];
    for (name, setups, description) in gated() {
        let arm = |name: String, bystander| {
            Arm::new(name, ArmKind::Gate { setups: setups.clone(), bystander })
        };
        all.push((arm(name.to_owned(), false), description.to_owned()));
        all.push((
            arm(format!("{name}-bystander"), true),
            format!("{name} is on, but the workload is not gated"),
        ));
    }
    all
}

/// The arms with extensions: those of each extension, and two of them together with lens.
fn gated() -> Vec<(&'static str, Vec<SetupFn>, &'static str)> {
    let alone = |arm: ExtensionArm| (arm.name, vec![arm.setup], arm.description);
    let ([lens, ..], [guard], [tasks, ..]) = (lens::ARMS, guard::ARMS, pace::ARMS);
    let together = ("lens+guard", vec![lens.setup, guard.setup], "lens and guard together");
    let with_pace = ("lens+pace", vec![lens.setup, tasks.setup], "lens and pace together");
    lens::ARMS
        .into_iter()
        .chain(guard::ARMS)
        .map(alone)
        .chain([together])
        .chain(service::ARMS.into_iter().chain(plugin::ARMS).chain(pace::ARMS).map(alone))
        .chain([with_pace])
        .collect()
}
