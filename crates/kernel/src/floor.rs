//! Empty programs on the gate's hooks: what nobody who hooks them can go below. Also with a clock reading at
//! enter and exit: what nobody who times calls can go below.

use std::mem::MaybeUninit;

use libbpf_rs::Link;
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};

use crate::error::{Doing, Result};
use crate::skeletons::floor::{FloorSkel, FloorSkelBuilder};

/// Attached until dropped.
pub struct Floor {
    _links: [Link; 6],
    _skeleton: FloorSkel<'static>,
}

impl Floor {
    pub fn attach(clocks: bool) -> Result<Self> {
        // A skeleton borrows its object; the few that a process ever loads live as long as it does.
        let object = Box::leak(Box::new(MaybeUninit::uninit()));
        let skeleton = FloorSkelBuilder::default().open(object).doing("reading the floor's programs")?;
        let skeleton = skeleton.load().doing("loading the floor's programs")?;
        let attach =
            |program: &libbpf_rs::ProgramMut<'_>| program.attach_trace().doing("attaching the floor");
        let programs = &skeleton.progs;
        let (enter, exit) = match clocks {
            true => (&programs.clock_enter, &programs.clock_exit),
            false => (&programs.floor_enter, &programs.floor_exit),
        };
        let links = [
            attach(&programs.floor_switch)?,
            attach(&programs.floor_fork)?,
            attach(&programs.floor_exec)?,
            attach(&programs.floor_task_exit)?,
            attach(exit)?,
            attach(enter)?,
        ];
        Ok(Self { _links: links, _skeleton: skeleton })
    }
}
