//! Threads that the kernel side wants to have in other control groups.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

use libbpf_rs::{MapCore as _, MapHandle, RingBuffer, RingBufferBuilder};

use crate::clock::now_ns;
use crate::error::{Doing as _, Result};
use crate::gate::Gate;
use crate::mapping::Mapping;
use crate::wire;

/// Their ring buffer, to be read by one thread.
pub struct Source {
    ring: MapHandle,
    members: Mapping<wire::service_member>,
}

/// How long a thread sleeps after an answer before it leaves its service's control group: one
/// millisecond, the resolution of [`Placements::wait`].
pub const LEAVES_AFTER: Duration = Duration::from_millis(1);

/// What to do with a thread that may leave its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaves {
    Now,
    /// It has not slept for long enough.
    Later,
    /// It works again, or has ended.
    Never,
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

    /// What to do with a thread that may leave its group.
    pub fn leaves(&self, placement: &wire::service_placement) -> Leaves {
        let entry = self.members.entry(placement.slot);
        // SAFETY: aligned fields within the mapping, which both sides access as a whole.
        let (leaving_began_ns, has_answered, slept_ns) = unsafe {
            (
                AtomicU64::from_ptr(&raw mut (*entry).leaving_began_ns),
                AtomicU16::from_ptr(&raw mut (*entry).has_answered),
                AtomicU64::from_ptr(&raw mut (*entry).slept_ns),
            )
        };
        let slept = || Duration::from_nanos(slept_ns.load(Ordering::SeqCst));
        let is_at_work = || has_answered.load(Ordering::SeqCst) == 0 || slept().is_zero();
        let is_due = || slept() + LEAVES_AFTER <= Duration::from_nanos(now_ns());
        let change = |from, to| {
            leaving_began_ns.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        };
        // The slot may be another thread's by now.
        if leaving_began_ns.load(Ordering::SeqCst) != placement.began_ns {
            return Leaves::Never;
        }
        if !is_at_work() && !is_due() {
            return Leaves::Later;
        }
        // From here on it asks anew at its next sleep after an answer.
        if !change(placement.began_ns, 0) {
            return Leaves::Never;
        }
        let placed = self.placed(placement);
        let before = placed.load(Ordering::SeqCst);
        let place = |from, to: u32| {
            placed.compare_exchange(from, to as u16, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        };
        if is_at_work() {
            return Leaves::Never;
        }
        if !is_due() {
            // It may have gone to sleep just before it was reset, and not have asked.
            return if change(0, placement.began_ns) { Leaves::Later } else { Leaves::Never };
        }
        if !place(before, wire::SERVICE_ROOT) {
            return Leaves::Never;
        }
        if is_at_work() {
            // It may have taken itself for placed just before: it asks for its group again.
            place(wire::SERVICE_ROOT as u16, wire::PLACED_NOWHERE);
            return Leaves::Never;
        }
        Leaves::Now
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
