//! Finds and continues processes that the guard has stopped and does not hold any more. There can
//! be such processes, because a stop takes effect later than its signal is sent, and on all threads
//! of a process. Meanwhile, the held thread can have been released, or have ended by its own exit
//! or by another thread's execve.
//!
//! Parents of held processes are such processes, too, if they have stopped themselves with their
//! children (bpf/guard/parents.bpf.h).

use std::collections::{BTreeMap, BTreeSet};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::hold_decisions::{is_left_stopped, is_stopped_with_child, keeps_parent_stopped};
use super::holds::{HeldProcess, Holds};
use crate::clock::now_ns;
use crate::{process, wire};

/// At the end of a guard, how long it waits for a parent that may be about to stop itself. The
/// parent has to return from waitpid() and to send a signal, but may wait for a processor.
const MAX_REACTION: Duration = Duration::from_millis(200);

/// A process that the guard may have stopped.
struct Candidate {
    process: HeldProcess,
    /// Its threads, as this process's PID namespace numbers them.
    threads: Vec<u32>,
    /// One of its threads has a mark that the guard has held the process.
    is_marked: bool,
    has_first_thread: bool,
    /// It has stopped itself with a child.
    is_with_child: bool,
}

impl Candidate {
    /// Whether its threads are stopped. A thread that waits in the kernel (for a device, or for a
    /// child of vfork) stops later, so the next thread is examined.
    fn is_stopped(&self) -> bool {
        let states = self.threads.iter().filter_map(|thread| process::state_of_thread(*thread));
        states.into_iter().find(|state| !matches!(state, 'D' | 'Z' | 'X')) == Some('T')
    }

    fn is_running(&self) -> bool {
        self.threads.iter().any(|thread| process::state_of_thread(*thread) == Some('R'))
    }

    fn is_parent_of(&self, other: &Self) -> bool {
        process::parent_of(other.process.thread).is_some_and(|it| self.threads.contains(&it))
    }
}

impl Holds<'_> {
    /// Continues the processes of the session that the guard has stopped and does not hold. While
    /// the guard works, this has to be called at least twice a second.
    pub fn continue_left_stopped(&self) {
        if !self.was_any_held() {
            return;
        }
        self.continue_if_left_stopped(&self.candidates(), |_| true);
    }

    /// As [`Self::continue_left_stopped`], for a guard that ends. A parent may have seen that its
    /// child was stopped, and may stop itself only now.
    pub(super) fn continue_left_stopped_at_end(&self) {
        let began = Instant::now();
        let mut seen_asleep = BTreeSet::new();
        while self.was_any_held() {
            let candidates = self.candidates();
            self.continue_if_left_stopped(&candidates, |_| true);
            let asleep = candidates.values().filter(|candidate| !candidate.is_running());
            seen_asleep.extend(asleep.map(|candidate| candidate.process.tgid));
            if candidates.keys().all(|tgid| seen_asleep.contains(tgid))
                || began.elapsed() > MAX_REACTION
            {
                return;
            }
            sleep(Duration::from_millis(1));
        }
    }

    /// As [`Self::continue_left_stopped`], for processes that were released just now, and for
    /// parents that have stopped themselves with them. Their last SIGSTOP may have come after the
    /// SIGCONT.
    pub fn check_released(&self, released: &[HeldProcess]) {
        let released: BTreeSet<_> = released.iter().map(|process| process.tgid).collect();
        self.continue_if_left_stopped(&self.candidates(), |candidate| {
            candidate.is_with_child || released.contains(&candidate.process.tgid)
        });
    }

    fn continue_if_left_stopped(
        &self,
        candidates: &BTreeMap<u32, Candidate>,
        is_selected: impl Fn(&Candidate) -> bool,
    ) {
        let selected = || candidates.values().filter(|candidate| is_selected(candidate));
        let mut stopped: Vec<_> = selected().filter(|candidate| candidate.is_stopped()).collect();
        // A child that is a parent itself has to be continued first, so this repeats until none is
        // left.
        loop {
            let before = stopped.len();
            stopped.retain(|candidate| !self.continue_candidate(candidate, candidates));
            if stopped.len() == before {
                return;
            }
        }
    }

    /// Continues a stopped process if it was left stopped. Returns whether it was.
    fn continue_candidate(
        &self,
        candidate: &Candidate,
        candidates: &BTreeMap<u32, Candidate>,
    ) -> bool {
        let process = &candidate.process;
        let is_held = |process: &HeldProcess| self.held_slots(process).next().is_some();
        let foreign_stop = self.foreign_stop(process.tgid);
        let keeps_it_stopped = |child: &Candidate| {
            keeps_parent_stopped(is_held(&child.process), self.foreign_stop(child.process.tgid))
                && candidate.is_parent_of(child)
        };
        let is_left = is_left_stopped(true, is_held(process), foreign_stop)
            && (process.is_terminating
                || !is_stopped_with_child(foreign_stop)
                || !candidates.values().any(keeps_it_stopped));
        if is_left {
            self.continue_process(process);
        }
        is_left
    }

    /// The processes of the session that the guard has held, and their parents, by their numbers in
    /// the initial PID namespace.
    fn candidates(&self) -> BTreeMap<u32, Candidate> {
        let mut candidates = BTreeMap::new();
        let now = (now_ns() >> wire::GUARD_GRACE_SHIFT) as u32;
        // The gate marks slot 0 when it holds a process whose first thread has ended.
        let are_orphans_marked = self.guard_threads.read(0).ever_held != 0;
        for slot in self.slots() {
            let thread = self.threads.read(slot);
            if !self.is_own(&thread) {
                continue;
            }
            let candidate = candidates.entry(thread.tgid).or_insert_with(|| Candidate {
                process: HeldProcess {
                    tgid: thread.tgid,
                    thread: thread.visible_pid,
                    profile: thread.guard.profile_slot.into(),
                    until_ns: 0,
                    is_terminating: false,
                },
                threads: Vec::new(),
                is_marked: false,
                has_first_thread: false,
                is_with_child: false,
            });
            let cold = self.guard_threads.read(slot);
            candidate.threads.push(thread.visible_pid);
            candidate.process.is_terminating |= now < cold.grace_until;
            candidate.is_marked |= cold.ever_held != 0;
            candidate.is_with_child |= is_stopped_with_child(cold.foreign_stop);
            candidate.has_first_thread |= thread.pid == thread.tgid;
        }
        candidates.retain(|_, candidate| {
            candidate.is_marked || are_orphans_marked && !candidate.has_first_thread
        });
        candidates
    }
}
