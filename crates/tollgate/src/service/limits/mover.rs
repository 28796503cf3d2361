//! Moves threads to the control groups of the services that they work for, as the kernel side asks for it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use kernel::clock::thread_time;
use kernel::placements::{LEAVES_AFTER, Leaves, Placements, Source};
use kernel::wire;

use super::groups::Groups;
use super::hierarchy::Thread;
use crate::daemon::control::tell;

/// What moves have cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moves {
    pub moved: u64,
    pub total_ns: u64,
    pub longest_ns: u64,
    /// Threads that were where they are to be, were asked for elsewhere by then, or gone.
    pub needless: u64,
    /// More than a processor's tenth would have gone into moving.
    pub put_off: u64,
    pub failed: u64,
}

pub struct Mover {
    is_over: Arc<AtomicBool>,
    moves: Arc<Mutex<Moves>>,
    thread: Option<JoinHandle<()>>,
}

/// The kernel's time for `PERIOD_US` of quotas: of what came in it, so much may be spent on moves.
const WINDOW: Duration = Duration::from_millis(100);
const MOST_IN_WINDOW: Duration = Duration::from_millis(10);
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// How much was spent in the last window.
#[derive(Default)]
struct Budget {
    spent: VecDeque<(Instant, Duration)>,
    sum: Duration,
}

impl Budget {
    /// What was spent before the window that ends now counts no more.
    fn forget_before(&mut self, now: Instant) {
        while let Some((when, took)) = self.spent.front().copied()
            && now.saturating_duration_since(when) > WINDOW
        {
            self.spent.pop_front();
            self.sum -= took;
        }
    }

    fn is_spent(&mut self, now: Instant) -> bool {
        self.forget_before(now);
        self.sum >= MOST_IN_WINDOW
    }

    fn spend(&mut self, now: Instant, took: Duration) {
        self.forget_before(now);
        self.spent.push_back((now, took));
        self.sum += took;
    }
}

impl Mover {
    pub fn start(source: Source, groups: Arc<RwLock<Groups>>) -> Result<Self> {
        let (is_over, moves) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Moves::default())));
        let work = Work { groups, is_over: Arc::clone(&is_over), moves: Arc::clone(&moves) };
        let begin = move || {
            if let Err(error) = Placements::new(source).map(|placements| work.go_on(&placements)) {
                tell(&format!("no thread is moved to a control group: {error}"));
            }
        };
        let thread = std::thread::Builder::new().name("tollgate-mover".into()).spawn(begin);
        Ok(Self { is_over, moves, thread: Some(thread.context("cannot start a thread that moves others")?) })
    }

    pub fn moves(&self) -> Moves {
        self.moves.lock().map(|moves| *moves).unwrap_or_default()
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Work {
    groups: Arc<RwLock<Groups>>,
    is_over: Arc<AtomicBool>,
    moves: Arc<Mutex<Moves>>,
}

impl Work {
    fn go_on(&self, placements: &Placements) {
        kernel::process::run_before_others();
        let (mut budget, mut swept, mut has_failed) = (Budget::default(), Instant::now(), false);
        let (mut leaving, mut looked) = (Vec::new(), Instant::now());
        while !self.is_over.load(Ordering::Relaxed) {
            let mut asked = placements.wait(if leaving.is_empty() { WINDOW } else { LEAVES_AFTER });
            leaving.extend(asked.extract_if(.., |placement| placement.leaves != 0));
            if !leaving.is_empty() && looked.elapsed() >= LEAVES_AFTER {
                looked = Instant::now();
                let worked = thread_time();
                leaving.retain(|placement| match placements.leaves(placement) {
                    Leaves::Now => {
                        asked.push(*placement);
                        false
                    }
                    Leaves::Later => true,
                    Leaves::Never => false,
                });
                budget.spend(looked, thread_time().saturating_sub(worked));
            }
            for placement in asked {
                if let Err(error) = self.one(placements, &placement, &mut budget)
                    && !std::mem::replace(&mut has_failed, true)
                {
                    tell(&format!("{error:#}; `tollgate service limit` counts how many could not be moved"));
                }
            }
            if swept.elapsed() > SWEEP_EVERY {
                swept = Instant::now();
                // Nobody else puts a thread in a group that is made for it meanwhile.
                if let Ok(groups) = self.groups.write() {
                    groups.sweep();
                }
            }
        }
    }

    fn one(
        &self,
        placements: &Placements,
        placement: &wire::service_placement,
        budget: &mut Budget,
    ) -> Result<()> {
        let wire::service_placement { tid, began_ns, place, is_own, .. } = *placement;
        let (is_own, began, worked) = (is_own != 0, Instant::now(), thread_time());
        // Who has to be there from its first moment is, whatever it costs, and nobody stays where it does not belong.
        if place != 0 && !is_own && budget.is_spent(began) {
            placements.put_off(placement);
            self.note(|moves| moves.put_off += 1);
            return Ok(());
        }
        // While the groups are what they are: who changes them forgets who was placed.
        let moved = self.groups.read().map_or(Ok(false), |groups| match placements.is_meant(placement) {
            true => groups.place(Thread { tid, began_ns }, place, is_own),
            false => Ok(false),
        });
        // What it waits for is not its work.
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
            placements.put_off(placement);
        }
        moved.map(drop)
    }

    fn note(&self, note: impl FnOnce(&mut Moves)) {
        if let Ok(mut moves) = self.moves.lock() {
            note(&mut moves);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_spent_on_moves_than_a_tenth() {
        let (mut budget, began) = (Budget::default(), Instant::now());
        let step = Duration::from_millis(1);
        for n in 0..10 {
            assert!(!budget.is_spent(began + n * step));
            budget.spend(began + n * step, step);
        }
        assert!(budget.is_spent(began + WINDOW));
        assert!(!budget.is_spent(began + WINDOW + 2 * step));
        budget.spend(began + 3 * WINDOW, step);
        assert_eq!(budget.spent.len(), 1);
    }
}
