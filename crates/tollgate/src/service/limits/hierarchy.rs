//! One hierarchy of control groups, of either version: which groups it has for services, and who is in them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context as _, Result};
use kernel::services::Member;
use service::Limits;

use super::origin::{TOP, folder, origin};
use crate::cgroups::Mounts;

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
    /// Of the second version: threads of one process may be in several groups, which memory's controller does not allow.
    is_threaded: bool,
    /// To whom a thread's number is written, by group: opening takes as long as the move.
    doors: Mutex<HashMap<String, File>>,
    /// Where threads were put, who may be moved a hundred times a second; of the last minute.
    seen: Mutex<HashMap<Thread, String>>,
}

/// One that has this number now may be another one than who had it a minute ago.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Thread {
    pub tid: u32,
    pub began_ns: u64,
}

impl Thread {
    pub fn of(member: &Member) -> Self {
        Self { tid: member.pid, began_ns: member.began_ns }
    }
}

/// That they have the same groups.
impl PartialEq for Hierarchy {
    fn eq(&self, other: &Self) -> bool {
        (&self.root, self.is_v2, &self.controllers, self.is_threaded)
            == (&other.root, other.is_v2, &other.controllers, other.is_threaded)
    }
}

/// A group of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Of the services above that have groups, and its own: "customers/shop".
    pub path: String,
    pub limits: Limits,
    /// It has groups of services below it.
    pub is_inner: bool,
}

/// Documentation/scheduler/sched-bwc.rst: cpu.cfs_period_us, and the same of cpu.max.
const PERIOD_US: u64 = 100_000;
/// Documentation/admin-guide/cgroup-v2.rst, "Weights"; and what the first version has in their place
/// (Documentation/scheduler/sched-design-CFS.rst).
pub const WEIGHT: u32 = 100;
const SHARES: u64 = 1024;
const HIGHEST_WEIGHT: u32 = 10_000;

impl Controller {
    pub const ALL: [Self; 3] = [Self::Cpu, Self::Memory, Self::Pids];

    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Pids => "pids",
        }
    }

    fn is_needed(self, limits: &Limits) -> bool {
        match self {
            Self::Cpu => limits.cpu_weight.is_some() || limits.cpu_max.is_some(),
            Self::Memory => limits.memory_max.is_some(),
            Self::Pids => limits.tasks_max.is_some(),
        }
    }

    /// Files, and what is to be in them.
    fn values(self, limits: &Limits, is_v2: bool) -> Vec<(&'static str, String)> {
        let or =
            |value: Option<u64>, none: &str| value.map_or_else(|| none.into(), |value| value.to_string());
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

/// File, and what is to be in it.
fn weight(weight: u32, is_v2: bool) -> (&'static str, String) {
    match is_v2 {
        true => ("cpu.weight", weight.min(HIGHEST_WEIGHT).to_string()),
        false => ("cpu.shares", (u64::from(weight) * SHARES / u64::from(WEIGHT)).to_string()),
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {text:?} to {}", path.display()))
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
    /// Those that have the controllers that these limits need.
    pub fn needed<'a>(limits: impl Iterator<Item = &'a Limits> + Clone) -> Result<Vec<Self>> {
        let mounts = Mounts::read();
        let mut all: Vec<Self> = Vec::new();
        for controller in Controller::ALL {
            if limits.clone().any(|limits| controller.is_needed(limits)) {
                let one = Self::of(&mounts, controller).with_context(|| {
                    format!(
                        "there is no `{}` controller of control groups on this machine (`tollgate doctor` shows what there is)",
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

    /// All that there are, whatever is needed.
    pub fn all() -> Vec<Self> {
        let mounts = Mounts::read();
        let mut all: Vec<Self> = Controller::ALL.iter().filter_map(|one| Self::of(&mounts, *one)).collect();
        all.dedup_by(|a, b| a.root == b.root);
        all
    }

    fn of(mounts: &Mounts, controller: Controller) -> Option<Self> {
        let is_v2 = mounts.is_in_v2(controller.name());
        let root = if is_v2 { mounts.v2.as_deref() } else { mounts.v1_place(controller.name()) };
        Some(Self {
            root: root?.into(),
            is_v2,
            controllers: vec![controller],
            is_threaded: false,
            doors: Mutex::default(),
            seen: Mutex::default(),
        })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The limits that members have for what they are; processors are for those who work for them as well.
    pub fn is_for_own(&self) -> bool {
        !self.controllers.contains(&Controller::Cpu)
    }

    /// Makes the groups, each after those above it, with their limits. Others that there are stay.
    pub fn set(&self, groups: &[Group]) -> Result<()> {
        let top = self.root.join(TOP);
        self.hand_down(&self.root)?;
        self.group(&top)?;
        self.hand_down(&top)?;
        if self.controllers.contains(&Controller::Cpu) {
            // Each of its services is to have what somebody beside it has.
            let weights = groups.iter().filter(|group| !group.path.contains('/'));
            let weights = weights.map(|group| group.limits.cpu_weight.unwrap_or(WEIGHT));
            let weight = weights.sum::<u32>().clamp(1, HIGHEST_WEIGHT);
            self.limit(&top, &Limits { cpu_weight: Some(weight), ..Limits::default() })?;
        }
        if self.is_threaded {
            self.thread_group(&top.join(BESIDE))?;
        }
        // Of the first version, a quota is refused that is more than the one above, and one above that is less.
        for group in
            groups.iter().rev().filter(|_| !self.is_v2 && self.controllers.contains(&Controller::Cpu))
        {
            let _ = fs::write(top.join(&group.path).join("cpu.cfs_quota_us"), "-1");
        }
        for group in groups {
            let folder = top.join(&group.path);
            match self.is_threaded {
                true => self.thread_group(&folder)?,
                false => self.group(&folder)?,
            }
            if group.is_inner {
                self.hand_down(&folder)?;
            }
            self.limit(&folder, &self.possible(group, groups))?;
        }
        Ok(())
    }

    /// The first version refuses a quota that is more than one above.
    fn possible(&self, group: &Group, groups: &[Group]) -> Limits {
        let is_above = |other: &&Group| {
            group.path.strip_prefix(&other.path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let above = groups.iter().filter(is_above).filter_map(|other| other.limits.cpu_max).min();
        let own = group.limits.cpu_max.filter(|_| !self.is_v2).and(above).or(group.limits.cpu_max);
        Limits { cpu_max: own, ..group.limits.clone() }
    }

    fn group(&self, folder: &Path) -> Result<()> {
        make(folder).with_context(|| format!("cannot make the control group {}", folder.display())).map(drop)
    }

    fn thread_group(&self, folder: &Path) -> Result<()> {
        self.group(folder)?;
        write(&folder.join("cgroup.type"), "threaded")
    }

    /// Lets the groups below have the controllers.
    fn hand_down(&self, folder: &Path) -> Result<()> {
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
            // Of the first version: the second one takes any.
            written.map_err(|error| {
                match error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
                    Some(libc::EBUSY) if limits.memory_max.is_some() => error.context(
                        "it has more memory than that now, be it of processes that have ended, and cannot give it back: \
                         a higher limit, or the same one later, may be possible",
                    ),
                    _ => error,
                }
            })?;
        }
        Ok(())
    }

    /// For a while.
    pub fn weigh(&self, path: &str, counts_as: u32) -> Result<()> {
        if !self.controllers.contains(&Controller::Cpu) {
            return Ok(());
        }
        let (file, text) = weight(counts_as, self.is_v2);
        write(&self.root.join(TOP).join(path).join(file), &text)
    }

    /// What the members of a service's group have now of what is limited there.
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

    /// The group in which a thread is.
    fn group_of(&self, tid: u32) -> io::Result<Option<String>> {
        let text = fs::read_to_string(format!("/proc/{tid}/cgroup"))?;
        let is_ours = |controllers: &str| match self.is_v2 {
            true => controllers.is_empty(),
            false => controllers.split(',').any(|name| name == self.controllers[0].name()),
        };
        let mut lines = text.lines().map(|line| line.splitn(3, ':').skip(1));
        Ok(lines.find_map(|mut line| is_ours(line.next()?).then(|| line.next())?.map(Into::into)))
    }

    /// Puts a thread in a service's group, or back to where it came from. False: it is there, or it is gone.
    pub fn place(&self, thread: Thread, path: Option<&str>) -> io::Result<bool> {
        let known = self.seen.lock().ok().and_then(|seen| seen.get(&thread).cloned());
        let group = self.place_from(known, thread.tid, path)?;
        let is_moved = group.is_some();
        if let (Some(group), Ok(mut seen)) = (group, self.seen.lock()) {
            seen.insert(thread, group);
        }
        Ok(is_moved)
    }

    /// From a group that is known, or from where it is. To which one it was moved, if it was.
    fn place_from(&self, known: Option<String>, tid: u32, path: Option<&str>) -> io::Result<Option<String>> {
        let now = known.map_or_else(|| self.group_of(tid), |group| Ok(Some(group)));
        let moved = now.and_then(|now| match now {
            Some(now) => self.move_from(&now, tid, path),
            None => Ok(None),
        });
        match moved {
            Err(error) if is_gone(&error) => Ok(None),
            moved => moved,
        }
    }

    /// To which it was moved.
    fn move_from(&self, now: &str, tid: u32, path: Option<&str>) -> io::Result<Option<String>> {
        let origin = origin(now);
        let below = |path: &str| format!("/{TOP}/{path}/{}", folder(&origin));
        let target = path.map_or_else(|| origin.clone(), below);
        if target == now {
            return Ok(None);
        }
        let is_made = self.doors.lock().is_ok_and(|doors| doors.contains_key(&target));
        if path.is_some() && !is_made {
            self.make_leaf(&target)?;
        }
        let targets = if path.is_none() { self.homes(&target) } else { vec![target.clone()] };
        match to_first_free(&targets, |group| self.write_to(group, tid)) {
            // Its process has other threads, which are not to go with it.
            Err(error) if self.is_threaded && error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
            written => return written.map(Some),
        }
        let (is_alone, beside) = (fs::read_dir(format!("/proc/{tid}/task"))?.nth(1).is_none(), below(BESIDE));
        if is_alone {
            return to_first_free(&targets, |group| self.write_process(group, tid)).map(Some);
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

    fn folder_of(&self, group: &str) -> PathBuf {
        self.root.join(group.trim_start_matches('/'))
    }

    fn make_leaf(&self, group: &str) -> io::Result<()> {
        let folder = self.folder_of(group);
        let made = make(&folder).and_then(|is_new| match is_new && self.is_threaded {
            true => fs::write(folder.join("cgroup.type"), "threaded"),
            false => Ok(()),
        });
        made.map_err(|error| of_group(&folder, &error))
    }

    fn write_to(&self, group: &str, tid: u32) -> io::Result<()> {
        let file = match (self.is_v2, self.is_threaded) {
            (false, _) => "tasks",
            (true, true) => "cgroup.threads",
            (true, false) => "cgroup.procs",
        };
        let Ok(mut doors) = self.doors.lock() else { return Err(io::ErrorKind::Other.into()) };
        let door = match doors.entry(group.to_owned()) {
            Entry::Occupied(door) => door.into_mut(),
            Entry::Vacant(door) => {
                let path = self.folder_of(group).join(file);
                let opened = File::options().write(true).open(&path);
                door.insert(opened.map_err(|error| of_group(&path, &error))?)
            }
        };
        let written = door.write_all(tid.to_string().as_bytes());
        // Removed, and maybe made anew since.
        if written.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::ENODEV)) {
            doors.remove(group);
        }
        written
    }

    fn write_process(&self, group: &str, tid: u32) -> io::Result<()> {
        fs::write(self.folder_of(group).join("cgroup.procs"), tid.to_string())
    }

    /// Removes groups in which nobody is: of origins that may be gone.
    pub fn sweep(&self) {
        for leaf in leaves(&self.root.join(TOP)) {
            let _ = fs::remove_dir(leaf);
        }
        self.shut();
    }

    /// Who comes next finds groups as they are then.
    fn shut(&self) {
        if let (Ok(mut doors), Ok(mut seen)) = (self.doors.lock(), self.seen.lock()) {
            doors.clear();
            seen.clear();
        }
    }

    /// Everybody is where they came from, and the groups are gone, but for those of `kept`.
    pub fn lift(&self, kept: &[Group]) -> Result<()> {
        self.shut();
        let top = self.root.join(TOP);
        let has_beside = self.is_threaded && !kept.is_empty();
        let kept = kept.iter().map(|group| group.path.as_str()).chain(has_beside.then_some(BESIDE));
        let kept: Vec<_> = kept.map(|path| top.join(path)).collect();
        let mut failed = Ok(());
        for leaf in leaves(&top) {
            if !kept.iter().any(|kept| leaf.parent() == Some(kept)) {
                failed = failed.and(self.empty(&leaf, has_beside));
            }
        }
        remove_empty(&top, &kept);
        failed
    }

    /// All of whom can be put back, also where one cannot: alone, where threads of their processes stay in other groups.
    fn empty(&self, leaf: &Path, alone: bool) -> Result<()> {
        let group = format!("/{}", leaf.strip_prefix(&self.root).unwrap_or(leaf).display());
        let homes = self.homes(&origin(&group));
        let threaded = leaf.join("cgroup.type").exists()
            && fs::read_to_string(leaf.join("cgroup.type")).is_ok_and(|kind| kind.trim() == "threaded");
        let list = match (self.is_v2, threaded) {
            (false, _) => "tasks",
            (true, true) => "cgroup.threads",
            (true, false) => "cgroup.procs",
        };
        // Who is forked meanwhile is there the next time.
        let mut done = Ok(());
        for _ in 0..ROUNDS {
            let members = fs::read_to_string(leaf.join(list)).unwrap_or_default();
            if members.is_empty() || done.is_err() {
                break;
            }
            let file = if self.is_v2 { "cgroup.procs" } else { "tasks" };
            for tid in members.lines() {
                let moved = match (alone, tid.parse()) {
                    (true, Ok(tid)) => self.place_from(None, tid, None).map(drop),
                    _ => to_first_free(&homes, |home| fs::write(self.folder_of(home).join(file), tid))
                        .map(drop),
                };
                match moved {
                    Err(error) if !is_gone(&error) => {
                        done = Err(error).with_context(|| format!("cannot put {tid} back into {}", homes[0]));
                    }
                    _ => {}
                }
            }
        }
        done
    }

    /// A group, and those above it, of those that are there: where somebody came from may be gone.
    fn homes(&self, group: &str) -> Vec<String> {
        let wanted = self.folder_of(group);
        let above =
            wanted.ancestors().take_while(|folder| folder.starts_with(&self.root) && **folder != self.root);
        let there =
            above.filter(|folder| folder.is_dir()).filter_map(|folder| folder.strip_prefix(&self.root).ok());
        there.map(|path| format!("/{}", path.display())).chain(["/".into()]).collect()
    }
}

/// In the first of these that takes it. Of the second version, one whose controllers are handed down takes nobody, but for
/// the root (Documentation/admin-guide/cgroup-v2.rst, "No Internal Process Constraint").
fn to_first_free(groups: &[String], write: impl Fn(&str) -> io::Result<()>) -> io::Result<String> {
    let mut done = Err(io::ErrorKind::NotFound.into());
    for group in groups {
        done = write(group).map(|()| group.clone());
        if !done.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY)) {
            break;
        }
    }
    done
}

/// That a group is gone does not say that a thread is.
fn of_group(path: &Path, error: &io::Error) -> io::Error {
    io::Error::other(format!("{}: {error}", path.display()))
}

/// Threads that are nobody's, of processes that have others elsewhere: a name that no service has.
const BESIDE: &str = "root";
/// So that a storm of forks does not keep anybody here for good.
const ROUNDS: usize = 1000;

fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENOENT | libc::ENODEV))
}

/// The groups in which processes are.
fn leaves(folder: &Path) -> Vec<PathBuf> {
    let is_leaf =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"%2F"));
    let (leaves, inner): (Vec<_>, Vec<_>) = folders(folder).into_iter().partition(is_leaf);
    leaves.into_iter().chain(inner.iter().flat_map(|inner| self::leaves(inner))).collect()
}

/// From the lowest on, but for those that have one of `kept` below them.
fn remove_empty(folder: &Path, kept: &[PathBuf]) {
    folders(folder).iter().for_each(|below| remove_empty(below, kept));
    if !kept.iter().any(|kept| kept.starts_with(folder)) {
        // It has members, or it is gone.
        let _ = fs::remove_dir(folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_a_number_again_is_somebody_else() {
        let root = tempfile::tempdir().expect("a folder");
        fs::create_dir(root.path().join("home")).expect("it is made");
        let tasks = root.path().join("home/tasks");
        fs::write(&tasks, "").expect("it is made");
        let hierarchy = Hierarchy {
            root: root.path().into(),
            is_v2: false,
            controllers: vec![Controller::Cpu],
            is_threaded: false,
            doors: Mutex::default(),
            seen: Mutex::default(),
        };
        let tid = std::process::id();
        let [first, second] = [1, 2].map(|began_ns| Thread { tid, began_ns });
        hierarchy.seen.lock().expect("a lock").insert(first, format!("/{TOP}/shop/{}", folder("/home")));
        let place = |thread| hierarchy.place(thread, None).expect("it is placed");
        assert!(!place(second), "it is where it began");
        assert_eq!(fs::read_to_string(&tasks).expect("it is there"), "");
        assert!(place(first));
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
            values.iter().map(|(file, value)| format!("{file}={value}")).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(text(values(true)), "cpu.weight=200 cpu.max=150000 100000 memory.max=4096 pids.max=7");
        assert_eq!(
            text(values(false)),
            "cpu.shares=2048 cpu.cfs_period_us=100000 cpu.cfs_quota_us=150000 memory.limit_in_bytes=4096 pids.max=7"
        );
        assert_eq!(
            text(Controller::ALL.map(|one| one.values(&Limits::default(), true)).concat()),
            "cpu.weight=100 cpu.max=max 100000 memory.max=max pids.max=max"
        );
    }
}
