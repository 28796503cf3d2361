//! The gate's maps and links. A process that joins the gate opens them by their IDs, which are in
//! the header.

use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;

use libbpf_rs::query::{LinkInfoIter, MapInfoIter, ProgInfoIter, ProgInfoQueryOptions};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use zerocopy::FromBytes as _;

use crate::error::{ErrorContext, Result};
use crate::mapped_array::MappedArray;
use crate::skeletons::gate::OpenGateMaps;
use crate::wire;

/// The names of the maps that generations and processes share, in the order of
/// `gate_header.map_ids`. These are all maps of the gate's object, except constants and
/// `*_scratch`.
pub const SHARED: &[&str] = &include!(concat!(env!("OUT_DIR"), "/shared_maps.rs"));

const _: () = assert!(SHARED.len() <= wire::GATE_MAPS as usize);

/// Maps of an extension that are made when the extension is first enabled, because they need some
/// MiB.
pub struct LazyMaps {
    /// A map belongs to these if its name begins with one of the prefixes.
    pub prefixes: &'static [&'static str],
    /// The bit of [`wire::gate_mask`] that enables the extension.
    pub bit: u32,
    /// Makes the maps small in an object that is loaded without the extension.
    pub shrink: fn(&mut OpenGateMaps) -> Result<()>,
    /// Gives the maps of an object that is loaded with the extension the shape that this machine
    /// needs. The result must exist until the object is loaded. `None`: nothing is to be done.
    pub fit: Option<fn(&mut OpenGateMaps) -> Result<MapHandle>>,
}

impl LazyMaps {
    /// Whether a gate with `enabled` (bits of [`wire::gate_mask`]) does not have these maps yet.
    pub(crate) fn are_missing(&self, enabled: u32) -> bool {
        enabled & self.bit == 0
    }

    /// Whether the map of this name is one of these maps.
    pub(crate) fn include(&self, map: &str) -> bool {
        self.prefixes.iter().any(|prefix| map.starts_with(prefix))
    }
}

pub type MapIds = [u32; wire::GATE_MAPS as usize];
pub type LinkIds = [u32; wire::GATE_LINKS as usize];

/// The gate's shared maps, open in this process.
pub struct Maps {
    /// In the order of [`SHARED`].
    maps: Vec<MapHandle>,
}

impl Maps {
    pub(crate) fn open_ids(ids: &MapIds) -> Result<Self> {
        let maps = ids
            .iter()
            .take(SHARED.len())
            .map(|id| MapHandle::from_map_id(*id).doing("opening the gate's maps"))
            .collect::<Result<_>>()?;
        Ok(Self { maps })
    }

    /// # Panics
    /// If `name` is not in [`SHARED`].
    pub(crate) fn get(&self, name: &str) -> &MapHandle {
        let index = SHARED.iter().position(|shared| *shared == name).expect("a shared map");
        &self.maps[index]
    }

    /// The ID of a map, by which other processes open it.
    ///
    /// # Panics
    /// If `name` is not in [`SHARED`].
    pub(crate) fn id(&self, name: &str) -> Result<u32> {
        Ok(self.get(name).info().doing("reading the IDs of the gate's maps")?.info.id)
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
const HEADER_NAME: &str = ".bss.tollgate";

/// The headers of all gates, with their maps. There is more than one while the kernel frees an
/// older gate. A gate that no process can join any more has no [`wire::GATE_MAGIC`].
pub fn headers() -> impl Iterator<Item = Result<(MapHandle, wire::gate_header)>> {
    MapInfoIter::default()
        .filter(|info| info.name.as_bytes() == HEADER_NAME.as_bytes())
        .filter_map(|info| MapHandle::from_map_id(info.id).ok())
        .map(|map| {
            let header = MappedArray::<wire::gate_header>::new(&map, 1)?.read(0);
            Ok((map, header))
        })
}

/// The bits of [`wire::gate_mask`] with which gates of this build were loaded, as far as the kernel
/// still has their headers: a gate that is being freed counts as well.
pub fn enabled_by_gates() -> u32 {
    let is_ours = |header: &wire::gate_header| {
        header.magic == wire::GATE_MAGIC && header.build == wire::BUILD
    };
    let ours = headers().flatten().map(|(_, header)| header).filter(is_ours);
    ours.fold(0, |all, header| all | header.enabled)
}

/// Whether a link attaches a program that uses this map. When a process ends, the kernel frees its
/// links at once, but its maps only after some grace periods.
pub fn is_attached(map: &MapHandle) -> Result<bool> {
    let map = map.info().doing("reading the ID of a gate's header")?.info.id;
    let with_maps = ProgInfoQueryOptions::default().include_map_ids(true);
    let users: Vec<_> = ProgInfoIter::with_query_opts(with_maps)
        .filter(|program| program.map_ids.contains(&map))
        .map(|program| program.id)
        .collect();
    Ok(LinkInfoIter::default().any(|link| users.contains(&link.prog_id)))
}

/// All links with these IDs, or `None` if one is gone. ID 0 stands for no link.
pub fn open_links(ids: &LinkIds) -> Option<Vec<OwnedFd>> {
    ids.iter()
        .filter(|id| **id != 0)
        .map(|id| {
            // SAFETY: a system call that takes only a number and returns a new descriptor.
            let fd = unsafe { libbpf_rs::libbpf_sys::bpf_link_get_fd_by_id(*id) };
            // SAFETY: a new descriptor that only this process owns.
            (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
        })
        .collect()
}
