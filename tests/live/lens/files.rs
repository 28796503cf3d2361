//! `--by file`: calls, bytes and times of known files, pipes and sockets.

use std::path::Path;

use crate::harness::report::{FileCalls, Report};
use crate::harness::{Job, workload};

fn file<'a>(files: &'a [FileCalls], name: &str) -> &'a FileCalls {
    let found: Vec<_> = files.iter().filter(|file| file.name == name).collect();
    assert_eq!(found.len(), 1, "{name} in {files:#?}");
    found[0]
}

/// The number of these calls on a file.
fn count(file: &FileCalls, call: &str) -> u64 {
    file.by_call.iter().filter(|on| on.name == call).map(|on| on.count).sum()
}

/// What holds for all files: the parts agree with the whole.
#[track_caller]
fn check(report: &Report) {
    let sum = |part: fn(&FileCalls) -> u64| report.files.iter().map(part).sum::<u64>();
    let (calls, wall) = (
        sum(|file| file.calls) - sum(|file| file.shared_calls),
        sum(|file| file.wall_ns) - sum(|file| file.shared_wall_ns),
    );
    let all = report.calls.iter();
    assert!(calls <= all.clone().map(|call| call.count).sum::<u64>());
    assert!(wall <= all.map(|call| call.wall_ns).sum::<u64>());
    for file in &report.files {
        assert!(file.blocked_ns <= file.wall_ns, "{file:?}");
        assert!(file.by_call.iter().map(|call| call.count).sum::<u64>() <= file.calls, "{file:?}");
        let wall: u64 = file.by_call.iter().map(|call| call.wall_ns).sum();
        assert!(wall <= file.wall_ns, "{file:?}");
    }
    // All calls of these names have the descriptor of an open file.
    for name in ["read", "write", "pread64", "fstat", "close"] {
        let Some(call) = report.find(name, "x86-64") else { continue };
        let on_files: u64 = report.files.iter().map(|file| count(file, name)).sum();
        assert_eq!(on_files, call.count, "{name}");
    }
}

#[test]
fn calls_and_bytes_are_those_of_the_program() {
    let mut job = Job::run("--by file", workload("use-files"));
    let folder = job.path("").canonicalize().expect("the job's folder exists");
    job.command.arg(&folder);
    let finished = job.finish().success();
    let ports: serde_json::Value = serde_json::from_slice(&finished.out).expect("the ports");
    let report = finished.report().complete();
    check(&report);
    let at = |name: &str| file(&report.files, &folder.join(name).display().to_string()).clone();

    // The second name of a file is no other file, and its calls by two descriptors count for both.
    let data = at("data");
    assert_eq!((data.kind.as_str(), data.files), ("file", 1));
    // Ten blocks, half a block, and two parts.
    assert_eq!(data.written_bytes, 10 * 1000 + 500 + 200);
    // The whole file, and what was sent and moved.
    assert_eq!(data.read_bytes, 10_200 + 5000 + 3000);
    assert_eq!(
        (count(&data, "write"), count(&data, "pwrite64"), count(&data, "writev")),
        (10, 1, 1)
    );
    // The last one fails.
    assert_eq!((count(&data, "read"), count(&data, "sendfile"), data.errors), (5, 1, 1));
    assert_eq!(count(&data, "openat"), 4);
    let copy = at("copy");
    assert_eq!((copy.written_bytes, copy.read_bytes, copy.shared_calls), (8000, 0, 1));
    let removed = at("removed");
    assert_eq!((removed.written_bytes, count(&removed, "close")), (77, 1));
    // The other one is about a path.
    assert_eq!((count(&removed, "newfstatat"), report.count("newfstatat")), (1, 2));

    let pipes: Vec<_> = report.files.iter().filter(|file| file.kind == "pipe").collect();
    let pipe = pipes.iter().find(|pipe| count(pipe, "splice") == 2).expect("the pipe");
    assert_eq!((pipe.read_bytes, pipe.written_bytes), (3000, 3000));

    let sockets: Vec<_> = report.files.iter().filter(|file| file.kind == "socket").collect();
    let messages = |call: &str| {
        let socket = sockets.iter().find(|socket| count(socket, call) == 1).expect("a socket");
        (socket.read_bytes, socket.written_bytes)
    };
    assert_eq!((messages("sendmmsg"), messages("recvmmsg")), ((0, 30), (30, 0)));
    // The listener and both ends of a Unix connection have one path.
    let unix = file(&report.files, &format!("unix {}", folder.join("socket").display()));
    assert_eq!((unix.files, unix.read_bytes, unix.written_bytes), (3, 5, 5));

    let [server, client] = ["server", "client"].map(|name| format!("127.0.0.1:{}", ports[name]));
    let listener = file(&report.files, &format!("tcp {server}"));
    assert_eq!(count(listener, "accept4"), 1);
    let sender = file(&report.files, &format!("tcp {client} - {server}"));
    assert_eq!((sender.written_bytes, count(sender, "connect")), (123, 1));
    let receiver = file(&report.files, &format!("tcp {server} - {client}"));
    assert_eq!((receiver.read_bytes, receiver.written_bytes), (123, 0));
    let epoll = file(&report.files, "anon_inode:[eventpoll]");
    assert_eq!((epoll.kind.as_str(), count(epoll, "epoll_wait")), ("anonymous", 1));
    // Inherited descriptors have files, too.
    let null = file(&report.files, &folder.join("out").display().to_string()).clone();
    assert!(null.written_bytes > 0 && null.kind == "file");
}

#[test]
fn blocked_time_is_that_of_the_file() {
    let mut job = Job::run("--by file --per process", workload("slow-open"));
    let folder = job.path("").canonicalize().expect("the job's folder exists");
    job.command.arg(&folder);
    let report = job.finish().success().report().complete();
    let groups = report.groups.iter().flat_map(|row| &row.files);
    let fifo: Vec<_> = groups.filter(|file| file.kind == "fifo").collect();
    let name = Path::new(&fifo[0].name);
    assert!(name.starts_with(&folder), "{name:?}");
    // 50 ms in the open, and 50 ms in the read.
    let blocked: u64 = fifo.iter().map(|file| file.blocked_ns).sum();
    assert!(blocked >= 90_000_000, "{fifo:?}");
    let all = file(&report.files, &fifo[0].name);
    assert_eq!(all.blocked_ns, blocked);
}

#[test]
fn files_are_not_counted_without_the_option() {
    let mut job = Job::run("", workload("use-files"));
    let folder = job.path("");
    job.command.arg(folder);
    assert!(job.finish().success().report().complete().files.is_empty());
}
