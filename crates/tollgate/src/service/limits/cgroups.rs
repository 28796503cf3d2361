//! The cgroups of all services whose limits need cgroups, in all hierarchies.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use kernel::favordynmods::has_favordynmods;

use super::hierarchy::{Controller, Hierarchy, ServiceCgroup, ThreadId};
use super::saved_origin::{FAVORDYNMODS_MARKER, KEEP_MARKER};
use crate::cgroup_mounts::Mounts;
use crate::format::shown_path;

/// The cgroups of services. Only one Tollgate process has any at a time.
#[derive(Default)]
pub struct ServiceCgroups {
    hierarchies: Vec<Hierarchy>,
    cgroups: Vec<ServiceCgroup>,
    /// Paths by service number.
    paths: BTreeMap<u16, String>,
    lock: Option<File>,
}

/// Tries to lock the root of a hierarchy. The process that has service cgroups in any hierarchy
/// holds this lock, which ends with the process at the latest.
fn lock() -> Result<Option<File>> {
    let Some(hierarchy) = Hierarchy::all().into_iter().next() else { return Ok(None) };
    let file = File::open(hierarchy.root())
        .with_context(|| format!("cannot open {}", shown_path(hierarchy.root())))?;
    Ok(file.try_lock().is_ok().then_some(file))
}

/// The watchdog of a killed process needs the lock for a moment.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

fn take_lock() -> Result<File> {
    let began = Instant::now();
    loop {
        match lock()? {
            Some(lock) => return Ok(lock),
            None if began.elapsed() < LOCK_TIMEOUT => std::thread::sleep(Duration::from_millis(10)),
            None => bail!("another Tollgate process manages control groups for services already"),
        }
    }
}

/// Whether there are service cgroups that are to end with their process.
pub fn exist() -> bool {
    let hierarchies = Hierarchy::all();
    let is_kept = keep_marker(&hierarchies).is_some_and(|marker| marker.exists());
    !is_kept
        && (favordynmods_marker().is_some_and(|marker| marker.exists())
            || hierarchies.iter().any(Hierarchy::has_service_cgroups))
}

fn keep_marker(hierarchies: &[Hierarchy]) -> Option<PathBuf> {
    hierarchies.first().map(|hierarchy| hierarchy.root().join(KEEP_MARKER))
}

/// Notes whether the service cgroups are to stay when their process ends.
pub fn set_kept(is_kept: bool) -> Result<()> {
    let Some(marker) = keep_marker(&Hierarchy::all()) else { return Ok(()) };
    let done = if is_kept { fs::create_dir(&marker) } else { fs::remove_dir(&marker) };
    match done {
        Ok(()) => Ok(()),
        Err(_) if marker.exists() == is_kept => Ok(()),
        Err(error) => Err(error).with_context(|| format!("cannot change {}", shown_path(&marker))),
    }
}

/// Removes what a killed process has left. Returns `false` if another process has service cgroups
/// now.
pub fn remove_orphaned() -> Result<bool> {
    let lock = lock()?;
    if lock.is_some() {
        tear_down(&Hierarchy::all(), &[])?;
        set_kept(false)?;
        restore_favordynmods();
    }
    Ok(lock.is_some())
}

fn favordynmods_marker() -> Option<PathBuf> {
    Mounts::read().v2.map(|root| Path::new(&root).join(FAVORDYNMODS_MARKER))
}

/// Mounts cgroup v2 with favordynmods, which makes migrations cheaper. If this fails, migrations
/// only cost more.
fn enable_favordynmods() {
    if let Some(mark) = favordynmods_marker().filter(|_| !has_favordynmods())
        && fs::create_dir(&mark).is_ok()
    {
        let _ = kernel::favordynmods::set_favordynmods(true);
        // In a cgroup namespace, the kernel accepts the option and ignores it:
        // kernel/cgroup/cgroup.c, apply_cgroup_root_flags().
        if !has_favordynmods() {
            let _ = fs::remove_dir(mark);
        }
    }
}

/// Restores the mount option to what it was.
fn restore_favordynmods() {
    if let Some(mark) = favordynmods_marker().filter(|mark| mark.exists()) {
        let _ = kernel::favordynmods::set_favordynmods(false);
        let _ = fs::remove_dir(mark);
    }
}

fn tear_down(hierarchies: &[Hierarchy], kept: &[ServiceCgroup]) -> Result<()> {
    // Continue with the others if one fails.
    hierarchies.iter().map(|hierarchy| hierarchy.tear_down(kept)).fold(Ok(()), Result::and)
}

impl ServiceCgroups {
    /// Returns the hierarchies of these cgroups. From now on, no other Tollgate process may have
    /// cgroups for services.
    pub fn reserve(&mut self, wanted: &[(u16, ServiceCgroup)]) -> Result<Vec<Hierarchy>> {
        let hierarchies = Hierarchy::required(wanted.iter().map(|(_, cgroup)| &cgroup.limits))?;
        if self.lock.is_none() && !wanted.is_empty() {
            self.lock = Some(take_lock()?);
            tear_down(&Hierarchy::all(), &[])?;
            enable_favordynmods();
        }
        Ok(hierarchies)
    }

    /// Makes exactly these cgroups, with their limits, and migrates the members of other cgroups
    /// back. Returns the services whose cgroups keep all their members.
    pub fn set(
        &mut self,
        hierarchies: Vec<Hierarchy>,
        wanted: Vec<(u16, ServiceCgroup)>,
    ) -> Result<BTreeSet<u16>> {
        let (numbers, cgroups): (Vec<_>, Vec<_>) = wanted.into_iter().unzip();
        let is_same = hierarchies == self.hierarchies;
        if !is_same {
            // The new cgroups are of another kind, so no member can stay.
            tear_down(&self.hierarchies, &[])?;
        }
        let made = hierarchies.iter().try_for_each(|hierarchy| hierarchy.set(&cgroups));
        if let Err(error) = made {
            tear_down(&hierarchies, &[])?;
            self.hierarchies.iter().try_for_each(|hierarchy| hierarchy.set(&self.cgroups))?;
            if self.cgroups.is_empty() {
                self.drop_lock();
            }
            return Err(error);
        }
        tear_down(&hierarchies, &cgroups)?;
        let paths: BTreeMap<_, _> =
            numbers.into_iter().zip(cgroups.iter().map(|cgroup| cgroup.path.clone())).collect();
        let kept =
            paths.iter().filter(|(number, path)| is_same && self.paths.get(number) == Some(path));
        let kept = kept.map(|(number, _)| *number).collect();
        (self.hierarchies, self.cgroups, self.paths) = (hierarchies, cgroups, paths);
        if self.cgroups.is_empty() {
            self.drop_lock();
        }
        Ok(kept)
    }

    fn drop_lock(&mut self) {
        if self.lock.is_some() {
            restore_favordynmods();
        }
        self.lock = None;
    }

    /// Migrates a thread to the cgroup of this service, or back to its origin if `service` is 0.
    /// Continues with the other hierarchies if one refuses. Unless `has_all_limits` is set,
    /// migrates only in hierarchies with CPU limits. Never migrates Tollgate's own threads, so that
    /// no limit makes them wait.
    pub fn migrate(&self, thread: ThreadId, service: u16, has_all_limits: bool) -> Result<bool> {
        let tid = thread.tid;
        if Path::new("/proc/self/task").join(tid.to_string()).exists() {
            return Ok(false);
        }
        let path = self.paths.get(&service).map(String::as_str);
        let mut done = Ok(false);
        for hierarchy in
            self.hierarchies.iter().filter(|one| has_all_limits || one.has_cpu_controller())
        {
            let root = || {
                format!(
                    "cannot migrate thread {tid} to a control group of {}",
                    shown_path(hierarchy.root())
                )
            };
            let one = hierarchy.migrate(thread, path).with_context(root);
            done = done.and_then(|is_moved| one.map(|one| is_moved | one));
        }
        done
    }

    pub fn set_weight(&self, service: u16, weight: u32) -> Result<()> {
        let Some(path) = self.paths.get(&service) else { return Ok(()) };
        self.hierarchies.iter().try_for_each(|hierarchy| hierarchy.set_weight(path, weight))
    }

    pub fn used(&self, service: u16, controller: Controller) -> Option<u64> {
        let path = self.paths.get(&service)?;
        self.hierarchies.iter().find_map(|hierarchy| hierarchy.used(path, controller))
    }

    pub fn sweep(&self) {
        self.hierarchies.iter().for_each(Hierarchy::sweep);
    }

    pub fn tear_down(&mut self) -> Result<()> {
        self.paths.clear();
        self.cgroups.clear();
        let lifted = tear_down(&std::mem::take(&mut self.hierarchies), &[]);
        self.drop_lock();
        lifted
    }
}
