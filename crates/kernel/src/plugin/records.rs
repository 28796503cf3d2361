//! What a plugin prints and emits.

use std::cell::RefCell;
use std::rc::Rc;

use libbpf_rs::{MapHandle, MapType, RingBuffer, RingBufferBuilder};

use super::map::create_map;
use crate::error::{ErrorContext, Result};

/// Room for a plugin's output until it is read: some thousand lines.
pub const RECORDS_BYTES: u32 = 256 << 10;
/// A plugin's output, which its programs write to a ring buffer.
pub struct Records {
    pub map: MapHandle,
    reader: RingBuffer<'static>,
    inbox: Rc<RefCell<Vec<Vec<u8>>>>,
}

impl Records {
    pub fn new() -> Result<Self> {
        let map = create_map(MapType::RingBuf, "plugin_records", 0, 0, RECORDS_BYTES, 0)?;
        let inbox: Rc<RefCell<Vec<_>>> = Rc::default();
        let into = Rc::clone(&inbox);
        let mut builder = RingBufferBuilder::new();
        let take = move |bytes: &[u8]| {
            into.borrow_mut().push(bytes.to_vec());
            0
        };
        builder.add(&map, take).doing("opening a plugin's ring buffer")?;
        let reader = builder.build().doing("opening what a plugin tells")?;
        Ok(Self { map, reader, inbox })
    }
    /// Those that were not read yet.
    pub fn read(&self) -> Result<Vec<Vec<u8>>> {
        self.reader.consume().doing("reading a plugin's output")?;
        Ok(self.inbox.take())
    }
}
