//! In-band records in programs in C and Python, with the library as it is installed.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

use crate::harness::job::folder;
use crate::harness::{Job, project, tollgate, words};

/// Some kernels do not report each switch, so the program may not see each wait.
const WAITS: usize = 20;

/// Children read what they have inherited, and records of their own. More threads than there are
/// entries have records, one after the other.
const PYTHON_FORKS: &str = "
import os, threading, tollgate_in_band
parent = tollgate_in_band.thread()

def child():
    inherited = parent.sequence, parent.latest(0)
    own = tollgate_in_band.thread()
    before = own.sequence
    os.getppid()
    print(*inherited, own.latest(before) is not None, end=' ', flush=True)

def run_threads():
    served = []
    for _ in range(300):
        thread = threading.Thread(target=lambda: served.append(tollgate_in_band.thread()))
        thread.start()
        thread.join()
    print(len(served), flush=True)

pid = os.fork()
if not pid:
    child()
    run_threads()
    os._exit(0)
print(os.waitpid(pid, 0)[1])
for number in -1, 1 << 32:
    try:
        tollgate_in_band.site_name(number)
        print('a name')
    except tollgate_in_band.Unavailable:
        pass
";

#[track_caller]
fn output(mut command: Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("it is installed");
    assert!(status.success(), "{command:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).expect("UTF-8")
}

/// A script of the project, for this build.
fn script(name: &str) -> Command {
    let mut command = Command::new(project().join("scripts").join(name));
    // TARGET/x86_64-unknown-linux-gnu/release/tollgate
    command.env("CARGO_TARGET_DIR", tollgate().ancestors().nth(3).expect("a target"));
    command
}

/// Installs below a folder, as a package does.
fn install(root: &Path, remove: &[&str]) {
    let mut command = script("install");
    command.args(remove).arg(root).arg("/usr");
    output(command);
}

fn pkg_config(root: &Path) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.args(["--cflags", "--libs", "tollgate"]);
    command.env("PKG_CONFIG_PATH", root.join("usr/lib/pkgconfig"));
    command.env("PKG_CONFIG_SYSROOT_DIR", root).env("PKG_CONFIG_ALLOW_SYSTEM_CFLAGS", "1");
    command.env("PKG_CONFIG_ALLOW_SYSTEM_LIBS", "1");
    output(command).split_whitespace().map(str::to_owned).collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry"));
    let (folders, mut all): (Vec<_>, Vec<_>) =
        entries.map(|entry| entry.path()).partition(|path| path.is_dir() && !path.is_symlink());
    all.extend(folders.iter().flat_map(|folder| files(folder)));
    all
}

#[test]
fn programs_use_the_installed_library() {
    let at = folder();
    let root = at.path().join("root");
    output(script("library"));
    install(&root, &[]);

    let program = at.path().join("budget");
    let mut compiler = Command::new("gcc");
    compiler.args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
    compiler.arg(project().join("examples/in-band/budget.c")).args(pkg_config(&root));
    output(compiler);
    let mut needed = Command::new("readelf");
    needed.arg("-d").arg(&program);
    assert!(output(needed).contains("[libtollgate.so.0]"));

    let fifo = at.path().join("fifo");
    let mut made = Command::new("mkfifo");
    made.arg(&fifo);
    output(made);
    let writer = thread::spawn({
        let fifo = fifo.clone();
        move || {
            let mut fifo = OpenOptions::new().write(true).open(fifo).expect("it has a reader");
            for _ in 0..WAITS {
                thread::sleep(Duration::from_millis(20));
                // The reader ends at its first long wait.
                let _ = fifo.write_all(b".");
            }
        }
    });
    let mut job = Job::run("--in-band", vec![program.into(), "1".into(), fifo.into()]);
    // It aborts, and may leave a core file.
    job.command.env("LD_LIBRARY_PATH", root.join("usr/lib")).current_dir(at.path());
    let ran = job.finish();
    writer.join().expect("it has not panicked");
    assert!(ran.err.contains("a read was blocked for "), "{}", ran.err);

    let modules = files(&root).into_iter().find(|path| path.ends_with("tollgate_in_band.py"));
    let modules = modules.expect("the module is installed");
    let mut command = words("python3 -B -c");
    command.push(
        "import os, tollgate_in_band\n\
         thread = tollgate_in_band.thread()\n\
         before = thread.sequence\n\
         os.getppid()\n\
         call = thread.latest(before)\n\
         print(call.number, call.wall_ns > 0, thread.losses, thread.sequence - before)\n"
            .into(),
    );
    let python = |options: &str, command: Vec<OsString>| {
        let mut job = Job::run(options, command);
        job.command.env("PYTHONPATH", modules.parent().expect("a folder"));
        job.finish().success().text()
    };
    let text = python("--in-band", command);
    assert_eq!(text, format!("{} True 0 1\n", libc::SYS_getppid));
    let mut command = words("python3 -c");
    command.push(PYTHON_FORKS.into());
    assert_eq!(python("--in-band", command), "0 None True 300\n0\n");

    install(&root, &["-r"]);
    assert_eq!(files(&root), Vec::<PathBuf>::new());
}
