//! The arms that are compared.

use std::sync::Arc;

use kernel::floor::FloorProgram;
use kernel::gate_programs::GateHook;
use kernel::wire;

use super::arm_file::FileArm;

pub const OFF: &str = "off";
pub const EMPTY: &str = "empty";

/// The controls, which are arms of each run.
pub const CONTROLS: [&str; 2] = ["aa", "injected"];

/// Services with rules for files.
pub const FILES: u32 = wire::SERVICE | wire::SERVICE_FILES;

#[derive(Debug, Clone)]
pub enum ArmKind {
    /// Nothing is on, as in the controls.
    Off,
    /// Programs on some of the gate's hooks that do nothing except `only`.
    Empty {
        hooks: Vec<GateHook>,
        only: FloorProgram,
    },
    /// Extensions of the gate; the workload is not gated if it is a bystander.
    Gate {
        mask: u32,
        with: ArmSetup,
        bystander: bool,
    },
    File(FileArm),
}

/// How an arm's extensions are set up.
#[derive(Debug, Clone, Copy)]
pub enum ArmSetup {
    Nothing,
    /// A rule file of services.
    Rules(&'static str),
    /// The sources of plugins.
    Plugins(&'static [&'static str]),
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
            hooks if hooks == GateHook::used(FILES) => format!("{EMPTY}-service-file"),
            _ => format!("{EMPTY}:{}", names.join(",")),
        };
        Self::new(name, ArmKind::Empty { hooks: hooks.to_vec(), only: FloorProgram::Nothing })
    }

    /// The hooks whose floor the arm is compared with; none: it is only a floor itself.
    pub fn hooks(&self) -> Option<Vec<GateHook>> {
        match &self.kind {
            ArmKind::Off => None,
            ArmKind::Empty { only: FloorProgram::Nothing, .. } => None,
            ArmKind::Empty { hooks, .. } => Some(hooks.clone()),
            ArmKind::Gate { mask, .. } => Some(GateHook::used(*mask)),
            ArmKind::File(arm) => Some(arm.hooks()),
        }
    }

    /// Whether it needs root.
    pub fn is_built_in_kernel(&self) -> bool {
        matches!(self.kind, ArmKind::Empty { .. } | ArmKind::Gate { .. })
    }
}
