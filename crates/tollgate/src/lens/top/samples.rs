//! A sample for the tests.

use std::collections::BTreeMap;
use std::time::Duration;

use kernel::lens::call_stats::{CallStats, RowName, RowStats, SiteStats};
use kernel::lens::files::{FileId, FileStats};
use kernel::lens::interval::SITE_OF_SLEEPERS;
use kernel::wire;
use stats::histogram;

use super::live_lens::{Sample, SampleRow};

const READ: u32 = 0;
const WRITE: u32 = 1;
const EPOLL_WAIT: u32 = 232;

/// Calls of this length, of which some fail, and which sleep for this time.
fn calls(count: u64, each_ns: u64, blocked_ns: u64, errors: u64) -> CallStats {
    let mut stats = CallStats {
        count,
        wall_ns: count * each_ns,
        blocked_ns,
        max_ns: each_ns,
        ..CallStats::default()
    };
    stats.histogram[histogram::bucket(each_ns)] = count;
    stats.errors[11] = errors;
    stats
}

fn row(program: &str, tgid: u32, pid: u32, calls: &[(u32, CallStats)]) -> SampleRow {
    let mut stats = RowStats::default();
    stats.calls.extend(calls.iter().cloned());
    for (slot, call) in calls.iter().filter(|(_, call)| call.blocked_ns > 0) {
        let at = if *slot == EPOLL_WAIT { SITE_OF_SLEEPERS } else { wire::SITE_UNKNOWN.into() };
        let site = SiteStats { blocked_ns: call.blocked_ns / 2, sleeps: call.count / 2 };
        stats.sites.insert((*slot, at), site);
    }
    let command = if pid == tgid { program.to_owned() } else { format!("worker {pid}") };
    SampleRow {
        program: program.into(),
        name: RowName { tgid, pid, started_ns: 1, command },
        stats,
    }
}

/// A file at this path, and the only call that was made on it: its index, the number, and the time.
fn file(path: &[&str], call: (u32, u64, u64), bytes: [u64; 2]) -> BTreeMap<FileId, FileStats> {
    let mut stats = FileStats {
        calls: call.1,
        wall_ns: call.2,
        read_bytes: bytes[0],
        written_bytes: bytes[1],
        by_call: vec![call],
        ..FileStats::default()
    };
    (stats.path.mode, stats.path.complete) = (libc::S_IFREG as u16, 1);
    stats.path.parts = path.len() as u16;
    for (part, text) in stats.path.part.iter_mut().zip(path.iter().rev()) {
        for (to, byte) in part.iter_mut().zip(text.bytes()) {
            *to = byte as _;
        }
    }
    BTreeMap::from([(FileId { kind: wire::FILE_AT_PATH, ..FileId::default() }, stats)])
}

/// What two web servers and a cache have done within two seconds.
pub fn sample() -> Sample {
    let waits = |ns: u64| (EPOLL_WAIT, calls(4, ns / 4, ns, 0));
    let mut reader =
        row("nginx", 100, 101, &[(READ, calls(20_000, 5_000, 0, 2_000)), waits(1_500_000_000)]);
    let read = (READ, 20_000, 100_000_000);
    reader.stats.files = file(&["srv", "index.html"], read, [4096, 0]);
    let mut writer = row("nginx", 110, 110, &[(WRITE, calls(100, 900_000, 60_000_000, 0))]);
    let written = (WRITE, 100, 90_000_000);
    writer.stats.files = file(&["var", "log", "access.log"], written, [0, 1024]);
    Sample {
        time: Duration::from_secs(2),
        rows: vec![
            row("nginx", 100, 100, &[waits(1_990_000_000)]),
            reader,
            writer,
            row("cache\u{1b}[2J", 200, 200, &[(READ, calls(1_000_000, 700, 0, 0))]),
        ],
        threads: 5,
        ..Sample::default()
    }
}
