//! Another process's plugin, to be called from this one.

use std::os::fd::{AsFd as _, OwnedFd};

use ecode::Faults;
use libbpf_rs::libbpf_sys;
use libbpf_rs::{MapCore as _, MapHandle};

use super::data::Data;
use super::load::descriptor;
use super::map::read_entry;
use super::run::run;
use crate::error::{ErrorContext, Result};

/// The kernel's IDs of the program of a handler for calls, and of the plugin's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PluginIds {
    pub program: u32,
    pub data: u32,
    pub control: u32,
}

pub struct ForeignPlugin {
    program: OwnedFd,
    data: Data,
    control: MapHandle,
}

impl ForeignPlugin {
    pub fn new(numbers: PluginIds) -> Result<Self> {
        const OPENING: &str = "open the plugin";
        // SAFETY: asks the kernel for a new descriptor of a program by its ID.
        let program = descriptor(unsafe { libbpf_sys::bpf_prog_get_fd_by_id(numbers.program) })
            .doing(OPENING)?;
        let map = |number| MapHandle::from_map_id(number).doing(OPENING);
        let data = map(numbers.data)?;
        let bytes = data.value_size() as usize;
        Ok(Self { program, data: Data::new(data, bytes)?, control: map(numbers.control)? })
    }

    /// See [`super::LoadedPlugin::call`].
    pub fn call(&self, arguments: &[u64]) -> Result<i32> {
        run(self.program.as_fd(), arguments)
    }

    pub fn data(&self) -> &Data {
        &self.data
    }

    pub fn faults(&self) -> Result<Faults> {
        Ok(Faults::of(&read_entry(&self.control)?))
    }
}
