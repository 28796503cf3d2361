//! The maps of plugins.

use std::io;

use libbpf_rs::libbpf_sys::bpf_map_create_opts;
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapType};

use crate::error::{Error, ErrorContext, Result};

/// The kernel's name of a map has at most this many bytes (BPF_OBJ_NAME_LEN, without the NUL).
const NAME_BYTES: usize = 15;

/// Creates a map with room for `entries` entries. `key` and `value` are sizes in bytes.
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

/// Opens the same map once more.
pub fn share_map(map: &MapHandle) -> Result<MapHandle> {
    MapHandle::try_from(map).doing("sharing a plugin's map")
}

/// Reads the value of a map with one entry.
pub fn read_entry(map: &MapHandle) -> Result<Vec<u8>> {
    let value =
        map.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY).doing("reading a plugin's variables")?;
    Ok(value.unwrap_or_default())
}
