//! Threads that the kernel side wants to have in other control groups.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use libbpf_rs::{MapCore as _, MapHandle, RingBuffer, RingBufferBuilder};

use crate::error::{Doing as _, Result};
use crate::gate::Gate;
use crate::mapping::Mapping;
use crate::wire;

/// Their ring buffer, to be read by one thread.
pub struct Source {
    ring: MapHandle,
    members: Mapping<wire::service_member>,
}

/// Read by the thread that made it.
pub struct Placements {
    ring: RingBuffer<'static>,
    inbox: Rc<RefCell<Vec<wire::service_placement>>>,
    members: Mapping<wire::service_member>,
}

impl Source {
    pub fn new(gate: &Gate) -> Result<Self> {
        let id = gate.maps.get("placements").info().doing("numbering its maps")?.info.id;
        Ok(Self {
            ring: MapHandle::from_map_id(id).doing("opening the gate's maps")?,
            members: Mapping::new(gate.maps.get(".bss.members"), wire::THREADS)?,
        })
    }
}

impl Placements {
    pub fn new(source: Source) -> Result<Self> {
        const WHAT: &str = "opening the buffer of threads to be moved";
        let inbox: Rc<RefCell<Vec<_>>> = Rc::default();
        let into = Rc::clone(&inbox);
        let mut builder = RingBufferBuilder::new();
        let take = move |bytes: &[u8]| {
            if bytes.len() >= size_of::<wire::service_placement>() {
                // SAFETY: long enough, and any bytes are a value of it.
                into.borrow_mut()
                    .push(unsafe { bytes.as_ptr().cast::<wire::service_placement>().read_unaligned() });
            }
            0
        };
        builder.add(&source.ring, take).doing(WHAT)?;
        Ok(Self { ring: builder.build().doing(WHAT)?, inbox, members: source.members })
    }

    /// Those that have come, once there are some or the time is over.
    pub fn wait(&self, most: Duration) -> Vec<wire::service_placement> {
        // Interrupted by a signal at worst.
        let _ = self.ring.poll(most);
        self.inbox.take()
    }

    fn placed(&self, placement: &wire::service_placement) -> &AtomicU16 {
        let entry = self.members.entry(placement.slot);
        // SAFETY: an aligned field within the mapping, which both sides access as a whole.
        unsafe { AtomicU16::from_ptr(&raw mut (*entry).placed) }
    }

    /// Nothing else was asked for since, and the thread is still there.
    pub fn is_meant(&self, placement: &wire::service_placement) -> bool {
        self.placed(placement).load(Ordering::SeqCst) == placement.place
    }

    /// It was not moved: it is asked for again when it competes again.
    pub fn put_off(&self, placement: &wire::service_placement) {
        let nowhere = wire::PLACED_NOWHERE as u16;
        let _ = self.placed(placement).compare_exchange(
            placement.place,
            nowhere,
            Ordering::SeqCst,
            Ordering::SeqCst,
        );
    }
}
