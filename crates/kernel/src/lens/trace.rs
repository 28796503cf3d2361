//! The trace of a session: its calls and waits, one by one.

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::atomic::Ordering;

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};

use crate::error::{ErrorContext as _, Result};
use crate::gate::{Gate, KernelSide, LazyMaps, new_ring};
use crate::mapped_array::atomic_field;
use crate::ring::{RingReader, decode};
use crate::skeletons::gate::OpenGateMaps;
use crate::wire;

/// The map of all sessions' buffers.
const MAP: &str = "lens_traces";

/// A record of a trace. Those of a processor are in the order in which they ended.
#[derive(Debug, Clone, Copy)]
pub enum TraceRecord {
    /// A call that has ended.
    Call(wire::trace_call),
    /// A time off the processor in a call, which has not ended yet.
    Wait(wire::trace_wait),
    /// What has ended the sleep that is the next wait of its thread.
    Waker(wire::trace_waker),
}

impl TraceRecord {
    /// When the call, or the time off the processor, ended. `None`: what has ended a sleep belongs
    /// to the next wait of its thread.
    pub fn ended_ns(&self) -> Option<u64> {
        match self {
            Self::Call(call) => Some(call.ended_ns),
            Self::Wait(wait) => Some(wait.returned_ns),
            Self::Waker(_) => None,
        }
    }
}

/// Reads the trace of a session.
pub struct TraceReader {
    ring: RingReader,
    /// Keeps the buffer.
    _map: MapHandle,
}

impl TraceReader {
    /// Gives the session a buffer. It records nothing before [`Gate::trace_until`].
    pub fn new(gate: &Gate, session: u32) -> Result<Self> {
        let map = new_ring(wire::TRACE_RING_BYTES)?;
        let descriptor = map.as_fd().as_raw_fd().to_ne_bytes();
        gate.maps
            .get(MAP)
            .update(&session.to_ne_bytes(), &descriptor, MapFlags::ANY)
            .doing("giving a session a buffer for its trace")?;
        let ring = RingReader::new(&map, "opening the buffer of a trace")?;
        Ok(Self { ring, _map: map })
    }

    /// The records that were not read yet.
    pub fn read(&self) -> Result<Vec<TraceRecord>> {
        let records = self.ring.read()?;
        let decoded = records.iter().filter_map(|bytes| {
            let call = decode(bytes, wire::TRACE_CALL).map(TraceRecord::Call);
            let wait = || decode(bytes, wire::TRACE_WAIT).map(TraceRecord::Wait);
            let waker = || decode(bytes, wire::TRACE_WAKER).map(TraceRecord::Waker);
            call.or_else(wait).or_else(waker)
        });
        Ok(decoded.collect())
    }
}

impl Gate {
    /// Records the calls of a session that end before this time. 0: records no more.
    pub fn trace_until(&self, session: u32, until_ns: u64) {
        atomic_field!(self.sessions, session, trace_until_ns).store(until_ns, Ordering::SeqCst);
    }
}

fn shrink_maps(maps: &mut OpenGateMaps) -> Result<()> {
    maps.lens_traces.set_max_entries(1).doing("shrinking the map of traces, which is not used")
}

/// Makes the map of traces when it is first needed, and frees the buffers of sessions.
pub struct TracesKernelSide;

impl KernelSide for TracesKernelSide {
    fn lazy_maps(&self) -> Option<&'static LazyMaps> {
        Some(&LazyMaps { prefixes: &[MAP], bit: wire::LENS_TRACE, shrink: shrink_maps, fit: None })
    }

    fn release(&self, gate: &Gate, session: u32) {
        if gate.sessions.read(session).mask & wire::LENS_TRACE != 0 {
            let _ = gate.maps.get(MAP).delete(&session.to_ne_bytes());
        }
    }
}
