//! The output of a plugin: what it prints and emits.

use libbpf_rs::{MapHandle, MapType};

use super::map::create_map;
use crate::error::Result;
use crate::ring::RingReader;

/// The size of the ring buffer for a plugin's output, in bytes: some thousand lines. While it is
/// full, further output is lost.
pub const RECORDS_BYTES: u32 = 256 << 10;

/// The ring buffer to which a plugin's programs write their output.
pub struct Records {
    /// The ring buffer, for programs that write to it.
    pub map: MapHandle,
    reader: RingReader,
}

impl Records {
    /// Creates a ring buffer of [`RECORDS_BYTES`].
    pub fn new() -> Result<Self> {
        let map = create_map(MapType::RingBuf, "plugin_records", 0, 0, RECORDS_BYTES, 0)?;
        let reader = RingReader::new(&map, "opening a plugin's ring buffer")?;
        Ok(Self { map, reader })
    }

    /// The records that were not read yet.
    pub fn read(&self) -> Result<Vec<Vec<u8>>> {
        self.reader.read()
    }
}
