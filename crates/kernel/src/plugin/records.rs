//! What a plugin prints and emits.

use libbpf_rs::{MapHandle, MapType};

use super::map::create_map;
use crate::error::Result;
use crate::ring::RingReader;

/// Room for a plugin's output until it is read: some thousand lines.
pub const RECORDS_BYTES: u32 = 256 << 10;

/// A plugin's output, which its programs write to a ring buffer.
pub struct Records {
    pub map: MapHandle,
    reader: RingReader,
}

impl Records {
    pub fn new() -> Result<Self> {
        let map = create_map(MapType::RingBuf, "plugin_records", 0, 0, RECORDS_BYTES, 0)?;
        let reader = RingReader::new(&map, "opening a plugin's ring buffer")?;
        Ok(Self { map, reader })
    }

    /// Those that were not read yet.
    pub fn read(&self) -> Result<Vec<Vec<u8>>> {
        self.reader.read()
    }
}
