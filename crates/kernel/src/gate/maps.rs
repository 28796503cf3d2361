//! The gate's maps and links, opened by number, as every process but the loader must.

use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;

use libbpf_rs::query::MapInfoIter;
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::error::{Doing, Result};
use crate::wire;

/// Every map that generations and processes share, in the order of `gate_header.map_ids`.
pub const SHARED: [&str; wire::GATE_MAPS as usize] = [
    ".bss.tollgate",
    ".bss.threads",
    "sessions",
    "groups",
    ".bss.cell_of",
    "cells",
    ".bss.cpus",
    "losses",
    "free_threads",
    "free_groups",
    "free_cells",
    "free_kept_cells",
    ".bss.by_pid",
    "by_task",
    "nurseries",
    "shared_rows",
    "adoptions",
    "sites",
    "records",
    "arg_kinds",
    "long_sleeps",
    "stack_scratch",
    "profiles",
    "more_windows",
    "ready_profiles",
    "programs",
    ".bss.plugins",
    "plugin_enters",
    "plugin_exits",
    "plugin_forks",
    "plugin_execs",
    "plugin_ends",
    "plugin_guards",
    "plugin_verdicts",
    ".bss.verdicts",
    ".bss.members",
    ".bss.services",
    ".bss.books",
    "service_rules",
    "directions",
    "service_sockets",
    "flows",
    "accounts",
    "started_services",
    "free_services",
    "placements",
];

/// Of these, those that are made when services are first enabled: some MiB that nobody else needs.
pub fn is_of_services(name: &str) -> bool {
    let first = SHARED.iter().position(|shared| *shared == ".bss.members");
    SHARED.iter().position(|shared| *shared == name) >= first
}

pub type MapIds = [u32; wire::GATE_MAPS as usize];
pub type LinkIds = [u32; wire::GATE_LINKS as usize];

pub struct Maps {
    maps: Vec<MapHandle>,
}

impl Maps {
    pub fn open_ids(ids: &MapIds) -> Result<Self> {
        let maps = ids
            .iter()
            .map(|id| MapHandle::from_map_id(*id).doing("opening the gate's maps"))
            .collect::<Result<_>>()?;
        Ok(Self { maps })
    }

    /// # Panics
    /// If `name` is not in [`SHARED`].
    pub fn get(&self, name: &str) -> &MapHandle {
        let index = SHARED.iter().position(|shared| *shared == name).expect("a shared map");
        &self.maps[index]
    }
}

/// The sum over all processors of a counter in a per-CPU map.
pub fn sum_over_cpus(map: &impl MapCore, key: u32) -> Result<u64> {
    let values = map.lookup_percpu(&key.to_ne_bytes(), MapFlags::ANY).doing("reading its counters")?;
    Ok(values.iter().flatten().map(|bytes| u64::from_ne_bytes(bytes[..8].try_into().expect("8 bytes"))).sum())
}

/// The kernel keeps 15 characters of a map's name.
const HEADER_NAME: &str = SHARED[0];

/// Header maps of all gates: more than one while an older gate is about to go.
pub fn headers() -> impl Iterator<Item = MapHandle> {
    MapInfoIter::default()
        .filter(|info| info.name.as_bytes() == HEADER_NAME.as_bytes())
        .filter_map(|info| MapHandle::from_map_id(info.id).ok())
}

/// All links that there are (0 stands for none), or `None` if one is gone.
pub fn open_links(ids: &LinkIds) -> Option<Vec<OwnedFd>> {
    ids.iter()
        .filter(|id| **id != 0)
        .map(|id| {
            // SAFETY: asks the kernel for a new descriptor of a link by its number.
            let fd = unsafe { libbpf_rs::libbpf_sys::bpf_link_get_fd_by_id(*id) };
            // SAFETY: a descriptor just made, owned by nobody else.
            (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
        })
        .collect()
}
