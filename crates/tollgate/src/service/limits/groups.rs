//! The control groups of all services that have limits for them, over all hierarchies.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use kernel::cgroup_option::moves_are_favoured;

use super::hierarchy::{Controller, Group, Hierarchy, Thread};
use super::origin::FAVOURED;
use crate::cgroups::Mounts;

/// One Tollgate has them at a time.
#[derive(Default)]
pub struct Groups {
    hierarchies: Vec<Hierarchy>,
    groups: Vec<Group>,
    /// By the number of the service whose they are.
    paths: BTreeMap<u16, String>,
    lock: Option<File>,
}

/// Held on a hierarchy's root by who has groups in any of them; goes with its process.
fn lock() -> Result<Option<File>> {
    let Some(hierarchy) = Hierarchy::all().into_iter().next() else { return Ok(None) };
    let file = File::open(hierarchy.root())
        .with_context(|| format!("cannot open {}", hierarchy.root().display()))?;
    Ok(file.try_lock().is_ok().then_some(file))
}

/// The warden of a killed one needs it for a moment.
const PATIENCE: Duration = Duration::from_secs(2);

fn alone() -> Result<File> {
    let began = Instant::now();
    loop {
        match lock()? {
            Some(lock) => return Ok(lock),
            None if began.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(10)),
            None => bail!("another Tollgate has control groups for its services"),
        }
    }
}

/// What a killed one has left. False: somebody has groups now.
pub fn lift_abandoned() -> Result<bool> {
    let lock = lock()?;
    if lock.is_some() {
        lift(&Hierarchy::all(), &[])?;
        favour_moves_no_more();
    }
    Ok(lock.is_some())
}

fn mark() -> Option<PathBuf> {
    Mounts::read().v2.map(|root| Path::new(&root).join(FAVOURED))
}

/// Where that is not possible, moves are as dear as they are.
fn favour_moves() {
    if let Some(mark) = mark().filter(|_| !moves_are_favoured())
        && fs::create_dir(&mark).is_ok()
    {
        let _ = kernel::cgroup_option::favour_moves(true);
        // In a control group namespace the kernel takes the option and ignores it: kernel/cgroup/cgroup.c,
        // apply_cgroup_root_flags().
        if !moves_are_favoured() {
            let _ = fs::remove_dir(mark);
        }
    }
}

/// As it was.
fn favour_moves_no_more() {
    if let Some(mark) = mark().filter(|mark| mark.exists()) {
        let _ = kernel::cgroup_option::favour_moves(false);
        let _ = fs::remove_dir(mark);
    }
}

fn lift(hierarchies: &[Hierarchy], kept: &[Group]) -> Result<()> {
    // All of them, also where one fails.
    hierarchies.iter().map(|hierarchy| hierarchy.lift(kept)).fold(Ok(()), Result::and)
}

impl Groups {
    /// The hierarchies of these groups, which nobody else may change from now on.
    pub fn claim(&mut self, wanted: &[(u16, Group)]) -> Result<Vec<Hierarchy>> {
        let hierarchies = Hierarchy::needed(wanted.iter().map(|(_, group)| &group.limits))?;
        if self.lock.is_none() && !wanted.is_empty() {
            self.lock = Some(alone()?);
            lift(&Hierarchy::all(), &[])?;
            favour_moves();
        }
        Ok(hierarchies)
    }

    /// Makes these, and no others, with their limits; those who are in others are put back. Tells of which services the
    /// groups are those that they were, with all who are in them.
    pub fn set(&mut self, hierarchies: Vec<Hierarchy>, wanted: Vec<(u16, Group)>) -> Result<BTreeSet<u16>> {
        let (numbers, groups): (Vec<_>, Vec<_>) = wanted.into_iter().unzip();
        let is_same = hierarchies == self.hierarchies;
        if !is_same {
            // Another kind of groups, in which nobody can be as they are.
            lift(&self.hierarchies, &[])?;
        }
        let made = hierarchies.iter().try_for_each(|hierarchy| hierarchy.set(&groups));
        if let Err(error) = made {
            lift(&hierarchies, &[])?;
            self.hierarchies.iter().try_for_each(|hierarchy| hierarchy.set(&self.groups))?;
            if self.groups.is_empty() {
                self.let_go();
            }
            return Err(error);
        }
        lift(&hierarchies, &groups)?;
        let paths: BTreeMap<_, _> =
            numbers.into_iter().zip(groups.iter().map(|group| group.path.clone())).collect();
        let kept = paths.iter().filter(|(number, path)| is_same && self.paths.get(number) == Some(path));
        let kept = kept.map(|(number, _)| *number).collect();
        (self.hierarchies, self.groups, self.paths) = (hierarchies, groups, paths);
        if self.groups.is_empty() {
            self.let_go();
        }
        Ok(kept)
    }

    fn let_go(&mut self) {
        if self.lock.is_some() {
            favour_moves_no_more();
        }
        self.lock = None;
    }

    /// Puts a thread where members of this service's group are; 0: where it came from. In all hierarchies, also where one
    /// refuses. Tollgate's own threads wait for no limit.
    pub fn place(&self, thread: Thread, service: u16, is_own: bool) -> Result<bool> {
        let tid = thread.tid;
        if Path::new("/proc/self/task").join(tid.to_string()).exists() {
            return Ok(false);
        }
        let path = self.paths.get(&service).map(String::as_str);
        let mut done = Ok(false);
        for hierarchy in self.hierarchies.iter().filter(|one| is_own || !one.is_for_own()) {
            let root = || format!("cannot put thread {tid} into a group of {}", hierarchy.root().display());
            let one = hierarchy.place(thread, path).with_context(root);
            done = done.and_then(|is_moved| one.map(|one| is_moved | one));
        }
        done
    }

    pub fn weigh(&self, service: u16, weight: u32) -> Result<()> {
        let Some(path) = self.paths.get(&service) else { return Ok(()) };
        self.hierarchies.iter().try_for_each(|hierarchy| hierarchy.weigh(path, weight))
    }

    pub fn used(&self, service: u16, controller: Controller) -> Option<u64> {
        let path = self.paths.get(&service)?;
        self.hierarchies.iter().find_map(|hierarchy| hierarchy.used(path, controller))
    }

    pub fn sweep(&self) {
        self.hierarchies.iter().for_each(Hierarchy::sweep);
    }

    pub fn lift(&mut self) -> Result<()> {
        self.paths.clear();
        self.groups.clear();
        let lifted = lift(&std::mem::take(&mut self.hierarchies), &[]);
        self.let_go();
        lifted
    }
}
