//! Programs of the system below Tollgate: their data, users and exit statuses do not change.

use std::fs::{self, File};
use std::process::Stdio;

use crate::harness::{Job, eventually, words};

#[test]
fn stdin_and_stdout_are_untouched() {
    let mut job = Job::run("", words("cat"));
    // All byte values, and more bytes than a pipe or a buffer holds.
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| (n ^ (n >> 9)) as u8).collect();
    let input = job.path("in");
    fs::write(&input, &bytes).expect("a file can be written");
    job.command.stdin(File::open(&input).expect("it is there"));
    let ran = job.finish().success();
    assert!(ran.out == bytes, "{} bytes came of {}", ran.out.len(), bytes.len());
    assert_eq!(ran.err, "");
    ran.report().complete();
}

#[test]
fn tollgate_does_not_read_stdin() {
    let mut job = Job::of(["sh", "-c"].map(Into::into).into()).with_row_lock_shared();
    let input = job.path("in");
    fs::write(&input, "first\nsecond\nthird\n").expect("a file can be written");
    job.command.stdin(File::open(&input).expect("it is there"));
    let script = format!(
        "read a; {} run -o /dev/null -- sh -c 'read b; echo $b' ; read c; echo $a $c",
        crate::harness::tollgate().display()
    );
    job.command.arg(script);
    assert_eq!(job.finish().success().text(), "second\nfirst third\n");
}

#[test]
fn stderr_is_shared_with_the_command() {
    let mut job = Job::run("", words("sh -c"));
    job.command.arg("echo out; echo err >&2; exit 4");
    let ran = job.finish().exits_with(4);
    assert_eq!((ran.text().as_str(), ran.err.as_str()), ("out\n", "err\n"));
}

#[test]
fn closed_descriptor_stays_closed() {
    let echo = |mut job: Job| {
        job.command.arg("heard");
        let closed = job.before_exec(|| {
            // SAFETY: async-signal-safe.
            unsafe { libc::close(1) };
            Ok(())
        });
        closed.finish().exits_with(1).says("Bad file descriptor")
    };
    echo(Job::of(words("/bin/echo")));
    echo(Job::run("", words("/bin/echo"))).report().complete();
}

#[test]
fn pids_are_those_of_the_pid_namespace() {
    // In a chroot, "/" is not a mount point; /proc is one, and is made private.
    let unshare = words("unshare --pid --fork --mount-proc --propagation unchanged");
    let mut job = Job::of(unshare).with_row_lock_shared();
    let report = job.path("report");
    job.command.arg(crate::harness::tollgate()).args(["run", "--json", "--per", "process", "-o"]);
    job.command.arg(report).args(["--", "sh", "-c", "echo $$; :"]);
    let ran = job.finish().success();
    let rows: Vec<_> =
        ran.report().complete().groups.iter().map(|row| row.pid.to_string()).collect();
    assert_eq!(rows, [ran.text().trim()]);
}

#[test]
fn runs_as_another_user() {
    for (user, id, groups) in [
        ("nobody", "65534", "65534"),
        ("65534", "65534", "65534"),
        ("65534:65533", "65534", "65533"),
    ] {
        let mut job = Job::run(&format!("-u {user}"), words("sh -c"));
        job.command.arg("id -u; id -G");
        let ran = job.finish().success();
        assert_eq!(ran.text(), format!("{id}\n{groups}\n"), "{user}");
        // The calls by which Tollgate changed the user do not count as the command's.
        assert_eq!(ran.report().complete().count("setresuid"), 0);
    }
}

#[test]
fn command_handles_sigint() {
    let mut job = Job::run("", words("sh -c"));
    // The signal comes twice: to the process group, and from Tollgate.
    let handler = "trap '' INT; echo caught; exit 7";
    let script = format!("trap \"{handler}\" INT; echo ready; while :; do sleep 0.05; done");
    job.command.arg(script);
    let running = job.start();
    eventually("it handles interrupts", || running.read("out") == "ready\n");
    running.signal_group(libc::SIGINT);
    let ran = running.finish().exits_with(7);
    assert_eq!(ran.text(), "ready\ncaught\n");
    assert_eq!(ran.report().exit, Some(7));
}

#[test]
fn works_in_a_pipeline() {
    let mut job = Job::of(["bash", "-c"].map(Into::into).into()).with_row_lock_shared();
    job.command.stdin(Stdio::null()).arg(format!(
        "seq 100000 | {} run -o /dev/null -- tac | head -1; echo ${{PIPESTATUS[1]}}",
        crate::harness::tollgate().display()
    ));
    // The command gets SIGPIPE as it would without Tollgate.
    let text = job.finish().success().text();
    assert!(text == "100000\n141\n" || text == "100000\n0\n", "{text}");
}

#[test]
fn environment_and_cwd_are_inherited() {
    let mut job = Job::run("", words("sh -c"));
    job.command.arg("echo $TOLLGATE_LIVE; pwd").env("TOLLGATE_LIVE", "a b  c");
    job.command.current_dir("/usr/lib");
    assert_eq!(job.finish().success().text(), "a b  c\n/usr/lib\n".replace("  ", " "));
}
