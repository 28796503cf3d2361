//! The second source: the counts of strace for the same program.

use std::collections::BTreeMap;
use std::ffi::OsString;

use super::report::{CallKey, X86_64};
use super::{Job, words};

pub struct StraceCounts {
    /// Returned calls, and how many of them failed.
    pub counts: BTreeMap<CallKey, (u64, u64)>,
    /// Failed calls by name and errno.
    pub errors: BTreeMap<(String, String), u64>,
}

/// Runs the command below `strace -C -f`, which prints the table of `-c` and also each call, for
/// its error.
#[track_caller]
pub fn strace(command: &[OsString]) -> StraceCounts {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&folders).any(|folder| folder.join("strace").exists());
    assert!(found, "strace is missing: `apt-get install strace`");
    let mut job = Job::of(words("strace -C -f -o"));
    let file = job.path("trace");
    job.command.arg(&file).args(command);
    let finished = job.finish();
    let bytes = std::fs::read(&file).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let trace = StraceCounts { counts: table(&text), errors: errors(&text) };
    assert!(!trace.counts.is_empty(), "strace shows no table; its stderr: {}", finished.err);
    trace
}

fn table(text: &str) -> BTreeMap<CallKey, (u64, u64)> {
    let mut counts = BTreeMap::new();
    let mut abi = X86_64;
    for line in text.lines() {
        if line.starts_with("System call usage summary for ") {
            abi = match line {
                line if line.contains("32 bit mode") => "i386",
                line if line.contains("x32 mode") => "x32",
                _ => X86_64,
            };
        }
        // % time, seconds, usecs/call, calls, errors (or nothing), name
        let fields: Vec<_> = line.split_whitespace().collect();
        let (calls, errors, name) = match fields[..] {
            [_, _, _, calls, name] => (calls, "0", name),
            [_, _, _, calls, errors, name] => (calls, errors, name),
            _ => continue,
        };
        let is_row = fields[..3].iter().all(|field| field.parse::<f64>().is_ok());
        if let (true, Ok(calls), Ok(errors)) =
            (is_row && name != "total", calls.parse(), errors.parse())
        {
            counts.insert((name.to_owned(), abi.to_owned()), (calls, errors));
        }
    }
    counts
}

/// Parses lines such as `12 openat(…) = -1 ENOENT (…)` and `12 <... wait4 resumed>…) = ?
/// ERESTARTSYS (…)`.
fn errors(text: &str) -> BTreeMap<(String, String), u64> {
    let mut errors = BTreeMap::new();
    for line in text.lines() {
        let Some((call, result)) = line.rsplit_once(" = ") else {
            continue;
        };
        let errno = match result.split_whitespace().collect::<Vec<_>>()[..] {
            ["-1" | "?", errno, ..] => errno,
            _ => continue,
        };
        let Some((_, call)) = call.split_once(' ') else {
            continue;
        };
        let call = call.trim_start();
        let name = match call.strip_prefix("<... ") {
            Some(resumed) => resumed.split(' ').next(),
            None => call.split('(').next(),
        };
        let key = (name.unwrap_or_default().to_owned(), errno.to_owned());
        *errors.entry(key).or_default() += 1;
    }
    errors
}
