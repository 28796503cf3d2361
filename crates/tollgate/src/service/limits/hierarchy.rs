//! One cgroup hierarchy, v1 or v2: its cgroups for services, and their members.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context as _, Result};
use identity::cgroup::Cgroups;
use kernel::service::Member;
use service::Limits;

use super::saved_origin::{TOP, folder, origin};
use crate::cgroup_mounts::Mounts;
use crate::format::shown_path;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Controller {
    Cpu,
    Memory,
    Pids,
}

#[derive(Debug)]
pub struct Hierarchy {
    root: PathBuf,
    is_v2: bool,
    controllers: Vec<Controller>,
    /// Whether the cgroups are threaded cgroups of v2, so that threads of one process may be in
    /// several of them. Threaded cgroups cannot have the memory controller.
    is_threaded: bool,
    /// Open procs files by cgroup. They stay open, because opening one takes as long as a
    /// migration.
    procs_files: Mutex<HashMap<String, File>>,
    /// The cgroups to which threads were migrated in the last minute; a thread may be migrated a
    /// hundred times a second.
    last_cgroup: Mutex<HashMap<ThreadId, String>>,
}

/// A thread. Its start time distinguishes it from an earlier thread with the same TID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ThreadId {
    pub tid: u32,
    pub began_ns: u64,
}

impl ThreadId {
    pub fn of(member: &Member) -> Self {
        Self { tid: member.pid, began_ns: member.began_ns }
    }
}

/// Hierarchies are equal if they have the same cgroups.
impl PartialEq for Hierarchy {
    fn eq(&self, other: &Self) -> bool {
        (&self.root, self.is_v2, &self.controllers, self.is_threaded)
            == (&other.root, other.is_v2, &other.controllers, other.is_threaded)
    }
}

/// A service's cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceCgroup {
    /// The names of the services above that have cgroups, and its own: "customers/shop".
    pub path: String,
    pub limits: Limits,
    /// Whether the cgroup contains cgroups of services below it.
    pub is_inner: bool,
}

/// The value of cpu.cfs_period_us (Documentation/scheduler/sched-bwc.rst), and the period of
/// cpu.max.
const PERIOD_US: u64 = 100_000;
/// The default weight of v2 (Documentation/admin-guide/cgroup-v2.rst, "Weights"), and the default
/// shares of v1 (Documentation/scheduler/sched-design-CFS.rst).
pub const WEIGHT: u32 = 100;
const SHARES: u64 = 1024;
const MAX_WEIGHT: u32 = 10_000;

impl Controller {
    pub const ALL: [Self; 3] = [Self::Cpu, Self::Memory, Self::Pids];

    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Pids => "pids",
        }
    }

    fn is_required(self, limits: &Limits) -> bool {
        match self {
            Self::Cpu => limits.cpu_weight.is_some() || limits.cpu_max.is_some(),
            Self::Memory => limits.memory_max.is_some(),
            Self::Pids => limits.tasks_max.is_some(),
        }
    }

    /// The controller's files, and the values to write.
    fn values(self, limits: &Limits, is_v2: bool) -> Vec<(&'static str, String)> {
        let or = |value: Option<u64>, none: &str| {
            value.map_or_else(|| none.into(), |value| value.to_string())
        };
        let quota = limits.cpu_max.map(|percent| u64::from(percent) * PERIOD_US / 100);
        match (self, is_v2) {
            (Self::Cpu, true) => vec![
                weight(limits.cpu_weight.unwrap_or(WEIGHT), is_v2),
                ("cpu.max", format!("{} {PERIOD_US}", or(quota, "max"))),
            ],
            (Self::Cpu, false) => vec![
                weight(limits.cpu_weight.unwrap_or(WEIGHT), is_v2),
                ("cpu.cfs_period_us", PERIOD_US.to_string()),
                ("cpu.cfs_quota_us", or(quota, "-1")),
            ],
            (Self::Memory, true) => vec![("memory.max", or(limits.memory_max, "max"))],
            (Self::Memory, false) => vec![("memory.limit_in_bytes", or(limits.memory_max, "-1"))],
            (Self::Pids, _) => vec![("pids.max", or(limits.tasks_max, "max"))],
        }
    }
}

/// The file of a weight, and the value to write.
fn weight(weight: u32, is_v2: bool) -> (&'static str, String) {
    match is_v2 {
        true => ("cpu.weight", weight.min(MAX_WEIGHT).to_string()),
        false => ("cpu.shares", (u64::from(weight) * SHARES / u64::from(WEIGHT)).to_string()),
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {text:?} to {}", shown_path(path)))
}

fn make(folder: &Path) -> io::Result<bool> {
    match fs::create_dir(folder) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

fn folders(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

impl Hierarchy {
    /// The hierarchies of the controllers that these limits need.
    pub fn required<'a>(limits: impl Iterator<Item = &'a Limits> + Clone) -> Result<Vec<Self>> {
        let mounts = Mounts::read();
        let mut all: Vec<Self> = Vec::new();
        for controller in Controller::ALL {
            if limits.clone().any(|limits| controller.is_required(limits)) {
                let one = Self::of(&mounts, controller).with_context(|| {
                    format!(
                        "this machine has no `{}` cgroup controller (`tollgate doctor` lists the \
                        controllers)",
                        controller.name()
                    )
                })?;
                match all.iter_mut().find(|known| known.root == one.root) {
                    Some(known) => known.controllers.push(controller),
                    None => all.push(one),
                }
            }
        }
        for one in &mut all {
            one.is_threaded = one.is_v2 && !one.controllers.contains(&Controller::Memory);
        }
        Ok(all)
    }

    /// All hierarchies, whether limits need them or not.
    pub fn all() -> Vec<Self> {
        let mounts = Mounts::read();
        let mut all: Vec<Self> =
            Controller::ALL.iter().filter_map(|one| Self::of(&mounts, *one)).collect();
        all.dedup_by(|a, b| a.root == b.root);
        all
    }

    fn of(mounts: &Mounts, controller: Controller) -> Option<Self> {
        let is_v2 = mounts.is_in_v2(controller.name());
        let root =
            if is_v2 { mounts.v2.as_deref() } else { mounts.v1_mount_point(controller.name()) };
        Some(Self {
            root: root?.into(),
            is_v2,
            controllers: vec![controller],
            is_threaded: false,
            procs_files: Mutex::default(),
            last_cgroup: Mutex::default(),
        })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Whether this or another process has made cgroups for services.
    pub fn has_service_cgroups(&self) -> bool {
        self.root.join(TOP).exists()
    }

    /// Whether the hierarchy limits processor time. These limits also apply to threads that work on
    /// behalf of a service; all others apply to the service's own members only.
    pub fn has_cpu_controller(&self) -> bool {
        self.controllers.contains(&Controller::Cpu)
    }

    /// Makes the cgroups with their limits, each after those above it. Other existing cgroups stay.
    pub fn set(&self, cgroups: &[ServiceCgroup]) -> Result<()> {
        let top = self.root.join(TOP);
        self.delegate_controllers(&self.root)?;
        self.make_cgroup(&top)?;
        self.delegate_controllers(&top)?;
        if self.controllers.contains(&Controller::Cpu) {
            // The top cgroup gets the sum of the weights of the services directly below it. Each of
            // them then has the same share as a sibling of the top cgroup with the service's
            // weight.
            let weights = cgroups.iter().filter(|cgroup| !cgroup.path.contains('/'));
            let weights = weights.map(|cgroup| cgroup.limits.cpu_weight.unwrap_or(WEIGHT));
            let weight = weights.sum::<u32>().clamp(1, MAX_WEIGHT);
            self.limit(&top, &Limits { cpu_weight: Some(weight), ..Limits::default() })?;
        }
        if self.is_threaded {
            self.make_threaded_cgroup(&top.join(PROCESS_GROUP_DIR))?;
        }
        // v1 refuses a quota above that of an ancestor, and a quota below that of a descendant, so
        // all quotas are removed first.
        for cgroup in cgroups
            .iter()
            .rev()
            .filter(|_| !self.is_v2 && self.controllers.contains(&Controller::Cpu))
        {
            let _ = fs::write(top.join(&cgroup.path).join("cpu.cfs_quota_us"), "-1");
        }
        for cgroup in cgroups {
            let folder = top.join(&cgroup.path);
            match self.is_threaded {
                true => self.make_threaded_cgroup(&folder)?,
                false => self.make_cgroup(&folder)?,
            }
            if cgroup.is_inner {
                self.delegate_controllers(&folder)?;
            }
            self.limit(&folder, &self.effective_limits(cgroup, cgroups))?;
        }
        Ok(())
    }

    /// The limits to set. In v1, the quota is the lowest one of the service and its ancestors,
    /// because v1 refuses a quota above that of an ancestor.
    fn effective_limits(&self, cgroup: &ServiceCgroup, cgroups: &[ServiceCgroup]) -> Limits {
        let is_above = |other: &&ServiceCgroup| {
            cgroup
                .path
                .strip_prefix(&other.path)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let above = cgroups.iter().filter(is_above).filter_map(|other| other.limits.cpu_max).min();
        let own =
            cgroup.limits.cpu_max.filter(|_| !self.is_v2).and(above).or(cgroup.limits.cpu_max);
        Limits { cpu_max: own, ..cgroup.limits.clone() }
    }

    fn make_cgroup(&self, folder: &Path) -> Result<()> {
        make(folder)
            .with_context(|| format!("cannot make the control group {}", shown_path(folder)))
            .map(drop)
    }

    fn make_threaded_cgroup(&self, folder: &Path) -> Result<()> {
        self.make_cgroup(folder)?;
        write(&folder.join("cgroup.type"), "threaded")
    }

    /// Delegates the controllers to the cgroups below.
    fn delegate_controllers(&self, folder: &Path) -> Result<()> {
        if !self.is_v2 {
            return Ok(());
        }
        let names: Vec<_> =
            self.controllers.iter().map(|controller| format!("+{}", controller.name())).collect();
        write(&folder.join("cgroup.subtree_control"), &names.join(" "))
    }

    fn limit(&self, folder: &Path, limits: &Limits) -> Result<()> {
        for (file, value) in
            self.controllers.iter().flat_map(|controller| controller.values(limits, self.is_v2))
        {
            let written = write(&folder.join(file), &value);
            // Only v1 fails with EBUSY; v2 accepts any value.
            written.map_err(|error| {
                match error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
                    Some(libc::EBUSY) if limits.memory_max.is_some() => error.context(
                        "the control group uses more memory than that now, perhaps left by \
                        processes that have ended, and the kernel cannot reclaim it: try a higher \
                        limit, or the same one later",
                    ),
                    _ => error,
                }
            })?;
        }
        Ok(())
    }

    /// Sets a temporary weight.
    pub fn set_weight(&self, path: &str, counts_as: u32) -> Result<()> {
        if !self.controllers.contains(&Controller::Cpu) {
            return Ok(());
        }
        let (file, text) = weight(counts_as, self.is_v2);
        write(&self.root.join(TOP).join(path).join(file), &text)
    }

    /// The current use of the limited resource by the members of a service's cgroup.
    pub fn used(&self, path: &str, controller: Controller) -> Option<u64> {
        self.controllers.contains(&controller).then_some(())?;
        let file = match (controller, self.is_v2) {
            (Controller::Cpu, _) => return None,
            (Controller::Memory, true) => "memory.current",
            (Controller::Memory, false) => "memory.usage_in_bytes",
            (Controller::Pids, _) => "pids.current",
        };
        fs::read_to_string(self.root.join(TOP).join(path).join(file)).ok()?.trim().parse().ok()
    }

    /// The current cgroup of a thread.
    fn cgroup_of(&self, tid: u32) -> io::Result<Option<String>> {
        let text = fs::read_to_string(format!("/proc/{tid}/cgroup"))?;
        let cgroups = Cgroups::parse(&text);
        let path = match self.is_v2 {
            true => cgroups.path_in_v2(),
            false => cgroups.path_of(self.controllers[0].name()),
        };
        Ok(path.map(Into::into))
    }

    /// Migrates a thread to a service's cgroup, or back to its origin. Returns `false` if the
    /// thread is there already, or has ended.
    pub fn migrate(&self, thread: ThreadId, path: Option<&str>) -> io::Result<bool> {
        let known = self.last_cgroup.lock().ok().and_then(|seen| seen.get(&thread).cloned());
        let cgroup = self.migrate_from(known, thread.tid, path)?;
        let is_moved = cgroup.is_some();
        if let (Some(cgroup), Ok(mut seen)) = (cgroup, self.last_cgroup.lock()) {
            seen.insert(thread, cgroup);
        }
        Ok(is_moved)
    }

    /// Migrates a thread from its cgroup, which is looked up unless it is `known`. Returns the new
    /// cgroup if the thread was migrated.
    fn migrate_from(
        &self,
        known: Option<String>,
        tid: u32,
        path: Option<&str>,
    ) -> io::Result<Option<String>> {
        let now = known.map_or_else(|| self.cgroup_of(tid), |cgroup| Ok(Some(cgroup)));
        let moved = now.and_then(|now| match now {
            Some(now) => self.move_from(&now, tid, path),
            None => Ok(None),
        });
        match moved {
            Err(error) if is_gone(&error) => Ok(None),
            moved => moved,
        }
    }

    /// Migrates a thread from `now`, and returns the new cgroup if the thread was migrated.
    fn move_from(&self, now: &str, tid: u32, path: Option<&str>) -> io::Result<Option<String>> {
        let origin = origin(now);
        let below = |path: &str| format!("/{TOP}/{path}/{}", folder(&origin));
        let target = path.map_or_else(|| origin.clone(), below);
        if target == now {
            return Ok(None);
        }
        let is_made = self.procs_files.lock().is_ok_and(|files| files.contains_key(&target));
        if path.is_some() && !is_made {
            self.make_leaf(&target)?;
        }
        let targets =
            if path.is_none() { self.origin_candidates(&target) } else { vec![target.clone()] };
        match write_to_first_accepting(&targets, |cgroup| self.write_to(cgroup, tid)) {
            // The target belongs to another resource domain, to which only whole processes can
            // migrate.
            Err(error) if self.is_threaded && error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
            written => return written.map(Some),
        }
        let (is_alone, beside) =
            (fs::read_dir(format!("/proc/{tid}/task"))?.nth(1).is_none(), below(PROCESS_GROUP_DIR));
        if is_alone {
            return write_to_first_accepting(&targets, |cgroup| self.write_process(cgroup, tid))
                .map(Some);
        }
        self.make_leaf(&beside)?;
        match path {
            None if now == beside => return Ok(None),
            None => self.write_to(&beside, tid)?,
            Some(_) => {
                self.write_process(&beside, tid)?;
                self.write_to(&target, tid)?;
            }
        }
        Ok(Some(if path.is_some() { target } else { beside }))
    }

    fn folder_of(&self, cgroup: &str) -> PathBuf {
        self.root.join(cgroup.trim_start_matches('/'))
    }

    fn make_leaf(&self, cgroup: &str) -> io::Result<()> {
        let folder = self.folder_of(cgroup);
        let made = make(&folder).and_then(|is_new| match is_new && self.is_threaded {
            true => fs::write(folder.join("cgroup.type"), "threaded"),
            false => Ok(()),
        });
        made.map_err(|error| hide_errno(&folder, &error))
    }

    fn write_to(&self, cgroup: &str, tid: u32) -> io::Result<()> {
        let name = match (self.is_v2, self.is_threaded) {
            (false, _) => "tasks",
            (true, true) => "cgroup.threads",
            (true, false) => "cgroup.procs",
        };
        let Ok(mut files) = self.procs_files.lock() else {
            return Err(io::ErrorKind::Other.into());
        };
        let file = match files.entry(cgroup.to_owned()) {
            Entry::Occupied(file) => file.into_mut(),
            Entry::Vacant(vacant) => {
                let path = self.folder_of(cgroup).join(name);
                let opened = File::options().write(true).open(&path);
                vacant.insert(opened.map_err(|error| hide_errno(&path, &error))?)
            }
        };
        let written = file.write_all(tid.to_string().as_bytes());
        // The cgroup was removed, and may have been made again since.
        if written.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::ENODEV)) {
            files.remove(cgroup);
        }
        written
    }

    fn write_process(&self, cgroup: &str, tid: u32) -> io::Result<()> {
        fs::write(self.folder_of(cgroup).join("cgroup.procs"), tid.to_string())
    }

    /// Removes cgroups without members, because their origins may no longer exist.
    pub fn sweep(&self) {
        for leaf in leaves(&self.root.join(TOP)) {
            let _ = fs::remove_dir(leaf);
        }
        self.close_files();
    }

    /// Closes the procs files and forgets the threads' cgroups, so that later migrations see the
    /// current ones.
    fn close_files(&self) {
        if let (Ok(mut files), Ok(mut seen)) = (self.procs_files.lock(), self.last_cgroup.lock()) {
            files.clear();
            seen.clear();
        }
    }

    /// Migrates all threads back to their origins and removes the cgroups, except `kept`.
    pub fn tear_down(&self, kept: &[ServiceCgroup]) -> Result<()> {
        self.close_files();
        let top = self.root.join(TOP);
        let has_beside = self.is_threaded && !kept.is_empty();
        let kept = kept
            .iter()
            .map(|cgroup| cgroup.path.as_str())
            .chain(has_beside.then_some(PROCESS_GROUP_DIR));
        let kept: Vec<_> = kept.map(|path| top.join(path)).collect();
        let mut failed = Ok(());
        for leaf in leaves(&top) {
            if !kept.iter().any(|kept| leaf.parent() == Some(kept)) {
                failed = failed.and(self.move_all_back(&leaf, has_beside));
            }
        }
        remove_empty(&top, &kept);
        failed
    }

    /// Migrates all members of a leaf back, and continues if one cannot be migrated. With `alone`,
    /// migrates them one by one, because other threads of their processes stay in other cgroups.
    fn move_all_back(&self, leaf: &Path, alone: bool) -> Result<()> {
        let cgroup = format!("/{}", leaf.strip_prefix(&self.root).unwrap_or(leaf).display());
        let origins = self.origin_candidates(&origin(&cgroup));
        let threaded = leaf.join("cgroup.type").exists()
            && fs::read_to_string(leaf.join("cgroup.type"))
                .is_ok_and(|kind| kind.trim() == "threaded");
        let list = match (self.is_v2, threaded) {
            (false, _) => "tasks",
            (true, true) => "cgroup.threads",
            (true, false) => "cgroup.procs",
        };
        // The next round finds threads that were forked meanwhile.
        let mut done = Ok(());
        for _ in 0..MAX_ROUNDS {
            let members = fs::read_to_string(leaf.join(list)).unwrap_or_default();
            if members.is_empty() || done.is_err() {
                break;
            }
            let file = if self.is_v2 { "cgroup.procs" } else { "tasks" };
            for tid in members.lines() {
                let moved = match (alone, tid.parse()) {
                    (true, Ok(tid)) => self.migrate_from(None, tid, None).map(drop),
                    _ => write_to_first_accepting(&origins, |origin| {
                        fs::write(self.folder_of(origin).join(file), tid)
                    })
                    .map(drop),
                };
                match moved {
                    Err(error) if !is_gone(&error) => {
                        done = Err(error).with_context(|| {
                            format!("cannot migrate {tid} back to {}", origins[0])
                        });
                    }
                    _ => {}
                }
            }
        }
        done
    }

    /// A cgroup and its ancestors, as far as they exist: a thread's origin may have been removed.
    fn origin_candidates(&self, cgroup: &str) -> Vec<String> {
        let wanted = self.folder_of(cgroup);
        let above = wanted
            .ancestors()
            .take_while(|folder| folder.starts_with(&self.root) && **folder != self.root);
        let there = above
            .filter(|folder| folder.is_dir())
            .filter_map(|folder| folder.strip_prefix(&self.root).ok());
        there.map(|path| format!("/{}", path.display())).chain(["/".into()]).collect()
    }
}

/// Writes to the first of these cgroups that does not refuse with EBUSY. In v2, a cgroup that
/// delegates controllers accepts no members, except the root
/// (Documentation/admin-guide/cgroup-v2.rst, "No Internal Process Constraint").
fn write_to_first_accepting(
    cgroups: &[String],
    write: impl Fn(&str) -> io::Result<()>,
) -> io::Result<String> {
    let mut done = Err(io::ErrorKind::NotFound.into());
    for cgroup in cgroups {
        done = write(cgroup).map(|()| cgroup.clone());
        if !done.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY)) {
            break;
        }
    }
    done
}

/// Hides the errno: a missing cgroup must not be taken for a thread that has ended.
fn hide_errno(path: &Path, error: &io::Error) -> io::Error {
    io::Error::other(format!("{}: {error}", shown_path(path)))
}

/// The cgroup of threads that belong to no service, but whose processes have threads in services'
/// cgroups. No service has this name.
const PROCESS_GROUP_DIR: &str = "root";
/// Processes that fork all the time must not keep this loop running.
const MAX_ROUNDS: usize = 1000;

fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENOENT | libc::ENODEV))
}

/// The cgroups for members: the name of each is a saved origin.
fn leaves(folder: &Path) -> Vec<PathBuf> {
    let is_leaf = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"%2F"))
    };
    let (leaves, inner): (Vec<_>, Vec<_>) = folders(folder).into_iter().partition(is_leaf);
    leaves.into_iter().chain(inner.iter().flat_map(|inner| self::leaves(inner))).collect()
}

/// Removes cgroups from the bottom up, except those of `kept` and their ancestors.
fn remove_empty(folder: &Path, kept: &[PathBuf]) {
    folders(folder).iter().for_each(|below| remove_empty(below, kept));
    if !kept.iter().any(|kept| kept.starts_with(folder)) {
        // This fails if the cgroup has members or no longer exists.
        let _ = fs::remove_dir(folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reused_tid_is_another_thread() {
        let root = tempfile::tempdir().expect("a folder");
        fs::create_dir(root.path().join("home")).expect("it is made");
        let tasks = root.path().join("home/tasks");
        fs::write(&tasks, "").expect("it is made");
        let hierarchy = Hierarchy {
            root: root.path().into(),
            is_v2: false,
            controllers: vec![Controller::Cpu],
            is_threaded: false,
            procs_files: Mutex::default(),
            last_cgroup: Mutex::default(),
        };
        let tid = std::process::id();
        let [first, second] = [1, 2].map(|began_ns| ThreadId { tid, began_ns });
        hierarchy
            .last_cgroup
            .lock()
            .expect("a lock")
            .insert(first, format!("/{TOP}/shop/{}", folder("/home")));
        let migrate = |thread| hierarchy.migrate(thread, None).expect("it is migrated");
        assert!(!migrate(second), "it is where it began");
        assert_eq!(fs::read_to_string(&tasks).expect("it is there"), "");
        assert!(migrate(first));
        assert_eq!(fs::read_to_string(&tasks).expect("it is there"), tid.to_string());
    }

    #[test]
    fn both_versions_have_their_files() {
        let limits = Limits {
            cpu_weight: Some(200),
            cpu_max: Some(150),
            memory_max: Some(4096),
            tasks_max: Some(7),
            ..Limits::default()
        };
        let values = |is_v2| Controller::ALL.map(|one| one.values(&limits, is_v2)).concat();
        let text = |values: Vec<(&str, String)>| {
            values
                .iter()
                .map(|(file, value)| format!("{file}={value}"))
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(
            text(values(true)),
            "cpu.weight=200 cpu.max=150000 100000 memory.max=4096 pids.max=7"
        );
        assert_eq!(
            text(values(false)),
            "cpu.shares=2048 cpu.cfs_period_us=100000 cpu.cfs_quota_us=150000 \
            memory.limit_in_bytes=4096 pids.max=7"
        );
        assert_eq!(
            text(Controller::ALL.map(|one| one.values(&Limits::default(), true)).concat()),
            "cpu.weight=100 cpu.max=max 100000 memory.max=max pids.max=max"
        );
    }
}
