//! The gate's maps and links. Every process but the loader must open them by number.

use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;

use libbpf_rs::query::MapInfoIter;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use zerocopy::FromBytes as _;

use crate::error::{ErrorContext, Result};
use crate::wire;

/// Every map that generations and processes share, in the order of `gate_header.map_ids`.
pub const SHARED: [&str; wire::GATE_MAPS as usize] = [
    ".bss.tollgate",
    ".bss.threads",
    "sessions",
    "rows",
    ".bss.cell_index",
    "cells",
    ".bss.cpus",
    "losses",
    "free_threads",
    "free_rows",
    "free_cells",
    "free_reserved_cells",
    ".bss.by_pid",
    "by_task",
    "pending_children",
    "shared_rows",
    "attach_requests",
    "sites",
    "records",
    "arg_kinds",
    "sleep_stacks",
    "stack_scratch",
    "profiles",
    "overflow_windows",
    "ready_profiles",
    "programs",
    ".bss.plugins",
    "plugin_enter",
    "plugin_exit",
    "plugin_fork",
    "plugin_exec",
    "plugin_end",
    "plugin_guard",
    "plugin_verdicts",
    ".bss.verdicts",
    ".bss.members",
    ".bss.services",
    ".bss.rulesets",
    "service_rules",
    "tcp_directions",
    "service_sockets",
    "datagram_senders",
    "accounts",
    "dynamic_services",
    "free_services",
    "migrations",
];

/// Whether it is one of the maps that are made when services are first enabled: only services need
/// these, some MiB.
pub fn is_service_map(name: &str) -> bool {
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
    let values = map
        .lookup_percpu(&key.to_ne_bytes(), MapFlags::ANY)
        .doing("reading counters of the gate")?;
    let counts = values.iter().flatten().map(|bytes| u64::read_from_prefix(bytes));
    Ok(counts.map(|count| count.expect("8 bytes").0).sum())
}

/// The kernel keeps 15 characters of a map's name.
const HEADER_NAME: &str = SHARED[0];

/// Header maps of all gates: more than one while an older gate is about to go.
pub fn headers() -> impl Iterator<Item = MapHandle> {
    MapInfoIter::default()
        .filter(|info| info.name.as_bytes() == HEADER_NAME.as_bytes())
        .filter_map(|info| MapHandle::from_map_id(info.id).ok())
}

/// All links with these IDs (0: none), or `None` if one is gone.
pub fn open_links(ids: &LinkIds) -> Option<Vec<OwnedFd>> {
    ids.iter()
        .filter(|id| **id != 0)
        .map(|id| {
            // SAFETY: asks the kernel for a new descriptor of a link by its number.
            let fd = unsafe { libbpf_rs::libbpf_sys::bpf_link_get_fd_by_id(*id) };
            // SAFETY: a new descriptor that only this process owns.
            (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
        })
        .collect()
}
