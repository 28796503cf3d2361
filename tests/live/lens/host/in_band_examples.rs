//! The examples of in-band records.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::Stdio;

use crate::harness::job::{folder, is_in_read};
use crate::harness::{Job, eventually, library, project};

/// The command line of an example, which is built in the folder.
fn example(name: &str, folder: &Path, arguments: &[&str]) -> Vec<OsString> {
    let source = project().join(format!("examples/in-band/{name}.c"));
    let program = library::build(&source, &folder.join(name));
    [program.into()].into_iter().chain(arguments.iter().map(OsString::from)).collect()
}

/// Arguments of the file server: two phases, which end after each cold file was requested twice.
/// What open() waits for does not depend on the disk.
fn brief(folder: &Path) -> [&str; 4] {
    ["-l", folder.to_str().expect("its name is ASCII"), "0.1", "1"]
}

/// Returns the numbers in a line of the file server's output.
fn numbers(output: &str, line: &str) -> Vec<f64> {
    let line = output.lines().find_map(|it| it.strip_prefix(line));
    let line = line.unwrap_or_else(|| panic!("no such line: {output}"));
    let is_other = |letter: char| !letter.is_ascii_digit() && letter != '.';
    line.split(is_other).filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn file_server_hands_just_what_blocks_to_helpers() {
    let folder = folder();
    let files = folder.path().join("files");
    fs::create_dir(&files).expect("it is ours");
    let command = example("file-server", folder.path(), &brief(&files));
    // It fails at the first wrong byte.
    let ran = Job::run("--in-band", command).finish().success();
    ran.report().complete();
    let output = ran.text();
    for phase in ["naive", "acting"] {
        assert!(numbers(&output, phase).iter().all(|number| *number > 0.0), "{output}");
        let blocked = output.split("blocked while ").find(|list| list.starts_with(phase));
        assert!(blocked.is_some_and(|list| list.contains("break_lease: ")), "{output}");
    }
    let handed = numbers(&output, "handed to helpers: ");
    let [cold, all_cold, hot, _, requests, all] = handed[..] else { panic!("{output}") };
    assert!(cold > 0.0 && cold <= all_cold && hot == 0.0, "{output}");
    assert!(requests >= cold && requests < all, "{output}");
    for figure in ["requests/s", "p50", "p99"] {
        let ratio = numbers(&output, &format!("acting / naive, {figure}: "));
        assert!(ratio.len() == 3 && ratio[0] > 0.0, "{output}");
    }
    assert!(ran.err.is_empty(), "{}", ran.err);
    assert_eq!(fs::read_dir(&files).expect("it is ours").count(), 0);
}

#[test]
fn file_server_works_without_records() {
    let folder = folder();
    let ran = Job::of(example("file-server", folder.path(), &brief(folder.path()))).finish();
    let ran = ran.success().says("no records, so all phases are alike");
    let output = ran.text();
    assert!(output.contains("blocked while acting: no call\n"), "{output}");
    assert_eq!(numbers(&output, "handed to helpers: ")[0], 0.0, "{output}");
}

#[test]
fn file_server_that_is_ended_leaves_no_files() {
    let folder = folder();
    let files = folder.path().join("files");
    fs::create_dir(&files).expect("it is ours");
    let count = || fs::read_dir(&files).expect("it is ours").count();
    let arguments = ["-l", files.to_str().expect("its name is ASCII"), "50"];
    let command = example("file-server", folder.path(), &arguments);
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let running = Job::of(command.clone()).start();
        eventually("its files", || count() > 0);
        running.signal(signal);
        assert_eq!(running.finish().signal, Some(signal));
        assert_eq!(count(), 0);
    }
}

#[test]
fn read_beyond_its_budget_aborts() {
    let folder = folder();
    let mut job = Job::run("--in-band", example("budget", folder.path(), &["0", "/dev/stdin"]));
    job.command.stdin(Stdio::piped());
    let mut running = job.before_exec(without_core).start();
    let pid = running.child_running("budget");
    eventually("its end", || {
        if is_in_read(pid) {
            // It may have just ended.
            let _ = running.input().write_all(b".");
        }
        running.is_over()
    });
    let ran = running.finish().exits_with(128 + libc::SIGABRT);
    ran.says("a read was blocked for ").says("pipe_read");
}

fn without_core() -> io::Result<()> {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid source.
    if unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const none) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
