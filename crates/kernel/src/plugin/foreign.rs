//! Plugins of other processes, which this process can call.

use std::os::fd::{AsFd as _, OwnedFd};

use ecode::Faults;
use libbpf_rs::libbpf_sys;
use libbpf_rs::{MapCore as _, MapHandle};

use super::data::Data;
use super::load::descriptor;
use super::map::read_entry;
use super::run::run;
use crate::error::{ErrorContext, Result};

/// The kernel's IDs of what another process needs to call a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PluginIds {
    /// The program of the handler that is called.
    pub program: u32,
    /// The map with the global variables.
    pub data: u32,
    /// The map with the counts of faults.
    pub control: u32,
}

/// A handler of another process's plugin. The plugin's memory exists at least as long as this does.
pub struct ForeignPlugin {
    program: OwnedFd,
    data: Data,
    control: MapHandle,
}

impl ForeignPlugin {
    /// Opens the program and the maps. Fails if the plugin was unloaded, or was replaced by another
    /// version.
    pub fn new(ids: PluginIds) -> Result<Self> {
        const OPENING: &str = "open the plugin";
        // SAFETY: a plain call, which returns a new descriptor of a program.
        let program =
            descriptor(unsafe { libbpf_sys::bpf_prog_get_fd_by_id(ids.program) }).doing(OPENING)?;
        let map = |id| MapHandle::from_map_id(id).doing("opening the plugin's maps");
        let data = map(ids.data)?;
        let bytes = data.value_size() as usize;
        Ok(Self { program, data: Data::new(data, bytes)?, control: map(ids.control)? })
    }

    /// See [`super::LoadedPlugin::call`].
    pub fn call(&self, arguments: &[u64]) -> Result<i32> {
        run(self.program.as_fd(), arguments)
    }

    /// Its global variables.
    pub fn data(&self) -> &Data {
        &self.data
    }

    /// The faults since the plugin was loaded.
    pub fn faults(&self) -> Result<Faults> {
        Ok(Faults::of(&read_entry(&self.control)?))
    }
}
