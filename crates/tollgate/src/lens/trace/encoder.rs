//! Encodes calls and waits for Perfetto: a track for each thread, a slice for each call, and within
//! it the times in which the thread was off the processor. Arrows lead from a thread to those that
//! it has woken.

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

/// What has woken a thread.
pub struct Waker {
    /// When the wait began that it has ended.
    pub left_ns: u64,
    pub woken_ns: u64,
    /// What it is, in words.
    pub text: String,
    /// `None`: it was no thread of a process.
    pub thread: Option<WakerThread>,
}

/// A thread that has woken another one. It need not be one of the trace's threads.
pub struct WakerThread {
    pub pid: u32,
    pub tid: u32,
    /// The names of the process's first thread, and of the thread.
    pub program: String,
    pub name: String,
}

/// A time off the processor within a call, whose record has not been read yet.
struct PendingWait {
    left_ns: u64,
    ready_ns: u64,
    returned_ns: u64,
    name: String,
    waker: Option<Waker>,
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
    /// By the thread that was woken. Its wait follows.
    wakers: HashMap<u32, Waker>,
    /// The number of the latest arrow.
    arrows: u64,
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
            wakers: HashMap::new(),
            arrows: 0,
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

    /// Adds what has woken a thread, before the wait that it has ended.
    pub fn add_waker(&mut self, tid: u32, waker: Waker) {
        self.wakers.insert(tid, waker);
    }

    /// Adds a time off the processor, before the call in which it was. `site`: the function in
    /// which the thread slept, if it is known.
    pub fn add_wait(&mut self, wait: &wire::trace_wait, site: Option<&str>) {
        let name = site.map_or_else(|| "blocked".into(), |site| format!("blocked in {site}"));
        let wire::trace_wait { left_ns, ready_ns, returned_ns, .. } = *wait;
        // The record of an earlier wait may be lost.
        let waker = self.wakers.remove(&wait.pid).filter(|waker| waker.left_ns == left_ns);
        let pending = PendingWait { left_ns, ready_ns, returned_ns, name, waker };
        self.waits.entry(wait.pid).or_default().push(pending);
    }

    /// Adds a call, with the waits of its thread that were within it. Earlier waits were those of a
    /// call whose record was lost.
    pub fn add_call(&mut self, call: &TracedCall<'_>) {
        self.describe_thread(call.pid, call.tid, call.command, call.command);
        let track = thread_track(call.tid);
        let result = call.result.map(|result| DebugAnnotation {
            name: Some("result".into()),
            int_value: result.parse().ok(),
            string_value: result.parse::<i64>().is_err().then(|| result.to_owned()),
        });
        let annotated = TrackEvent { debug_annotations: result.into_iter().collect(), ..none() };
        self.begin(track, call.began_ns, call.name, annotated);
        for wait in self.waits.remove(&call.tid).unwrap_or_default() {
            if wait.left_ns >= call.began_ns {
                self.add_slices(call, wait);
            }
        }
        if let Some(ended_ns) = call.ended_ns {
            self.end(track, ended_ns);
        }
    }

    /// The slices of a wait, with the arrow from the thread that has ended it.
    fn add_slices(&mut self, call: &TracedCall<'_>, wait: PendingWait) {
        let track = thread_track(call.tid);
        let PendingWait { left_ns, ready_ns, returned_ns, name, waker } = wait;
        let woken_by = waker.as_ref().map(|waker| DebugAnnotation {
            name: Some("woken by".into()),
            string_value: Some(waker.text.clone()),
            ..DebugAnnotation::default()
        });
        if left_ns < ready_ns {
            let event = TrackEvent { debug_annotations: woken_by.into_iter().collect(), ..none() };
            self.begin(track, left_ns, &name, event);
            self.end(track, ready_ns);
        }
        let arrow = waker.and_then(|Waker { woken_ns, thread, .. }| {
            // The scheduler's clock, which says when the thread was ready, is another one.
            Some(self.begin_arrow(woken_ns.clamp(left_ns, ready_ns), &thread?, call.command))
        });
        let event = TrackEvent { terminating_flow_ids: arrow.into_iter().collect(), ..none() };
        if ready_ns < returned_ns {
            self.begin(track, ready_ns, "waiting for a CPU", event);
            self.end(track, returned_ns);
        } else if arrow.is_some() {
            self.instant(track, returned_ns, "woken", event);
        }
    }

    /// Begins an arrow in the track of a thread that wakes another one. Returns its number.
    fn begin_arrow(&mut self, at_ns: u64, waker: &WakerThread, woken: &str) -> u64 {
        self.describe_thread(waker.pid, waker.tid, &waker.program, &waker.name);
        self.arrows += 1;
        let event = TrackEvent { flow_ids: vec![self.arrows], ..none() };
        self.instant(thread_track(waker.tid), at_ns, &format!("wakes {woken}"), event);
        self.arrows
    }

    /// Adds a mark to Tollgate's own track.
    pub fn mark(&mut self, at_ns: u64, text: &str) {
        self.instant(OWN_TRACK, at_ns, text, none());
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
    fn describe_thread(&mut self, pid: u32, tid: u32, process: &str, name: &str) {
        if self.threads.get(&tid).is_some_and(|known| known == name) {
            return;
        }
        // The first thread names the process.
        if self.processes.insert(pid) || pid == tid {
            self.describe(TrackDescriptor {
                uuid: Some(process_track(pid)),
                process: Some(ProcessDescriptor {
                    pid: Some(pid as i32),
                    process_name: Some(process.into()),
                }),
                ..TrackDescriptor::default()
            });
        }
        self.describe(TrackDescriptor {
            uuid: Some(thread_track(tid)),
            parent_uuid: Some(process_track(pid)),
            thread: Some(ThreadDescriptor {
                pid: Some(pid as i32),
                tid: Some(tid.into()),
                thread_name: Some(name.into()),
            }),
            ..TrackDescriptor::default()
        });
        self.threads.insert(tid, name.to_owned());
    }

    fn begin(&mut self, track: u64, at_ns: u64, name: &str, event: TrackEvent) {
        let name_iid = Some(self.name(name));
        self.event(track, at_ns, TrackEvent { r#type: Some(SLICE_BEGIN), name_iid, ..event });
    }

    fn end(&mut self, track: u64, at_ns: u64) {
        self.event(track, at_ns, TrackEvent { r#type: Some(SLICE_END), ..none() });
    }

    fn instant(&mut self, track: u64, at_ns: u64, name: &str, event: TrackEvent) {
        let name_iid = Some(self.name(name));
        self.event(track, at_ns, TrackEvent { r#type: Some(INSTANT), name_iid, ..event });
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

    /// The ends of arrows: number, track, name, time, and whether the arrow begins there.
    fn arrows(bytes: &[u8]) -> Vec<(u64, u64, String, u64, bool)> {
        let trace = PerfettoTrace::decode(bytes).expect("a trace");
        let mut names = HashMap::new();
        let mut ends = Vec::new();
        for packet in trace.packet {
            for name in packet.interned_data.iter().flat_map(|data| &data.event_names) {
                names.insert(name.iid(), name.name().to_owned());
            }
            let Some(event) = &packet.track_event else { continue };
            let (begun, ended) = (&event.flow_ids, &event.terminating_flow_ids);
            let all = begun.iter().map(|id| (*id, true)).chain(ended.iter().map(|id| (*id, false)));
            ends.extend(all.map(|(id, begins)| {
                let name = names[&event.name_iid()].clone();
                (id, event.track_uuid(), name, packet.timestamp(), begins)
            }));
        }
        ends
    }

    #[test]
    fn arrows_lead_from_wakers() {
        let waker = |left_ns, woken_ns, tid: Option<u32>| Waker {
            left_ns,
            woken_ns,
            text: "its waker".into(),
            thread: tid.map(|tid| WakerThread {
                pid: 3,
                tid,
                program: "writer".into(),
                name: "helper".into(),
            }),
        };
        let mut encoder = Encoder::new(ClockMoment { monotonic: 1, boot: 2, real: 3 });
        // By the scheduler's clock, the thread was ready before it was woken.
        encoder.add_waker(8, waker(110, 151, Some(4)));
        encoder.add_wait(&wait(110, 150, 170), Some("pipe_read"));
        encoder.add_waker(8, waker(172, 175, Some(4)));
        encoder.add_wait(&wait(172, 180, 180), None);
        encoder.add_waker(8, waker(182, 185, None));
        encoder.add_wait(&wait(182, 186, 187), None);
        // The record of the wait that began at 188 is lost.
        encoder.add_waker(8, waker(188, 189, Some(4)));
        encoder.add_wait(&wait(190, 191, 192), None);
        encoder.add_call(&call(8, "read", 100, 200));
        let bytes = encoder.take();
        let (from, to) = (thread_track(4), thread_track(8));
        let (wakes, waits) = ("wakes program".to_owned(), "waiting for a CPU".to_owned());
        assert_eq!(
            arrows(&bytes),
            [
                (1, from, wakes.clone(), 150, true),
                (1, to, waits, 150, false),
                (2, from, wakes, 175, true),
                (2, to, "woken".into(), 180, false),
            ]
        );
        let trace = PerfettoTrace::decode(&*bytes).expect("a trace");
        let events = trace.packet.iter().filter_map(|packet| packet.track_event.as_ref());
        let texts = events.flat_map(|event| &event.debug_annotations);
        let texts: Vec<_> = texts.filter(|text| text.name() == "woken by").collect();
        assert!(texts.len() == 3 && texts.iter().all(|text| text.string_value() == "its waker"));
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
