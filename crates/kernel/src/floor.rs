//! The floor: empty programs at the gate hooks. No program at these hooks can cost less. The
//! variants also do what some programs must do at each call, and are the lower bound for such
//! programs.

use std::mem::MaybeUninit;

use libbpf_rs::Link;
use libbpf_rs::skel::{OpenSkel as _, Skel as _, SkelBuilder as _};

use crate::error::{ErrorContext, Result};
use crate::gate_programs::GateHook;
use crate::skeletons::floor::{FloorSkel, FloorSkelBuilder};

/// What the otherwise empty programs do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FloorProgram {
    /// They return at once.
    Nothing,
    /// They read the clock at the beginning and at the end of a call.
    Clocks,
    /// At the beginning of a call, they try to enter a chain of plugins that is empty.
    Chain,
}

impl FloorProgram {
    /// The name of the program at a hook.
    fn program_at(self, hook: GateHook) -> String {
        let kind = match (self, hook) {
            (Self::Clocks, GateHook::SYS_ENTER | GateHook::SYS_EXIT) => "clock",
            (Self::Chain, GateHook::SYS_ENTER) => "chain",
            _ => "floor",
        };
        format!("{kind}_{}", hook.program().stem)
    }
}

/// Attached programs of the floor. They are detached when this is dropped.
pub struct Floor {
    _links: Vec<Link>,
    _skeleton: FloorSkel<'static>,
}

impl Floor {
    /// Loads the programs for these hooks, and attaches them in the order of `hooks`.
    pub fn attach(hooks: &[GateHook], program: FloorProgram) -> Result<Self> {
        // A skeleton borrows its object, which therefore stays until the process ends. It has only
        // a few bytes, so that even thousands of measured blocks do not matter.
        let object = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut skeleton =
            FloorSkelBuilder::default().open(object).doing("reading the floor's programs")?;
        let names: Vec<_> = hooks.iter().map(|hook| program.program_at(*hook)).collect();
        for mut program in skeleton.open_object_mut().progs_mut() {
            program.set_autoload(names.iter().any(|name| program.name() == name.as_str()));
        }
        let skeleton = skeleton.load().doing("loading the floor's programs")?;
        let attach = |name: &String| {
            let mut programs = skeleton.object().progs_mut();
            let program = programs.find(|program| program.name() == name.as_str());
            program.expect("the table's programs exist").attach_trace().doing("attaching the floor")
        };
        let links = names.iter().map(attach).collect::<Result<_>>()?;
        Ok(Self { _links: links, _skeleton: skeleton })
    }
}
