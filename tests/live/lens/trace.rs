//! `--trace`: the slices of a trace are the calls and waits of the report.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use prost::Message;

use super::subject::Subject;
use crate::harness::job::{folder, kill};
use crate::harness::report::Call;
use crate::harness::{Job, Report, tollgate, workload};

/// What is read of a trace: protos/perfetto/trace/ in <https://github.com/google/perfetto>.
#[derive(Clone, PartialEq, Message)]
struct TraceFile {
    #[prost(message, repeated, tag = "1")]
    packet: Vec<Packet>,
}

#[derive(Clone, PartialEq, Message)]
struct Packet {
    #[prost(uint64, tag = "8")]
    timestamp: u64,
    #[prost(message, optional, tag = "11")]
    event: Option<Event>,
    #[prost(message, optional, tag = "12")]
    names: Option<NameList>,
}

#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(int32, tag = "9")]
    kind: i32,
    #[prost(uint64, tag = "10")]
    name: u64,
    #[prost(uint64, tag = "11")]
    track: u64,
    #[prost(fixed64, repeated, tag = "47")]
    arrows_begun: Vec<u64>,
    #[prost(fixed64, repeated, tag = "48")]
    arrows_ended: Vec<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct NameList {
    #[prost(message, repeated, tag = "2")]
    names: Vec<Name>,
}

#[derive(Clone, PartialEq, Message)]
struct Name {
    #[prost(uint64, tag = "1")]
    number: u64,
    #[prost(string, tag = "2")]
    text: String,
}

const SLICE_BEGIN: i32 = 1;
const SLICE_END: i32 = 2;

/// The calls of a name.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
struct CallSums {
    count: u64,
    wall_ns: u64,
    /// Of `wall_ns`: what the slices within the calls have.
    off_ns: u64,
}

/// What the slices of a trace add up to, by the names of calls, and the marks. Slices that do not
/// nest fail.
fn read(path: &Path) -> (BTreeMap<String, CallSums>, Vec<String>) {
    let bytes = fs::read(path).expect("the trace");
    let trace = TraceFile::decode(&*bytes).expect("a trace");
    let mut names = BTreeMap::new();
    let (mut sums, mut marks) = (BTreeMap::<String, CallSums>::new(), Vec::new());
    let mut open: BTreeMap<u64, Vec<(String, u64)>> = BTreeMap::new();
    let mut off_ns: BTreeMap<u64, u64> = BTreeMap::new();
    for packet in trace.packet {
        for name in packet.names.into_iter().flat_map(|names| names.names) {
            names.insert(name.number, name.text);
        }
        let Some(event) = packet.event else { continue };
        let slices = open.entry(event.track).or_default();
        match event.kind {
            SLICE_BEGIN => slices.push((names[&event.name].clone(), packet.timestamp)),
            SLICE_END => {
                let (name, began_ns) = slices.pop().expect("a slice is open");
                let ns = packet.timestamp.checked_sub(began_ns).expect("it ends after it begins");
                if let Some((_, outer_ns)) = slices.first() {
                    assert!(began_ns >= *outer_ns, "{name} begins before its call");
                    *off_ns.entry(event.track).or_default() += ns;
                } else {
                    let sum = sums.entry(name).or_default();
                    sum.count += 1;
                    sum.wall_ns += ns;
                    sum.off_ns += off_ns.remove(&event.track).unwrap_or_default();
                }
            }
            _ => marks.push(names[&event.name].clone()),
        }
    }
    (sums, marks)
}

/// The report and the trace of a workload.
fn trace_of(options: &str, arguments: &str) -> (Report, BTreeMap<String, CallSums>, Vec<String>) {
    let folder = folder();
    let path = folder.path().join("t.pftrace");
    let options = format!("--trace {} {options}", path.display());
    let finished = Job::run(&options, workload(arguments)).finish().success();
    let (sums, marks) = read(&path);
    (finished.report().complete(), sums, marks)
}

/// What the report says about the calls that have ended.
fn expected(report: &Report) -> BTreeMap<String, CallSums> {
    let sums = |call: &Call| CallSums {
        count: call.count,
        wall_ns: call.wall_ns,
        off_ns: call.blocked_ns + call.runqueue_ns,
    };
    let ended = report.calls.iter().filter(|call| call.count > 0);
    ended.map(|call| (call.name.clone(), sums(call))).collect()
}

#[test]
fn slices_are_the_calls_and_waits_of_the_report() {
    for arguments in ["calls 1000 --threads 3", "pipe-block 2 5"] {
        let (report, sums, marks) = trace_of("", arguments);
        assert_eq!(sums, expected(&report), "{arguments}");
        assert_eq!(marks, [""; 0]);
        let calls: u64 = sums.values().map(|sum| sum.count).sum();
        let note = format!("has a trace of {calls} calls");
        let has_note = |text: &String| text.replace(',', "").ends_with(&note);
        assert!(report.notes.iter().any(has_note), "{:?}", report.notes);
    }
}

/// The tracks in which arrows begin or end, by the numbers of the arrows.
type Ends = BTreeMap<u64, u64>;

/// Where the arrows of a trace begin and end.
fn arrows(path: &Path) -> (Ends, Ends) {
    let bytes = fs::read(path).expect("the trace");
    let trace = TraceFile::decode(&*bytes).expect("a trace");
    let (mut begins, mut ends) = (Ends::new(), Ends::new());
    for packet in trace.packet {
        let Some(event) = packet.event else { continue };
        for (ids, known) in [(&event.arrows_begun, &mut begins), (&event.arrows_ended, &mut ends)] {
            for id in ids {
                assert_eq!(known.insert(*id, event.track), None, "arrow {id}");
            }
        }
    }
    (begins, ends)
}

/// A child writes to the pipe that its parent reads.
#[test]
fn arrows_are_the_wakers_of_the_report() {
    let folder = folder();
    let path = folder.path().join("t.pftrace");
    let options = format!("--why --trace {}", path.display());
    let finished = Job::run(&options, workload("pipe-block 2 20")).finish().success();
    let report = finished.report().complete();
    let sites = report.calls.iter().flat_map(|call| &call.blocked_in);
    let wakers = sites.flat_map(|site| &site.woken_by);
    let by_threads: u64 = wakers.filter(|by| by.party.kind == "thread").map(|by| by.count).sum();
    let (begins, ends) = arrows(&path);
    assert!(by_threads >= 10, "{:?}", report.calls);
    assert_eq!(begins.len() as u64, by_threads);
    assert!(begins.keys().eq(ends.keys()), "{begins:?}, {ends:?}");
    assert!(begins.iter().all(|(id, from)| *from != ends[id]), "{begins:?}, {ends:?}");
}

#[test]
fn files_that_cannot_be_written_leave_the_report_whole() {
    // The status of a command is its own.
    let run = Job::run("--trace /dev/full", workload("calls 1000")).finish().success();
    let run = run.says("a file could not be written");
    assert!(run.report().count("getppid") >= 1000);
    let subject = Subject::new();
    let options = format!("-p {} --for 50ms --trace /dev/full", subject.pid());
    let lens = Job::lens(&options).finish().exits_with(125);
    subject.end();
    for finished in [run, lens] {
        let notes = finished.report().notes;
        let lost = |note: &String| note.starts_with("cannot write the trace to /dev/full: ");
        assert!(notes.iter().any(lost), "{notes:?}");
    }
}

#[test]
fn trace_of_a_watch_begins_with_the_watch() {
    let folder = folder();
    let path = folder.path().join("t.pftrace");
    let program = Job::of(workload("sleep 1 100000")).start();
    let pid = program.pid();
    let options = format!("-p {pid} --for 1s --trace {} --trace-for 100ms", path.display());
    Job::lens(&options).finish().success();
    kill(pid as i32, libc::SIGKILL);
    program.finish();
    let (sums, _) = read(&path);
    // Each sleep takes more than a millisecond.
    let traced = sums.get("nanosleep").map_or(0, |sum| sum.count);
    assert!((1..100).contains(&traced), "{sums:?}");
}

#[test]
fn traces_are_limited() {
    let (report, sums, marks) = trace_of("--trace-for 1ms", "sleep 10 5");
    // Each takes longer.
    assert!(report.count("nanosleep") == 5 && !sums.contains_key("nanosleep"), "{sums:?}");
    assert_eq!(marks, ["the trace has reached its duration"]);
    let (report, sums, marks) = trace_of("--trace-size 1", "calls 50000");
    let traced = sums["getppid"].count;
    assert!(traced < report.count("getppid"), "{traced}");
    assert_eq!(marks, ["the trace has reached its size"]);
}

/// Calls of threads that another session has are in the report alone.
#[test]
fn calls_of_an_inner_session_are_a_loss() {
    let folder = folder();
    let inner = [tollgate().into(), "run".into(), "--no-toll".into(), "--".into()];
    for option in ["--trace", "--slower-than 1s", "--flame-blocked"] {
        let path = folder.path().join("file");
        let option = match option.contains(' ') {
            true => option.to_owned(),
            false => format!("{option} {}", path.display()),
        };
        let command = inner.iter().cloned().chain(workload("calls 1000")).collect();
        let report = Job::run(&option, command).finish().success().report();
        let only = "calls only in the tables (another session watched their threads)";
        let lost = report.losses.get(only);
        assert!(lost.is_some_and(|lost| (1000..1200).contains(lost)), "{option}: {lost:?}");
        assert_eq!(report.complete_but(&[only]).count("getppid"), 1000);
    }
}
