//! `--by file`: the calls and bytes of each file are those that `strace -y` shows.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;

use crate::harness::job::folder;
use crate::harness::report::FileCalls;
use crate::harness::{Job, words};

/// Those of these calls that strace shows with a path: their numbers, by path and call, and the
/// bytes of each path.
type Counts = (BTreeMap<(String, String), u64>, BTreeMap<String, u64>);

const CALLS: [&str; 4] = ["read", "pread64", "write", "getdents64"];

/// Parses lines such as `12 read(3</etc/hosts>, …) = 120`.
fn strace(command: &[OsString]) -> Counts {
    let mut job = Job::of(words("strace -f -y -o"));
    let file = job.path("trace");
    job.command.arg(&file).args(command);
    let _folder = job.finish().success();
    let text = fs::read(&file).expect("strace has written it");
    let (mut counts, mut bytes) = Counts::default();
    for line in String::from_utf8_lossy(&text).lines() {
        let Some((call, result)) = line.rsplit_once(" = ") else { continue };
        let call = call.split_once(' ').map_or("", |(_, call)| call.trim_start());
        let Some((name, arguments)) = call.split_once('(') else { continue };
        let path = arguments.split_once('<').and_then(|(_, rest)| rest.split_once('>'));
        let (Some((path, _)), true) = (path, CALLS.contains(&name)) else { continue };
        *counts.entry((path.to_owned(), name.to_owned())).or_default() += 1;
        if name != "getdents64" {
            let result: u64 = result.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0);
            *bytes.entry(path.to_owned()).or_default() += result;
        }
    }
    (counts, bytes)
}

#[test]
fn calls_and_bytes_agree_with_strace() {
    let folder = folder();
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).expect("the folder is ours");
    for number in 0..50 {
        let content = vec![7; 1000 * number];
        fs::write(tree.join(format!("file-{number}")), content).expect("the folder is ours");
    }
    let archive = folder.path().join("archive");
    let command: Vec<OsString> =
        vec!["tar".into(), "cf".into(), archive.into(), "-C".into(), tree.into(), ".".into()];
    let (counts, bytes) = strace(&command);
    assert!(counts.len() > 50, "{counts:?}");
    let report = Job::run("--by file", command).finish().success().report().complete();
    let file = |path: &str| {
        let found = report.files.iter().find(|file: &&FileCalls| file.name == path);
        found.unwrap_or_else(|| panic!("no {path} in {:?}", report.files))
    };
    for ((path, call), count) in counts {
        let on_file = file(&path).by_call.iter().find(|on| on.name == call);
        assert_eq!(on_file.map(|on| on.count), Some(count), "{call} of {path}");
    }
    for (path, bytes) in bytes {
        let file = file(&path);
        assert_eq!(file.read_bytes + file.written_bytes, bytes, "{path}");
    }
}
