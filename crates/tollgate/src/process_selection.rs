//! Selects running processes to watch.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use anyhow::{Result, bail, ensure};
use clap::Args;
use clap::builder::{NonEmptyStringValueParser, OsStringValueParser, TypedValueParser as _};
use identity::cgroup::Cgroups;
use kernel::mounts::{Mount, mounted};
use kernel::process::{has_own_proc, read_text};

use crate::format::{command_line, printable};
use crate::output::print_message;

/// The kernel keeps 15 bytes of a command name (TASK_COMM_LEN).
const COMM_BYTES: usize = 15;

// The processes to watch: all that match at least one of the given options.
#[derive(Args, Debug, Default)]
pub struct Select {
    /// Watch the process with this ID, its threads, and the processes that it forks; may be
    /// repeated
    #[arg(short, long, value_name = "PID")]
    pub pid: Vec<u32>,
    /// Watch processes with this command name (the first 15 bytes are compared), also those that
    /// start later (Tollgate polls twice a second)
    #[arg(long, value_name = "NAME", value_parser = OsStringValueParser::new().try_map(not_empty))]
    pub comm: Vec<OsString>,
    /// Watch processes in this control group or below it (a path under /sys/fs/cgroup, or one from
    /// /proc/PID/cgroup), also those that enter it later
    #[arg(long, value_name = "PATH", value_parser = parse_cgroup)]
    pub cgroup: Vec<String>,
    /// Watch processes of this systemd unit, also those that enter it later
    #[arg(long, value_name = "UNIT", value_parser = NonEmptyStringValueParser::new())]
    pub unit: Vec<String>,
    /// Watch every process except Tollgate itself; in a container, every process of the container
    #[arg(long, conflicts_with_all = ["pid", "comm", "cgroup", "unit"])]
    pub all: bool,
}

fn not_empty(name: OsString) -> Result<OsString, &'static str> {
    if name.is_empty() { Err("the name is empty") } else { Ok(name) }
}

impl Select {
    /// Whether no option is given.
    pub fn is_empty(&self) -> bool {
        !self.all && self.pid.is_empty() && !self.is_dynamic()
    }

    /// Whether processes that start later may match even if no watched process forked them.
    pub fn is_dynamic(&self) -> bool {
        !(self.comm.is_empty() && self.cgroup.is_empty() && self.unit.is_empty())
    }

    /// Whether control groups are selected, by their paths or units.
    pub fn has_cgroups(&self) -> bool {
        !(self.cgroup.is_empty() && self.unit.is_empty())
    }

    /// Whether a process with these control groups is selected because of them. The text is that of
    /// /proc/PID/cgroup, or one line of it.
    pub fn matches_cgroups(&self, cgroups: &str) -> bool {
        self.cgroup.iter().any(|path| in_cgroup(cgroups, path))
            || self.unit.iter().any(|unit| in_unit(cgroups, unit))
    }

    fn matches(&self, comm: &[u8], cgroups: &str) -> bool {
        let short =
            |name: &OsString| name.as_bytes().iter().take(COMM_BYTES).copied().collect::<Vec<_>>();
        self.all
            || self.comm.iter().any(|name| short(name) == comm)
            || self.matches_cgroups(cgroups)
    }
}

/// The processes that were selected by PID, each of which must exist. Prints a note for a thread.
pub fn by_pid(select: &Select) -> Result<Vec<u32>> {
    ensure!(has_own_proc(), kernel::Error::NoProc);
    let mut processes = Vec::new();
    for pid in &select.pid {
        let process = process_of_thread(*pid)?;
        if let Some(note) = thread_note(*pid, process) {
            let _ = print_message(&format!("tollgate: {note}"));
        }
        processes.push(process);
    }
    Ok(processes)
}

/// Says that a thread selects its whole process, if it is not the first one.
fn thread_note(thread: u32, process: u32) -> Option<String> {
    (thread != process)
        .then(|| format!("{thread} is a thread of process {process}, which is watched as a whole"))
}

/// The processes that currently match by their properties, without Tollgate itself.
pub fn by_properties(select: &Select) -> Vec<u32> {
    if !select.all && !select.is_dynamic() {
        return Vec::new();
    }
    let own = std::process::id();
    running().into_iter().filter(|pid| *pid != own && matches(select, *pid)).collect()
}

fn matches(select: &Select, pid: u32) -> bool {
    let read = |file| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let comm = read("comm");
    select.matches(
        comm.strip_suffix(b"\n").unwrap_or(&comm),
        &String::from_utf8_lossy(&read("cgroup")),
    )
}

fn running() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The process of a PID or TID: a TID selects its process, as with ps -L and strace -p.
fn process_of_thread(pid: u32) -> Result<u32> {
    if pid == std::process::id() {
        bail!("process {pid} is Tollgate itself, which cannot be watched");
    }
    let status = match read_text(format!("/proc/{pid}/status")) {
        Ok(status) => status,
        Err(_) => bail!("there is no process {pid}; it may have ended"),
    };
    let leader = status
        .lines()
        .find_map(|line| line.strip_prefix("Tgid:"))
        .and_then(|tgid| tgid.trim().parse().ok());
    Ok(leader.unwrap_or(pid))
}

fn in_cgroup(cgroups: &str, wanted: &str) -> bool {
    Cgroups::parse(cgroups).is_within(without_mount_point(wanted))
}

/// Removes the mount point, which is not part of the paths in /proc. For v1, the rest begins with
/// the controller.
pub fn without_mount_point(path: &str) -> &str {
    path.strip_prefix("/sys/fs/cgroup").unwrap_or(path).trim_matches('/')
}

/// Parses a cgroup of the command line, and resolves `.` and `..` in its path.
pub fn parse_cgroup(path: &str) -> Result<String, String> {
    let mut resolved = PathBuf::new();
    for part in Path::new(path).components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                resolved.pop();
            }
            part => resolved.push(part),
        }
    }
    let resolved = resolved.to_str().expect("made of UTF-8");
    let is_root = |mount: Mount| {
        mount.kind.starts_with("cgroup")
            && mount.root == "/"
            && without_mount_point(&mount.mount_point) == without_mount_point(resolved)
    };
    if without_mount_point(resolved).is_empty() || mounted().into_iter().any(is_root) {
        return Err("every process is in the root control group: use --all".into());
    }
    Ok(resolved.to_owned())
}

/// Refuses paths of files that are not cgroups, and warns about cgroups that do not exist: they may
/// be created later, but may also be mistyped.
pub fn check_cgroups(select: &Select) -> Result<()> {
    for cgroup in select.cgroup.iter().filter(|cgroup| !cgroup_exists(cgroup)) {
        let name = command_line(std::slice::from_ref(cgroup));
        let path = Path::new(cgroup);
        if path.is_absolute() && path.exists() {
            bail!("{name} is not a control group below /sys/fs/cgroup: {}", mounts_of_cgroups());
        }
        let _ = print_message(&format!("tollgate: there is no control group {name} now"));
    }
    Ok(())
}

/// A sentence on where control groups are mounted.
fn mounts_of_cgroups() -> String {
    let mounts = mounted().into_iter().filter(|mount| mount.kind.starts_with("cgroup"));
    let points: Vec<_> = mounts.map(|mount| printable(&mount.mount_point)).collect();
    match points.is_empty() {
        true => "no control groups are mounted".into(),
        false => format!("control groups are mounted at {}", points.join(", ")),
    }
}

/// Whether the cgroup exists in any hierarchy that is mounted below /sys/fs/cgroup.
fn cgroup_exists(path: &str) -> bool {
    let wanted = without_mount_point(path);
    let root = Path::new("/sys/fs/cgroup");
    let hierarchies = fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path());
    std::iter::once(root.to_owned())
        .chain(hierarchies)
        .any(|hierarchy| hierarchy.join(wanted).join("cgroup.procs").exists())
}

/// The full name of a unit: `nginx` is `nginx.service`.
pub fn unit_name(unit: &str) -> String {
    if unit.contains('.') { unit.to_owned() } else { format!("{unit}.service") }
}

fn in_unit(cgroups: &str, unit: &str) -> bool {
    Cgroups::parse(cgroups).has_unit(&unit_name(unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    const V2: &str = "0::/system.slice/nginx.service\n";
    const V1: &str = "4:memory:/jobs/a\n1:name=systemd:/system.slice/db.service/worker\n0::/\n";

    #[test]
    fn a_unit_is_a_part_of_the_path() {
        assert!(in_unit(V2, "nginx.service"));
        assert!(in_unit(V2, "nginx"));
        assert!(in_unit(V1, "db.service"));
        assert!(!in_unit(V2, "ngin"));
    }

    #[test]
    fn a_cgroup_has_what_is_below_it() {
        for path in ["/system.slice", "system.slice/nginx.service/", "/sys/fs/cgroup/system.slice"]
        {
            assert!(in_cgroup(V2, path), "{path}");
        }
        assert!(!in_cgroup(V2, "/system"));
        assert!(!in_cgroup(V2, "/"));
        assert!(in_cgroup(V1, "/sys/fs/cgroup/memory/jobs"));
        assert!(in_cgroup(V1, "/jobs/a"));
        assert!(!in_cgroup(V1, "/sys/fs/cgroup/cpu/jobs"));
    }

    #[test]
    fn long_command_names_match_as_the_kernel_cuts_them() {
        let select = Select { comm: vec!["a-very-long-command".into()], ..Select::default() };
        assert!(select.matches(b"a-very-long-com", ""));
        assert!(!select.matches(b"a-very-long", ""));
        // The limit may cut a character in two.
        let select = Select { comm: vec!["abcdefghijklmn\u{e9}".into()], ..Select::default() };
        assert!(select.matches(b"abcdefghijklmn\xc3", ""));
    }

    #[test]
    fn a_thread_selects_its_process() {
        let (process, (to, from)) = (std::process::id(), std::sync::mpsc::channel());
        let read = || std::fs::read_link("/proc/thread-self").expect("/proc");
        let thread = std::thread::spawn(move || {
            let _ = to.send(read());
            std::thread::park();
        });
        let path = from.recv().expect("it is sent");
        let name = path.file_name().and_then(|name| name.to_str()).expect("a number");
        let tid: u32 = name.parse().expect("a number");
        assert_eq!(process_of_thread(tid).ok(), Some(process));
        thread.thread().unpark();
        let note = format!("{tid} is a thread of process {process}, which is watched as a whole");
        assert_eq!(thread_note(tid, process), Some(note));
        assert_eq!(thread_note(process, process), None);
    }

    #[test]
    fn files_that_are_no_cgroups_are_refused() {
        let checked = |path: &str| {
            let select = Select { cgroup: vec![path.into()], ..Select::default() };
            check_cgroups(&select).map_err(|error| error.to_string())
        };
        for path in ["/proc", "/proc/self/stat"] {
            let error = checked(path).expect_err(path);
            assert!(error.starts_with(&format!("{path} is not a control group")), "{error}");
            assert!(error.contains("mounted"), "{error}");
        }
        // It may be created later.
        assert_eq!(checked("/no-such-group"), Ok(()));
        assert_eq!(checked("/sys/fs/cgroup/no-such-group"), Ok(()));
    }

    #[test]
    fn root_cgroup_is_refused() {
        for path in ["", "/", "/sys/fs/cgroup", "/sys/fs/cgroup/"] {
            assert!(parse_cgroup(path).unwrap_err().contains("--all"), "{path}");
        }
        for mount in mounted().iter().filter(|mount| mount.kind.starts_with("cgroup")) {
            // In a container, the mount may be that of another control group.
            if mount.root == "/" {
                assert!(parse_cgroup(&mount.mount_point).unwrap_err().contains("--all"));
            }
        }
        assert_eq!(parse_cgroup("/jobs").as_deref(), Ok("/jobs"));
        assert_eq!(parse_cgroup("/a/../jobs/./b/..").as_deref(), Ok("/jobs"));
        assert!(parse_cgroup("/sys/fs/cgroup/a/..").unwrap_err().contains("--all"));
    }
}
