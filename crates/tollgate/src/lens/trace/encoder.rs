//! Encodes calls and waits for Perfetto: a track for each thread, a slice for each call, and within
//! it the times in which the thread was off the processor.

use std::collections::{HashMap, HashSet};

use kernel::wire;
use prost::Message as _;

use super::perfetto::{CLOCK_BOOTTIME, CLOCK_MONOTONIC, CLOCK_REALTIME};
use super::perfetto::{
    Clock, ClockSnapshot, DebugAnnotation, EventName, INSTANT, InternedData, NEEDS_STATE,
    PerfettoTrace, ProcessDescriptor, SLICE_BEGIN, SLICE_END, STATE_CLEARED, ThreadDescriptor,
    TracePacket, TracePacketDefaults, TrackDescriptor, TrackEvent,
};

/// All packets are of one sequence.
const SEQUENCE: u32 = 1;
/// The track for what is missing. Those of threads and processes have larger numbers.
const OWN_TRACK: u64 = 1;

fn process_track(pid: u32) -> u64 {
    2 + 2 * u64::from(pid)
}

fn thread_track(tid: u32) -> u64 {
    3 + 2 * u64::from(tid)
}

/// A call that has ended, or has not (`ended_ns` and `result` are `None`).
pub struct TracedCall<'a> {
    pub tid: u32,
    pub pid: u32,
    /// The name of the thread.
    pub command: &'a str,
    pub name: &'a str,
    pub began_ns: u64,
    pub ended_ns: Option<u64>,
    pub result: Option<&'a str>,
}

/// The time of one moment by several clocks, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct ClockMoment {
    pub monotonic: u64,
    pub boot: u64,
    pub real: u64,
}

/// A time off the processor within a call, whose record has not been read yet.
struct PendingWait {
    left_ns: u64,
    ready_ns: u64,
    returned_ns: u64,
    name: String,
}

/// The encoder of one trace.
pub struct Encoder {
    packets: Vec<TracePacket>,
    /// The numbers of the names that the trace has.
    names: HashMap<String, u64>,
    processes: HashSet<u32>,
    /// The threads that have tracks, with their latest names.
    threads: HashMap<u32, String>,
    /// By thread.
    waits: HashMap<u32, Vec<PendingWait>>,
}

impl Encoder {
    /// A trace that begins at this moment.
    pub fn new(now: ClockMoment) -> Self {
        let mut encoder = Self {
            packets: Vec::new(),
            names: HashMap::new(),
            processes: HashSet::new(),
            threads: HashMap::new(),
            waits: HashMap::new(),
        };
        let clock = |id, ns| Clock { clock_id: Some(id), timestamp: Some(ns) };
        encoder.packets.push(TracePacket {
            trusted_packet_sequence_id: Some(SEQUENCE),
            sequence_flags: Some(STATE_CLEARED),
            trace_packet_defaults: Some(TracePacketDefaults {
                timestamp_clock_id: Some(CLOCK_MONOTONIC),
            }),
            clock_snapshot: Some(ClockSnapshot {
                clocks: vec![
                    clock(CLOCK_MONOTONIC, now.monotonic),
                    clock(CLOCK_BOOTTIME, now.boot),
                    clock(CLOCK_REALTIME, now.real),
                ],
                primary_trace_clock: Some(CLOCK_MONOTONIC),
            }),
            ..TracePacket::default()
        });
        encoder.describe(TrackDescriptor {
            uuid: Some(OWN_TRACK),
            name: Some("Tollgate".into()),
            ..TrackDescriptor::default()
        });
        encoder
    }

    /// Adds a time off the processor, before the call in which it was. `site`: the function in
    /// which the thread slept, if it is known.
    pub fn add_wait(&mut self, wait: &wire::trace_wait, site: Option<&str>) {
        let name = site.map_or_else(|| "blocked".into(), |site| format!("blocked in {site}"));
        let wire::trace_wait { left_ns, ready_ns, returned_ns, .. } = *wait;
        let pending = PendingWait { left_ns, ready_ns, returned_ns, name };
        self.waits.entry(wait.pid).or_default().push(pending);
    }

    /// Adds a call, with the waits of its thread that were within it. Earlier waits were those of a
    /// call whose record was lost.
    pub fn add_call(&mut self, call: &TracedCall<'_>) {
        self.describe_thread(call);
        let track = thread_track(call.tid);
        let results = call.result.map(|result| DebugAnnotation {
            name: Some("result".into()),
            int_value: result.parse().ok(),
            string_value: result.parse::<i64>().is_err().then(|| result.to_owned()),
        });
        self.begin(track, call.began_ns, call.name, results.into_iter().collect());
        for wait in self.waits.remove(&call.tid).unwrap_or_default() {
            if wait.left_ns < call.began_ns {
                continue;
            }
            for (from, to, name) in [
                (wait.left_ns, wait.ready_ns, wait.name.as_str()),
                (wait.ready_ns, wait.returned_ns, "waiting for a CPU"),
            ] {
                if from < to {
                    self.begin(track, from, name, Vec::new());
                    self.event(track, to, TrackEvent { r#type: Some(SLICE_END), ..none() });
                }
            }
        }
        if let Some(ended_ns) = call.ended_ns {
            self.event(track, ended_ns, TrackEvent { r#type: Some(SLICE_END), ..none() });
        }
    }

    /// Adds a mark to Tollgate's own track.
    pub fn mark(&mut self, at_ns: u64, text: &str) {
        let name_iid = Some(self.name(text));
        let event = TrackEvent { r#type: Some(INSTANT), name_iid, ..none() };
        self.event(OWN_TRACK, at_ns, event);
    }

    /// The number of packets that [`Self::take`] will return.
    pub fn packets(&self) -> usize {
        self.packets.len()
    }

    /// The bytes of what was added since the call before. All of them together are the trace.
    pub fn take(&mut self) -> Vec<u8> {
        PerfettoTrace { packet: std::mem::take(&mut self.packets) }.encode_to_vec()
    }

    fn describe(&mut self, track: TrackDescriptor) {
        self.packets.push(TracePacket {
            trusted_packet_sequence_id: Some(SEQUENCE),
            track_descriptor: Some(track),
            ..TracePacket::default()
        });
    }

    /// Gives a thread its track, and a name that it has not had yet.
    fn describe_thread(&mut self, call: &TracedCall<'_>) {
        let is_known = self.threads.get(&call.tid).is_some_and(|name| name == call.command);
        if is_known {
            return;
        }
        // The first thread names the process.
        if self.processes.insert(call.pid) || call.pid == call.tid {
            self.describe(TrackDescriptor {
                uuid: Some(process_track(call.pid)),
                process: Some(ProcessDescriptor {
                    pid: Some(call.pid as i32),
                    process_name: Some(call.command.into()),
                }),
                ..TrackDescriptor::default()
            });
        }
        self.describe(TrackDescriptor {
            uuid: Some(thread_track(call.tid)),
            parent_uuid: Some(process_track(call.pid)),
            thread: Some(ThreadDescriptor {
                pid: Some(call.pid as i32),
                tid: Some(call.tid.into()),
                thread_name: Some(call.command.into()),
            }),
            ..TrackDescriptor::default()
        });
        self.threads.insert(call.tid, call.command.to_owned());
    }

    fn begin(&mut self, track: u64, at_ns: u64, name: &str, annotations: Vec<DebugAnnotation>) {
        let name_iid = Some(self.name(name));
        let event = TrackEvent {
            r#type: Some(SLICE_BEGIN),
            name_iid,
            debug_annotations: annotations,
            ..none()
        };
        self.event(track, at_ns, event);
    }

    fn event(&mut self, track: u64, at_ns: u64, event: TrackEvent) {
        self.packets.push(TracePacket {
            timestamp: Some(at_ns),
            trusted_packet_sequence_id: Some(SEQUENCE),
            sequence_flags: Some(NEEDS_STATE),
            track_event: Some(TrackEvent { track_uuid: Some(track), ..event }),
            ..TracePacket::default()
        });
    }

    /// The number of a name, which a packet of its own gives it the first time.
    fn name(&mut self, name: &str) -> u64 {
        if let Some(number) = self.names.get(name) {
            return *number;
        }
        // 0 stands for no name.
        let number = self.names.len() as u64 + 1;
        self.names.insert(name.to_owned(), number);
        self.packets.push(TracePacket {
            trusted_packet_sequence_id: Some(SEQUENCE),
            sequence_flags: Some(NEEDS_STATE),
            interned_data: Some(InternedData {
                event_names: vec![EventName { iid: Some(number), name: Some(name.into()) }],
            }),
            ..TracePacket::default()
        });
        number
    }
}

fn none() -> TrackEvent {
    TrackEvent::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(tid: u32, name: &'static str, began_ns: u64, ended_ns: u64) -> TracedCall<'static> {
        TracedCall {
            tid,
            pid: 7,
            command: "program",
            name,
            began_ns,
            ended_ns: Some(ended_ns),
            result: Some("-ENOENT"),
        }
    }

    fn wait(left_ns: u64, ready_ns: u64, returned_ns: u64) -> wire::trace_wait {
        let kind = wire::TRACE_WAIT;
        wire::trace_wait { type_: kind, pid: 8, left_ns, ready_ns, returned_ns, site: 0 }
    }

    /// The slices of a trace: depth, name, beginning and end. Fails if they do not nest.
    fn slices(bytes: &[u8]) -> Vec<(usize, String, u64, Option<u64>)> {
        let trace = PerfettoTrace::decode(bytes).expect("a trace");
        let mut names = HashMap::new();
        let (mut all, mut open): (Vec<_>, HashMap<u64, Vec<usize>>) = Default::default();
        for packet in trace.packet {
            for name in packet.interned_data.iter().flat_map(|data| &data.event_names) {
                names.insert(name.iid(), name.name().to_owned());
            }
            let Some(event) = &packet.track_event else { continue };
            let stack = open.entry(event.track_uuid()).or_default();
            match event.r#type() {
                SLICE_BEGIN => {
                    all.push((
                        stack.len(),
                        names[&event.name_iid()].clone(),
                        packet.timestamp(),
                        None,
                    ));
                    stack.push(all.len() - 1);
                }
                SLICE_END => {
                    let slice: &mut (_, _, u64, Option<u64>) =
                        &mut all[stack.pop().expect("a slice is open")];
                    assert!(slice.2 <= packet.timestamp());
                    slice.3 = Some(packet.timestamp());
                }
                _ => all.push((0, names[&event.name_iid()].clone(), packet.timestamp(), None)),
            }
        }
        all
    }

    #[test]
    fn waits_are_within_their_calls() {
        let mut encoder = Encoder::new(ClockMoment { monotonic: 1, boot: 2, real: 3 });
        // The record of the call in which this wait was is lost.
        encoder.add_wait(&wait(10, 15, 20), None);
        encoder.add_wait(&wait(110, 150, 170), Some("pipe_read"));
        // It was preempted.
        encoder.add_wait(&wait(180, 180, 190), None);
        let mut bytes = encoder.take();
        encoder.add_call(&call(8, "read", 100, 200));
        encoder.add_call(&call(7, "read", 120, 130));
        encoder.mark(210, "3 calls and waits are missing");
        encoder.add_call(&TracedCall { ended_ns: None, result: None, ..call(8, "futex", 220, 0) });
        bytes.extend(encoder.take());
        let slice = |depth, name: &str, from, to| (depth, name.to_owned(), from, to);
        assert_eq!(
            slices(&bytes),
            [
                slice(0, "read", 100, Some(200)),
                slice(1, "blocked in pipe_read", 110, Some(150)),
                slice(1, "waiting for a CPU", 150, Some(170)),
                slice(1, "waiting for a CPU", 180, Some(190)),
                slice(0, "read", 120, Some(130)),
                slice(0, "3 calls and waits are missing", 210, None),
                slice(0, "futex", 220, None),
            ]
        );
    }

    #[test]
    fn threads_and_processes_are_described_once() {
        let mut encoder = Encoder::new(ClockMoment { monotonic: 1, boot: 2, real: 3 });
        for at in [100, 200] {
            encoder.add_call(&call(8, "read", at, at + 10));
        }
        encoder.add_call(&TracedCall { command: "other", ..call(8, "read", 300, 310) });
        let trace = PerfettoTrace::decode(&*encoder.take()).expect("a trace");
        let tracks: Vec<_> =
            trace.packet.iter().filter_map(|packet| packet.track_descriptor.clone()).collect();
        let threads: Vec<_> = tracks.iter().filter_map(|track| track.thread.as_ref()).collect();
        let names: Vec<_> = threads.iter().map(|thread| thread.thread_name()).collect();
        assert_eq!(names, ["program", "other"]);
        assert_eq!((threads[0].pid(), threads[0].tid()), (7, 8));
        assert_eq!(tracks.iter().filter(|track| track.process.is_some()).count(), 1);
        let first = &trace.packet[0];
        assert_eq!(first.sequence_flags(), STATE_CLEARED);
        let defaults = first.trace_packet_defaults.as_ref().expect("they are first");
        assert_eq!(defaults.timestamp_clock_id(), CLOCK_MONOTONIC);
    }
}
