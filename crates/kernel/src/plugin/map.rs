//! The maps of plugins.

use std::io;

use libbpf_rs::libbpf_sys::bpf_map_create_opts;
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapType};

use crate::error::{Error, ErrorContext, Result};

/// The kernel's name for a program or map has 15 bytes (BPF_OBJ_NAME_LEN).
const NAME_BYTES: usize = 15;

pub fn create_map(
    kind: MapType,
    name: &str,
    key: u32,
    value: u32,
    entries: u32,
    flags: u32,
) -> Result<MapHandle> {
    let options = bpf_map_create_opts {
        sz: size_of::<bpf_map_create_opts>() as _,
        map_flags: flags,
        ..Default::default()
    };
    let name = &name[..name.len().min(NAME_BYTES)];
    let made = MapHandle::create(kind, Some(name), key, value, entries, &options);
    made.map_err(|cause| Error::Io {
        doing: "create a plugin's map".into(),
        cause: io::Error::other(cause),
    })
}

/// One more handle of the same map.
pub fn share_map(map: &MapHandle) -> Result<MapHandle> {
    MapHandle::try_from(map).doing("sharing a plugin's map")
}

/// The contents of a map with one entry: variables, or counts of faults.
pub fn read_entry(map: &MapHandle) -> Result<Vec<u8>> {
    let value =
        map.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY).doing("reading a plugin's variables")?;
    Ok(value.unwrap_or_default())
}
