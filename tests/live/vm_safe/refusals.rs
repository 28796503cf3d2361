//! What Tollgate cannot do, it refuses in a sentence, before the command has begun.

use std::ffi::{CString, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;

use crate::harness::job::{copy, folder};
use crate::harness::{Finished, Job, NOBODY, eventually, tollgate, words, workload, workloads};

const OWN_FAILURE: i32 = 125;

/// `tollgate run` without a report file, so that the sentence is all of stderr.
fn run(options: &str, command: Vec<OsString>) -> Job {
    let mut job = Job::typed("run");
    job.command.args(words(options)).arg("--").args(command);
    job
}

#[track_caller]
fn one_line(finished: &Finished) {
    assert_eq!(finished.err.lines().count(), 1, "{:?}", finished.err);
    assert!(finished.err.starts_with("tollgate: "), "{:?}", finished.err);
    assert!(finished.out.is_empty());
}

#[test]
fn no_such_command() {
    let ran = run("", words("no-such-command-anywhere")).finish();
    let ran = ran.exits_with(127).says("cannot run no-such-command-anywhere: no such command in PATH");
    one_line(&ran);
    let ran = run("", words("/no/such/file")).finish();
    let ran = ran.exits_with(127).says("cannot run /no/such/file: there is no such file");
    one_line(&ran);
    run("", vec!["".into()]).finish().exits_with(127);
}

#[test]
fn a_script_without_its_interpreter() {
    let folder = folder();
    let script = folder.path().join("script");
    fs::write(&script, "#!/no/such/interpreter\n").expect("a file can be written");
    copy(&script, &folder.path().join("executable"));
    let ran = run("", vec![folder.path().join("executable").into()]).finish();
    one_line(&ran.exits_with(127).says("its interpreter is missing"));
}

#[test]
fn not_executable() {
    let folder = folder();
    let file = folder.path().join("file");
    fs::write(&file, "no program").expect("a file can be written");
    for path in [file.as_path(), folder.path()] {
        let ran = run("", vec![path.into()]).finish();
        one_line(&ran.exits_with(126).says("Permission denied"));
    }
    // Found in PATH, and no program the kernel knows.
    copy(&file, &folder.path().join("odd"));
    let mut job = run("", words("odd"));
    job.command.env("PATH", folder.path());
    one_line(&job.finish().exits_with(126).says("cannot run odd: Exec format error"));
}

#[test]
fn bad_usage_is_not_the_commands_failure() {
    Job::typed("run --no-such-option -- true").finish().exits_with(OWN_FAILURE).says("--no-such-option");
    Job::typed("run").finish().exits_with(OWN_FAILURE).says("CMD");
    Job::typed("run --slower 10 -- true").finish().exits_with(OWN_FAILURE).says("has no unit");
    Job::typed("run --per colour -- true").finish().exits_with(OWN_FAILURE).says("colour");
    Job::typed("lens").finish().exits_with(OWN_FAILURE).says("say which processes to watch");
    Job::typed("lens --cgroup /").finish().exits_with(OWN_FAILURE).says("say --all");
    for option in ["--comm", "--unit"] {
        let mut job = Job::typed("lens");
        job.command.args([option, ""]);
        job.finish().exits_with(OWN_FAILURE).says(option);
    }
}

/// A command that leaves a trace if it begins.
fn tell_tale(job: &Job) -> Vec<OsString> {
    let mut command = workload("elf32");
    command.extend([job.path("began").into(), "1".into()]);
    command
}

#[test]
fn without_root() {
    // Where these were built, others may not look.
    let folder = folder();
    let (program, teller) = (folder.path().join("tollgate"), folder.path().join("workloads"));
    copy(&tollgate(), &program);
    copy(&workloads(), &teller);
    let mut job = Job::of(vec![program.into(), "run".into(), "--".into()]);
    fs::set_permissions(job.path(""), std::os::unix::fs::PermissionsExt::from_mode(0o777))
        .expect("it is ours");
    let mut command = tell_tale(&job);
    command[0] = teller.into();
    job.command.args(command).uid(NOBODY).gid(NOBODY);
    let ran = job.finish().exits_with(OWN_FAILURE).says("needs root");
    one_line(&ran);
    assert!(!ran.path("began").exists());
}

/// Where there is nothing but Tollgate and a place for its lock.
#[test]
fn another_tollgate_that_holds_the_lock_is_named_and_waited_for() {
    let root = folder();
    copy(&tollgate(), &root.path().join("tollgate"));
    fs::create_dir(root.path().join("run")).expect("a folder can be made");
    let lock = File::create(root.path().join("run/tollgate.lock")).expect("a file can be made");
    lock.lock().expect("nobody else knows it");
    let path = CString::new(root.path().as_os_str().as_bytes()).expect("no NUL");
    let waiting = Job::of(words("/tollgate lens --all --for 1ms")).before_exec(move || {
        // SAFETY: a NUL-terminated path.
        if unsafe { libc::chroot(path.as_ptr()) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    });
    let waiting = waiting.start();
    let said = "tollgate: waiting for another Tollgate, which holds /run/tollgate.lock (fuser names it)\n";
    eventually("its notice", || waiting.read("err") == said);
    drop(lock);
    waiting.finish().exits_with(OWN_FAILURE).says("/sys/kernel/btf/vmlinux is missing");
}

#[test]
fn a_doctor_without_root_says_that_it_cannot_run() {
    let folder = folder();
    let program = folder.path().join("tollgate");
    copy(&tollgate(), &program);
    let mut job = Job::of(vec![program.into(), "doctor".into()]);
    job.command.uid(NOBODY).gid(NOBODY);
    assert!(job.finish().exits_with(1).text().contains("cannot work here"));
}

#[test]
fn a_result_has_to_go_somewhere() {
    let close = || {
        // SAFETY: its own; nothing of it is used here.
        unsafe { libc::close(libc::STDOUT_FILENO) };
        Ok(())
    };
    let ran = Job::typed("cost list").before_exec(close).finish();
    one_line(&ran.exits_with(OWN_FAILURE).says("cannot write the result to stdout: it is closed"));
}

#[test]
fn tracepoints_are_roots_to_read() {
    let folder = folder();
    let (program, plugin) = (folder.path().join("tollgate"), folder.path().join("it.ec"));
    copy(&tollgate(), &program);
    fs::write(&plugin, "on tracepoint(\"sched:sched_switch\") {}").expect("a file can be written");
    let mut job = Job::of(vec![program.into(), "plugin".into(), "check".into(), plugin.into()]);
    job.command.uid(NOBODY).gid(NOBODY);
    job.finish().exits_with(OWN_FAILURE).says("can be read by root only");
}

#[test]
fn without_btf() {
    let mut job = run("", Vec::new());
    let command = tell_tale(&job);
    job.command.args(command);
    let ran = job.before_exec(hide_btf).finish();
    let ran = ran.exits_with(OWN_FAILURE).says("/sys/kernel/btf/vmlinux is missing");
    one_line(&ran);
    assert!(!ran.path("began").exists());
}

/// For this process and its children only.
fn hide_btf() -> io::Result<()> {
    let (none, target, tmpfs) = (c"none".as_ptr(), c"/sys/kernel/btf".as_ptr(), c"tmpfs".as_ptr());
    // Not "/", which is no mount point in a chroot.
    let around = c"/sys".as_ptr();
    let private = libc::MS_REC | libc::MS_PRIVATE;
    let no_data = std::ptr::null();
    // SAFETY: NUL-terminated strings; a null type and null data are allowed.
    let hidden = unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(none, around, std::ptr::null(), private, no_data) == 0
            && libc::mount(none, target, tmpfs, 0, no_data) == 0
    };
    if hidden { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[test]
fn output_that_cannot_be_written() {
    let mut job = run("-o /no/such/folder/report", Vec::new());
    let command = tell_tale(&job);
    job.command.args(command);
    let ran = job.finish().exits_with(OWN_FAILURE);
    let ran = ran.says("cannot write the result to /no/such/folder/report");
    one_line(&ran);
    assert!(!ran.path("began").exists());
    Job::typed("lens -o / --all --for 1ms")
        .finish()
        .exits_with(OWN_FAILURE)
        .says("cannot write the result to /");
}

#[test]
fn a_limit_of_open_files_that_is_too_low() {
    let low = || {
        let limit = libc::rlimit { rlim_cur: 20, rlim_max: 20 };
        // SAFETY: async-signal-safe, with a valid limit.
        match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    let ran = run("", workload("exit 0")).before_exec(low).finish();
    one_line(&ran.exits_with(OWN_FAILURE).says("more than 20 open files: raise the limit"));
}

#[test]
fn a_process_that_is_gone() {
    let gone = Job::of(workload("exit 0")).start();
    let pid = gone.pid();
    gone.finish().success();
    let ran = Job::typed(&format!("lens -p {pid}")).finish();
    one_line(&ran.exits_with(OWN_FAILURE).says(&format!("there is no process {pid}")));
}

#[test]
fn a_user_that_is_unknown() {
    let ran = run("-u no-such-user", workload("exit 0")).finish();
    one_line(&ran.exits_with(OWN_FAILURE).says("no user no-such-user"));
}

#[test]
fn a_refused_run_keeps_the_file_that_its_report_would_replace() {
    let folder = folder();
    let file = folder.path().join("report");
    let old = "old ".repeat(10_000);
    fs::write(&file, &old).expect("a file can be written");
    let run = |words: &str| {
        let mut job = Job::typed("run --json -o");
        job.command.arg(&file).arg("--").args(workload(words));
        job.finish()
    };
    let mut refused = Job::typed("run -o");
    refused.command.arg(&file).args(["--", "/no/such/command"]);
    refused.finish().exits_with(127);
    assert_eq!(fs::read_to_string(&file).expect("it is there"), old);
    run("calls 10").success();
    let report = fs::read_to_string(&file).expect("it is there");
    assert!(report.starts_with('{') && report.ends_with("}\n"), "{report}");
}
