//! Migrates threads to the cgroups of the services that they work for, at the request of the kernel
//! side.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use kernel::clock::thread_time;
use kernel::service::migrations::{MigrationSource, Migrations, RETURN_DELAY, ReturnDecision};
use kernel::wire;

use super::super::requests::MigrationReport;
use super::cgroups::ServiceCgroups;
use super::hierarchy::ThreadId;
use crate::output::log_message;

/// Number and cost of migrations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MigrationStats {
    pub moved: u64,
    pub total_ns: u64,
    pub longest_ns: u64,
    /// Threads that were in their cgroup already, had a newer request, or had ended.
    pub needless: u64,
    /// Deferred, because migrations would have used more than a tenth of a processor.
    pub put_off: u64,
    pub failed: u64,
}

impl From<MigrationStats> for MigrationReport {
    fn from(moves: MigrationStats) -> Self {
        let MigrationStats { moved, total_ns, longest_ns, needless, put_off, failed } = moves;
        Self { moved, total_ns, longest_ns, needless, put_off, failed }
    }
}

pub struct Migrator {
    is_over: Arc<AtomicBool>,
    moves: Arc<Mutex<MigrationStats>>,
    thread: Option<JoinHandle<()>>,
}

/// One period of the kernel's quotas (`PERIOD_US`), in which migrations may use `MAX_IN_WINDOW`.
const WINDOW: Duration = Duration::from_millis(100);
const MAX_IN_WINDOW: Duration = Duration::from_millis(10);
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// The time that was spent in the last window.
#[derive(Default)]
struct MigrationBudget {
    spent: VecDeque<(Instant, Duration)>,
    sum: Duration,
}

impl MigrationBudget {
    /// Drops the time that was spent before the window that ends now.
    fn expire(&mut self, now: Instant) {
        while let Some((when, took)) = self.spent.front().copied()
            && now.saturating_duration_since(when) > WINDOW
        {
            self.spent.pop_front();
            self.sum -= took;
        }
    }

    fn is_exhausted(&mut self, now: Instant) -> bool {
        self.expire(now);
        self.sum >= MAX_IN_WINDOW
    }

    fn spend(&mut self, now: Instant, took: Duration) {
        self.expire(now);
        self.spent.push_back((now, took));
        self.sum += took;
    }
}

impl Migrator {
    pub fn start(source: MigrationSource, groups: Arc<RwLock<ServiceCgroups>>) -> Result<Self> {
        let (is_over, moves) =
            (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(MigrationStats::default())));
        let work =
            MigratorThread { groups, is_over: Arc::clone(&is_over), moves: Arc::clone(&moves) };
        let begin = move || {
            if let Err(error) = Migrations::new(source).map(|placements| work.run_loop(&placements))
            {
                log_message(&format!("cannot migrate threads to control groups: {error}"));
            }
        };
        let thread = std::thread::Builder::new().name("tollgate-mover".into()).spawn(begin);
        Ok(Self {
            is_over,
            moves,
            thread: Some(
                thread.context(
                    "cannot start the thread that migrates threads between control groups",
                )?,
            ),
        })
    }

    pub fn moves(&self) -> MigrationStats {
        self.moves.lock().map(|moves| *moves).unwrap_or_default()
    }
}

impl Drop for Migrator {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct MigratorThread {
    groups: Arc<RwLock<ServiceCgroups>>,
    is_over: Arc<AtomicBool>,
    moves: Arc<Mutex<MigrationStats>>,
}

impl MigratorThread {
    fn run_loop(&self, placements: &Migrations) {
        kernel::process::set_realtime();
        let (mut budget, mut swept, mut has_failed) =
            (MigrationBudget::default(), Instant::now(), false);
        let (mut leaving, mut looked) = (Vec::new(), Instant::now());
        while !self.is_over.load(Ordering::Relaxed) {
            let mut asked = placements.wait(if leaving.is_empty() { WINDOW } else { RETURN_DELAY });
            leaving.extend(asked.extract_if(.., |placement| placement.is_return != 0));
            if !leaving.is_empty() && looked.elapsed() >= RETURN_DELAY {
                looked = Instant::now();
                let worked = thread_time();
                leaving.retain(|placement| match placements.return_decision(placement) {
                    ReturnDecision::Now => {
                        asked.push(*placement);
                        false
                    }
                    ReturnDecision::Later => true,
                    ReturnDecision::Never => false,
                });
                budget.spend(looked, thread_time().saturating_sub(worked));
            }
            for placement in asked {
                if let Err(error) = self.migrate_one(placements, &placement, &mut budget)
                    && !std::mem::replace(&mut has_failed, true)
                {
                    log_message(&format!(
                        "{error:#}; `tollgate service limit` counts how many could not be moved"
                    ));
                }
            }
            if swept.elapsed() > SWEEP_EVERY {
                swept = Instant::now();
                // Under the lock, no other thread uses a cgroup that is about to be removed.
                if let Ok(groups) = self.groups.write() {
                    groups.sweep();
                }
            }
        }
    }

    fn migrate_one(
        &self,
        placements: &Migrations,
        placement: &wire::service_migration,
        budget: &mut MigrationBudget,
    ) -> Result<()> {
        let wire::service_migration { tid, began_ns, cgroup_of, has_all_limits, .. } = *placement;
        let (has_all_limits, began, worked) = (has_all_limits != 0, Instant::now(), thread_time());
        // A migration that must take place at once, and one back to the origin, do not depend on
        // the budget.
        if cgroup_of != 0 && !has_all_limits && budget.is_exhausted(began) {
            placements.defer(placement);
            self.note(|moves| moves.put_off += 1);
            return Ok(());
        }
        // The lock keeps the cgroups as they are: a change of the cgroups resets the records of
        // migrations.
        let moved =
            self.groups.read().map_or(Ok(false), |groups| match placements.is_current(placement) {
                true => groups.migrate(ThreadId { tid, began_ns }, cgroup_of, has_all_limits),
                false => Ok(false),
            });
        // Time spent waiting does not count.
        budget.spend(began, thread_time().saturating_sub(worked));
        let ns = began.elapsed().as_nanos() as u64;
        self.note(|moves| match &moved {
            Ok(true) => {
                moves.moved += 1;
                moves.total_ns += ns;
                moves.longest_ns = moves.longest_ns.max(ns);
            }
            Ok(false) => moves.needless += 1,
            Err(_) => moves.failed += 1,
        });
        if moved.is_err() {
            placements.defer(placement);
        }
        moved.map(drop)
    }

    fn note(&self, note: impl FnOnce(&mut MigrationStats)) {
        if let Ok(mut moves) = self.moves.lock() {
            note(&mut moves);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn migrations_use_at_most_a_tenth_of_a_cpu() {
        let (mut budget, began) = (MigrationBudget::default(), Instant::now());
        let step = Duration::from_millis(1);
        for n in 0..10 {
            assert!(!budget.is_exhausted(began + n * step));
            budget.spend(began + n * step, step);
        }
        assert!(budget.is_exhausted(began + WINDOW));
        assert!(!budget.is_exhausted(began + WINDOW + 2 * step));
        budget.spend(began + 3 * WINDOW, step);
        assert_eq!(budget.spent.len(), 1);
    }
}
