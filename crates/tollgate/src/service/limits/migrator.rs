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

/// The number and cost of migrations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MigrationStats {
    pub moved: u64,
    pub total_ns: u64,
    pub longest_ns: u64,
    /// Requests for threads that were in their cgroup already, had a newer request, or had ended.
    pub needless: u64,
    /// Migrations that were deferred, because they would have used more than a tenth of a
    /// processor.
    pub put_off: u64,
    pub failed: u64,
}

impl From<MigrationStats> for MigrationReport {
    fn from(stats: MigrationStats) -> Self {
        let MigrationStats { moved, total_ns, longest_ns, needless, put_off, failed } = stats;
        Self { moved, total_ns, longest_ns, needless, put_off, failed }
    }
}

pub struct Migrator {
    is_over: Arc<AtomicBool>,
    stats: Arc<Mutex<MigrationStats>>,
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
    pub fn start(source: MigrationSource, cgroups: Arc<RwLock<ServiceCgroups>>) -> Result<Self> {
        let (is_over, stats) =
            (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(MigrationStats::default())));
        let work =
            MigratorThread { cgroups, is_over: Arc::clone(&is_over), stats: Arc::clone(&stats) };
        let begin = move || {
            if let Err(error) = Migrations::new(source).map(|migrations| work.run_loop(&migrations))
            {
                log_message(&format!("cannot migrate threads to control groups: {error}"));
            }
        };
        let thread = std::thread::Builder::new().name("tollgate-mover".into()).spawn(begin);
        Ok(Self {
            is_over,
            stats,
            thread: Some(
                thread.context(
                    "cannot start the thread that migrates threads between control groups",
                )?,
            ),
        })
    }

    pub fn stats(&self) -> MigrationStats {
        self.stats.lock().map(|stats| *stats).unwrap_or_default()
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
    cgroups: Arc<RwLock<ServiceCgroups>>,
    is_over: Arc<AtomicBool>,
    stats: Arc<Mutex<MigrationStats>>,
}

impl MigratorThread {
    fn run_loop(&self, migrations: &Migrations) {
        kernel::process::set_realtime();
        let (mut budget, mut swept, mut has_failed) =
            (MigrationBudget::default(), Instant::now(), false);
        let (mut returning, mut checked) = (Vec::new(), Instant::now());
        while !self.is_over.load(Ordering::Relaxed) {
            let mut requests =
                migrations.wait(if returning.is_empty() { WINDOW } else { RETURN_DELAY });
            returning.extend(requests.extract_if(.., |request| request.is_return != 0));
            if !returning.is_empty() && checked.elapsed() >= RETURN_DELAY {
                checked = Instant::now();
                let worked = thread_time();
                returning.retain(|request| match migrations.return_decision(request) {
                    ReturnDecision::Now => {
                        requests.push(*request);
                        false
                    }
                    ReturnDecision::Later => true,
                    ReturnDecision::Never => false,
                });
                budget.spend(checked, thread_time().saturating_sub(worked));
            }
            for request in requests {
                if let Err(error) = self.migrate_one(migrations, &request, &mut budget)
                    && !std::mem::replace(&mut has_failed, true)
                {
                    log_message(&format!(
                        "{error:#}; `tollgate service limit` shows how many migrations failed"
                    ));
                }
            }
            if swept.elapsed() > SWEEP_EVERY {
                swept = Instant::now();
                // Under the lock, no other thread uses a cgroup that is about to be removed.
                if let Ok(cgroups) = self.cgroups.write() {
                    cgroups.sweep();
                }
            }
        }
    }

    fn migrate_one(
        &self,
        migrations: &Migrations,
        request: &wire::service_migration,
        budget: &mut MigrationBudget,
    ) -> Result<()> {
        let wire::service_migration { tid, began_ns, cgroup_of, has_all_limits, .. } = *request;
        let (has_all_limits, began, worked) = (has_all_limits != 0, Instant::now(), thread_time());
        // A migration that must take place at once, and one back to the origin, do not depend on
        // the budget.
        if cgroup_of != 0 && !has_all_limits && budget.is_exhausted(began) {
            migrations.defer(request);
            self.note(|stats| stats.put_off += 1);
            return Ok(());
        }
        // Until the lock is released, the cgroups do not change. A change would reset the records
        // of migrations, so a current request would become outdated.
        let moved =
            self.cgroups.read().map_or(Ok(false), |cgroups| match migrations.is_current(request) {
                true => cgroups.migrate(ThreadId { tid, began_ns }, cgroup_of, has_all_limits),
                false => Ok(false),
            });
        // The time of waiting does not count.
        budget.spend(began, thread_time().saturating_sub(worked));
        let ns = began.elapsed().as_nanos() as u64;
        self.note(|stats| match &moved {
            Ok(true) => {
                stats.moved += 1;
                stats.total_ns += ns;
                stats.longest_ns = stats.longest_ns.max(ns);
            }
            Ok(false) => stats.needless += 1,
            Err(_) => stats.failed += 1,
        });
        if moved.is_err() {
            migrations.defer(request);
        }
        moved.map(drop)
    }

    fn note(&self, note: impl FnOnce(&mut MigrationStats)) {
        if let Ok(mut stats) = self.stats.lock() {
            note(&mut stats);
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
