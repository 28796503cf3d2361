//! Reads traces of system calls from files: each process's calls in order.
//!
//! A file has one of three forms, distinguished by its first line, and may be compressed with gzip:
//! - `PID NUMBER` lines, like those of the University of New Mexico;
//! - the output of `strace -f`, as on a terminal or in a file;
//! - names or numbers of calls, separated by blanks and line ends: one trace per file, as in
//!   ADFA-LD.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, stdin};
use std::path::{Path, PathBuf};

use ::guard::CallNumber;
use anyhow::{Context, Result, bail};
use flate2::bufread::MultiGzDecoder;

use crate::format::{printable, shown_path};
use crate::limited_input::LimitedInput;

/// The calls of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallTrace {
    pub source: String,
    /// `None` in files of one trace, and where strace had only one process.
    pub pid: Option<u64>,
    pub calls: Vec<CallNumber>,
    /// Indices in `calls` at which a new program starts.
    pub execs: Vec<usize>,
}

/// Numbers of calls by name; the same in all files of a run.
#[derive(Debug, Default)]
pub struct Names {
    numbers: BTreeMap<String, CallNumber>,
}

impl Names {
    fn number(&mut self, name: &str) -> CallNumber {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.numbers.len() as CallNumber;
        self.numbers.insert(name.to_owned(), number);
        number
    }
}

/// All traces in a file, or in a folder and the folders below it, in the order of the names.
pub fn read(path: &Path, names: &mut Names) -> Result<Vec<CallTrace>> {
    let mut traces = Vec::new();
    let files = files(path)?;
    if files.is_empty() {
        bail!("{} has no traces", shown_path(path));
    }
    for file in files {
        let context = || format!("cannot read {}", shown_path(&file));
        let text = text(&file).with_context(context)?;
        traces.extend(parse(&text, &file.display().to_string(), names)?);
    }
    Ok(traces)
}

fn files(path: &Path) -> Result<Vec<PathBuf>> {
    let context = || format!("cannot read {}", shown_path(path));
    if is_stdin(path) || !fs::metadata(path).with_context(context)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut entries: Vec<_> =
        fs::read_dir(path).and_then(Iterator::collect::<Result<_, _>>).with_context(context)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    let mut all = Vec::new();
    for entry in entries {
        // Skips pipes, which would block, and links, which could form a cycle.
        let kind = entry.file_type().with_context(context)?;
        if kind.is_dir() || entry.path().is_file() {
            all.extend(files(&entry.path())?);
        }
    }
    Ok(all)
}

fn is_stdin(path: &Path) -> bool {
    path.to_str() == Some("-")
}

/// Reads a file as text. Traces are ASCII; other bytes in a string argument do not matter.
fn text(path: &Path) -> std::io::Result<String> {
    const GZIP: [u8; 2] = [0x1f, 0x8b]; // RFC 1952, 2.3.1
    let file: Box<dyn Read> =
        if is_stdin(path) { Box::new(stdin()) } else { Box::new(File::open(path)?) };
    let mut reader = BufReader::new(LimitedInput::new(file));
    let is_packed = reader.fill_buf()?.starts_with(&GZIP);
    let mut bytes = Vec::new();
    match is_packed {
        true => LimitedInput::new(MultiGzDecoder::new(reader)).read_to_end(&mut bytes)?,
        false => reader.read_to_end(&mut bytes)?,
    };
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn parse(text: &str, source: &str, names: &mut Names) -> Result<Vec<CallTrace>> {
    let shown = printable(source);
    let Some(first) = text.lines().find(|line| !line.trim().is_empty()) else {
        bail!("{shown} has no calls");
    };
    let mut traces = Traces { source, all: BTreeMap::new() };
    if pid_and_number(first).is_some() {
        for (line, text) in lines(text) {
            let Some((pid, call)) = pid_and_number(text) else {
                bail!(
                    "{shown}:{line}: expected PID and NUMBER, as on the lines before, found \
                    {text:?}"
                );
            };
            traces.push(Some(pid), call, names);
        }
    } else if first.contains('(') || first.starts_with("strace:") {
        for (_, text) in lines(text) {
            if let Some((pid, call)) = strace_call(text) {
                traces.push(pid, call, names);
            }
        }
    } else {
        for (line, text) in lines(text) {
            for word in text.split_whitespace() {
                if !is_call(word) {
                    bail!("{shown}:{line}: {word:?} is neither the name nor the number of a call");
                }
                traces.push(None, word, names);
            }
        }
    }
    if traces.all.is_empty() {
        bail!("{shown} has no calls");
    }
    Ok(traces.all.into_values().collect())
}

fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(text.lines().map(str::trim)).filter(|(_, line)| !line.is_empty())
}

struct Traces<'a> {
    source: &'a str,
    all: BTreeMap<Option<u64>, CallTrace>,
}

impl Traces<'_> {
    fn push(&mut self, pid: Option<u64>, call: &str, names: &mut Names) {
        let new = || CallTrace {
            source: self.source.to_owned(),
            pid,
            calls: Vec::new(),
            execs: Vec::new(),
        };
        let trace = self.all.entry(pid).or_insert_with(new);
        trace.calls.push(names.number(call));
        if matches!(call, "execve" | "execveat") {
            trace.execs.push(trace.calls.len());
        }
    }
}

fn is_call(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn pid_and_number(line: &str) -> Option<(u64, &str)> {
    let mut words = line.split_whitespace();
    let (pid, number) = (words.next()?.parse().ok()?, words.next()?);
    (words.next().is_none() && number.bytes().all(|byte| byte.is_ascii_digit()))
        .then_some((pid, number))
}

/// The process, if strace names it, and the call that a line starts. `None` for signals, exits, and
/// the second part of a call that strace prints in two parts.
fn strace_call(line: &str) -> Option<(Option<u64>, &str)> {
    let (pid, mut rest) = match line.strip_prefix("[pid ") {
        Some(rest) => {
            let (pid, rest) = rest.split_once(']')?;
            (Some(pid.trim().parse().ok()?), rest)
        }
        None => match line.split_once(' ') {
            Some((pid, rest)) if !pid.contains('.') && pid.parse::<u64>().is_ok() => {
                (pid.parse().ok(), rest)
            }
            _ => (None, line),
        },
    };
    // Skips the times of -t, -tt, -ttt or -r.
    while let Some((word, after)) = rest.trim_start().split_once(' ') {
        if word.is_empty()
            || !word.bytes().all(|byte| byte.is_ascii_digit() || b":.".contains(&byte))
        {
            break;
        }
        rest = after;
    }
    let (name, _) = rest.trim_start().split_once('(')?;
    is_call(name).then_some((pid, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traces(text: &str) -> Vec<CallTrace> {
        parse(text, "file", &mut Names::default()).expect("it has calls")
    }

    #[test]
    fn processes_interleave() {
        let all = traces("7 90\n8 90\n7 125\n7 90\n");
        assert_eq!(all.len(), 2);
        assert_eq!((all[0].pid, all[0].calls.as_slice()), (Some(7), [0, 1, 0].as_slice()));
        assert_eq!((all[1].pid, all[1].calls.as_slice()), (Some(8), [0].as_slice()));
    }

    #[test]
    fn trace_files_by_name_or_number() {
        assert_eq!(traces("open read read\nclose").pop().expect("one").calls, [0, 1, 1, 2]);
        assert_eq!(traces("6 6 63 6 42 120").pop().expect("one").calls, [0, 0, 1, 0, 2, 3]);
    }

    #[test]
    fn strace_in_all_its_forms() {
        let all = traces(
            "execve(\"/bin/sh\", [\"sh\"], 0x7ffd /* 20 vars */) = 0\n\
             brk(NULL) = 0x55\n\
             strace: Process 12 attached\n\
             [pid    12] 10:00:00.123456 read(3,  <unfinished ...>\n\
             [pid    11] close(3) = 0\n\
             [pid    12] <... read resumed>\"\", 1) = 0\n\
             --- SIGCHLD {si_signo=SIGCHLD} ---\n\
             +++ exited with 0 +++\n",
        );
        let calls: Vec<_> = all.iter().map(|trace| (trace.pid, trace.calls.len())).collect();
        assert_eq!(calls, [(None, 2), (Some(11), 1), (Some(12), 1)]);
        assert_eq!(all[0].execs, [1]);
        let of_file = traces(
            "100 openat(AT_FDCWD, \"x\", O_RDONLY) = 3\n101 1690000000.123 write(1, \"a\", 1) = \
            1\n",
        );
        assert_eq!(
            of_file.iter().map(|trace| trace.pid).collect::<Vec<_>>(),
            [Some(100), Some(101)]
        );
    }

    #[test]
    fn a_folders_files_are_read_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let read = || read(folder.path(), &mut Names::default());
        std::os::unix::fs::symlink(".", folder.path().join("round")).expect("linked");
        let made = std::process::Command::new("mkfifo").arg(folder.path().join("pipe")).status();
        assert!(made.expect("mkfifo runs").success());
        assert!(read().expect_err("nothing to read").to_string().ends_with(" has no traces"));
        fs::write(folder.path().join("trace"), "open read").expect("written");
        assert_eq!(read().expect("a trace").len(), 1);
    }

    #[test]
    fn errors_have_line_numbers() {
        let error =
            |text| parse(text, "file", &mut Names::default()).expect_err("it is wrong").to_string();
        assert_eq!(
            error("7 90\n7 x\n"),
            "file:2: expected PID and NUMBER, as on the lines before, found \"7 x\""
        );
        assert_eq!(
            error("open\nre-ad\n"),
            "file:2: \"re-ad\" is neither the name nor the number of a call"
        );
        assert_eq!(error("\n\n"), "file has no calls");
        assert_eq!(error("--- SIGCHLD (x) ---"), "file has no calls");
    }
}
