//! The arms that are compared.

use std::sync::Arc;

use kernel::floor::FloorProgram;
use kernel::gate_programs::GateHook;
use kernel::session::SessionOptions;
use kernel::wire;

use super::arm_file::FileArm;
use crate::extension::ExtensionSetup;

pub const OFF: &str = "off";
pub const EMPTY: &str = "empty";

/// The controls, which are arms of each run.
pub const CONTROLS: [&str; 2] = ["aa", "injected"];

/// Makes the setup of an extension, a new one for each block.
pub type SetupFn = fn() -> Box<dyn ExtensionSetup>;

#[derive(Debug, Clone)]
pub enum ArmKind {
    /// Nothing is on, as in the controls.
    Off,
    /// Programs on some of the gate's hooks. They do nothing except what `only` says.
    Empty {
        hooks: Vec<GateHook>,
        only: FloorProgram,
    },
    /// Extensions of the gate. If `bystander` is set, the workload is not gated.
    Gate {
        setups: Vec<SetupFn>,
        bystander: bool,
    },
    File(FileArm),
}

#[derive(Debug, Clone)]
pub struct Arm {
    pub name: Arc<str>,
    pub kind: ArmKind,
    /// Only a reference for other arms, without a verdict of its own.
    pub is_reference: bool,
}

impl Arm {
    pub fn new(name: impl Into<Arc<str>>, kind: ArmKind) -> Self {
        Self { name: name.into(), kind, is_reference: false }
    }

    /// The arm of empty programs on these hooks.
    pub fn floor(hooks: &[GateHook]) -> Self {
        let names: Vec<_> = hooks.iter().map(|hook| hook.name()).collect();
        let name = match hooks {
            hooks if hooks == GateHook::used(wire::LENS) => EMPTY.to_owned(),
            hooks if hooks == GateHook::used(wire::GUARD) => format!("{EMPTY}-guard"),
            hooks if hooks == GateHook::used(wire::LENS | wire::GUARD) => {
                format!("{EMPTY}-lens+guard")
            }
            hooks if hooks == GateHook::used(wire::SERVICE) => format!("{EMPTY}-service"),
            hooks if hooks == GateHook::used(wire::SERVICE | wire::SERVICE_FILES) => {
                format!("{EMPTY}-service-file")
            }
            _ => format!("{EMPTY}:{}", names.join(",")),
        };
        Self::new(name, ArmKind::Empty { hooks: hooks.to_vec(), only: FloorProgram::Nothing })
    }

    /// The hooks whose floor the arm is compared with. `None` if the arm is itself a floor, or if
    /// nothing is on.
    pub fn hooks(&self) -> Option<Vec<GateHook>> {
        match &self.kind {
            ArmKind::Off => None,
            ArmKind::Empty { only: FloorProgram::Nothing, .. } => None,
            ArmKind::Empty { hooks, .. } => Some(hooks.clone()),
            ArmKind::Gate { setups, .. } => Some(GateHook::used(mask(setups))),
            ArmKind::File(arm) => Some(arm.hooks()),
        }
    }

    /// Whether the arm loads programs into the kernel, which needs root.
    pub fn is_built_in_kernel(&self) -> bool {
        matches!(self.kind, ArmKind::Empty { .. } | ArmKind::Gate { .. })
    }
}

/// What the gate does for these extensions: bits of [`wire::gate_mask`].
fn mask(setups: &[SetupFn]) -> u32 {
    let mut options = SessionOptions::default();
    setups.iter().for_each(|setup| setup().configure(&mut options));
    options.mask
}
