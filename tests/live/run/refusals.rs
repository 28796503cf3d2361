//! Tollgate refuses what it cannot do with an error message, before the command starts.

use std::ffi::{CStr, CString, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;

use crate::harness::job::{copy, folder};
use crate::harness::{Finished, Job, NOBODY, eventually, tollgate, words, workload, workloads};

const OWN_FAILURE: i32 = 125;

/// A `tollgate run` without a report file, so that stderr contains only the message.
fn run(options: &str, command: Vec<OsString>) -> Job {
    let mut job = Job::from_command_line("run");
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
    let ran =
        ran.exits_with(127).says("cannot run no-such-command-anywhere: no such command in PATH");
    one_line(&ran);
    let ran = run("", words("/no/such/file")).finish();
    let ran = ran.exits_with(127).says("cannot run /no/such/file: there is no such file");
    one_line(&ran);
    run("", vec!["".into()]).finish().exits_with(127);
}

#[test]
fn script_without_interpreter() {
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
    // A file in PATH in a format that the kernel does not know.
    copy(&file, &folder.path().join("odd"));
    let mut job = run("", words("odd"));
    job.command.env("PATH", folder.path());
    one_line(&job.finish().exits_with(126).says("cannot run odd: Exec format error"));
}

#[test]
fn bad_usage_exits_125() {
    Job::from_command_line("run --no-such-option -- true")
        .finish()
        .exits_with(OWN_FAILURE)
        .says("--no-such-option");
    Job::from_command_line("run").finish().exits_with(OWN_FAILURE).says("CMD");
    Job::from_command_line("run --slower-than 10 -- true")
        .finish()
        .exits_with(OWN_FAILURE)
        .says("has no unit");
    Job::from_command_line("run --per colour -- true")
        .finish()
        .exits_with(OWN_FAILURE)
        .says("colour");
    Job::from_command_line("lens")
        .finish()
        .exits_with(OWN_FAILURE)
        .says("select the processes to watch");
    Job::from_command_line("lens --cgroup /").finish().exits_with(OWN_FAILURE).says("use --all");
    for option in ["--comm", "--unit"] {
        let mut job = Job::from_command_line("lens");
        job.command.args([option, ""]);
        job.finish().exits_with(OWN_FAILURE).says(option);
    }
}

/// A command that creates a file if it starts.
fn creates_file(job: &Job) -> Vec<OsString> {
    let mut command = workload("elf32");
    command.extend([job.path("began").into(), "1".into()]);
    command
}

#[test]
fn without_root() {
    // Other users may not be able to read the build folder.
    let folder = folder();
    let (program, workload_copy) =
        (folder.path().join("tollgate"), folder.path().join("workloads"));
    copy(&tollgate(), &program);
    copy(&workloads(), &workload_copy);
    let mut job = Job::of(vec![program.into(), "run".into(), "--".into()]);
    fs::set_permissions(job.path(""), std::os::unix::fs::PermissionsExt::from_mode(0o777))
        .expect("it is ours");
    let mut command = creates_file(&job);
    command[0] = workload_copy.into();
    job.command.args(command).uid(NOBODY).gid(NOBODY);
    let ran = job.finish().exits_with(OWN_FAILURE).says("needs root");
    one_line(&ran);
    assert!(!ran.path("began").exists());
}

/// In a root directory that contains only Tollgate and the folder of its lock.
#[test]
fn held_lock_is_reported_and_waited_for() {
    let root = folder();
    copy(&tollgate(), &root.path().join("tollgate"));
    fs::create_dir(root.path().join("run")).expect("a folder can be made");
    let lock = File::create(root.path().join("run/tollgate.lock")).expect("a file can be made");
    lock.lock().expect("no other process knows it");
    let path = CString::new(root.path().as_os_str().as_bytes()).expect("no NUL");
    let waiting = Job::of(words("/tollgate run -- /tollgate --version")).before_exec(move || {
        // SAFETY: a NUL-terminated path.
        if unsafe { libc::chroot(path.as_ptr()) } == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    });
    let waiting = waiting.start();
    let said = "tollgate: waiting for another Tollgate process that holds the lock \
    /run/tollgate.lock (`fuser` shows which one)\n";
    eventually("its notice", || waiting.read("err") == said);
    drop(lock);
    waiting.finish().exits_with(OWN_FAILURE).says("/proc of this PID namespace is not mounted");
}

#[test]
fn doctor_without_root() {
    let folder = folder();
    let program = folder.path().join("tollgate");
    copy(&tollgate(), &program);
    let mut job = Job::of(vec![program.into(), "doctor".into()]);
    job.command.uid(NOBODY).gid(NOBODY);
    assert!(job.finish().exits_with(1).text().contains("cannot work here"));
}

#[test]
fn closed_stdout_is_refused() {
    let close = || {
        // SAFETY: its own; nothing of it is used here.
        unsafe { libc::close(libc::STDOUT_FILENO) };
        Ok(())
    };
    let ran = Job::from_command_line("cost list").before_exec(close).finish();
    one_line(&ran.exits_with(OWN_FAILURE).says("cannot write the result to stdout: it is closed"));
}

#[test]
fn tracepoint_plugin_needs_root() {
    let folder = folder();
    let (program, plugin) = (folder.path().join("tollgate"), folder.path().join("it.ec"));
    copy(&tollgate(), &program);
    fs::write(&plugin, "on tracepoint(\"sched:sched_switch\") {}").expect("a file can be written");
    let mut job = Job::of(vec![program.into(), "plugin".into(), "check".into(), plugin.into()]);
    job.command.uid(NOBODY).gid(NOBODY);
    job.finish().exits_with(OWN_FAILURE).says("only root can read");
}

#[test]
fn without_btf() {
    let mut job = run("", Vec::new());
    let command = creates_file(&job);
    job.command.args(command);
    let ran = job.before_exec(|| hide(c"/sys/kernel/btf", c"/sys")).finish();
    let ran = ran.exits_with(OWN_FAILURE).says("/sys/kernel/btf/vmlinux is missing");
    one_line(&ran);
    assert!(!ran.path("began").exists());
}

#[test]
fn without_proc() {
    let said = "the /proc of this PID namespace is not mounted";
    let hidden = || hide(c"/proc", c"/proc");
    let mut job = run("", Vec::new());
    let command = creates_file(&job);
    job.command.args(command);
    let ran = job.before_exec(hidden).finish().exits_with(OWN_FAILURE).says(said);
    one_line(&ran);
    assert!(!ran.path("began").exists());
    for options in ["lens --all --for 1ms", "lens -p 1 --for 1ms", "daemon --guard=watch"] {
        let mut job = Job::from_command_line(options);
        if options.starts_with("daemon") {
            let (socket, store) = (job.path("socket"), job.path("store"));
            job.command.arg("--socket").arg(socket).arg("--store").arg(store);
        }
        job.before_exec(hidden).finish().exits_with(OWN_FAILURE).says(said);
    }
}

#[test]
fn without_pidfd_open() {
    let mut job = run("", Vec::new());
    let command = creates_file(&job);
    job.command.args(command);
    let ran = job.before_exec(|| forbid(libc::SYS_pidfd_open)).finish();
    let said = "cannot watch the command (pidfd_open): Operation not permitted";
    one_line(&ran.exits_with(OWN_FAILURE).says(said));
}

/// Has a seccomp filter fail a system call in this process and its children.
fn forbid(call: libc::c_long) -> io::Result<()> {
    let instruction = |code: u32, skip_if_not: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: skip_if_not,
        k,
    };
    let errno = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let mut filter = [
        // The number is the first field of struct seccomp_data.
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, call as u32),
        instruction(libc::BPF_RET | libc::BPF_K, 0, errno),
        instruction(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    let mode = libc::SECCOMP_MODE_FILTER;
    // SAFETY: `program` names `filter` and its length; the kernel copies both during the call.
    match unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Hides a folder from this process and its children. `around`: the mount point that it is in.
fn hide(target: &CStr, around: &CStr) -> io::Result<()> {
    let (none, target, tmpfs) = (c"none".as_ptr(), target.as_ptr(), c"tmpfs".as_ptr());
    // Not "/", which is not a mount point in a chroot.
    let around = around.as_ptr();
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
    let command = creates_file(&job);
    job.command.args(command);
    let ran = job.finish().exits_with(OWN_FAILURE);
    let ran = ran.says("cannot write the result to /no/such/folder/report");
    one_line(&ran);
    assert!(!ran.path("began").exists());
    Job::from_command_line("lens -o / --all --for 1ms")
        .finish()
        .exits_with(OWN_FAILURE)
        .says("cannot write the result to /");
}

#[test]
fn open_file_limit_too_low() {
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
fn exited_pid() {
    let gone = Job::of(workload("exit 0")).start();
    let pid = gone.pid();
    gone.finish().success();
    let ran = Job::from_command_line(&format!("lens -p {pid}")).finish();
    one_line(&ran.exits_with(OWN_FAILURE).says(&format!("there is no process {pid}")));
}

#[test]
fn unknown_user() {
    let ran = run("-u no-such-user", workload("exit 0")).finish();
    one_line(&ran.exits_with(OWN_FAILURE).says("no user no-such-user"));
}

#[test]
fn refused_run_keeps_the_old_report_file() {
    let folder = folder();
    let file = folder.path().join("report");
    let old = "old ".repeat(10_000);
    fs::write(&file, &old).expect("a file can be written");
    let run = |words: &str| {
        let mut job = Job::from_command_line("run --json -o");
        job.command.arg(&file).arg("--").args(workload(words));
        job.finish()
    };
    let mut refused = Job::from_command_line("run -o");
    refused.command.arg(&file).args(["--", "/no/such/command"]);
    refused.finish().exits_with(127);
    assert_eq!(fs::read_to_string(&file).expect("it is there"), old);
    run("calls 10").success();
    let report = fs::read_to_string(&file).expect("it is there");
    assert!(report.starts_with('{') && report.ends_with("}\n"), "{report}");
}
