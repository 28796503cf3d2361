//! Finds and continues processes that the guard has stopped and does not hold any more. There can
//! be such processes, because a stop takes effect later than its signal is sent, and on all threads
//! of a process. Meanwhile, the held thread can have been released, or have ended by its own exit
//! or by another thread's execve.

use std::collections::BTreeMap;

use super::hold_decisions::is_left_stopped;
use super::holds::{HeldProcess, Holds};
use crate::process;

/// A process that the guard may have stopped.
struct Candidate {
    process: HeldProcess,
    /// Its threads, as this process's PID namespace numbers them.
    threads: Vec<u32>,
    /// One of its threads has a mark that the guard has held the process.
    is_marked: bool,
    has_first_thread: bool,
}

impl Candidate {
    /// Whether its threads are stopped. A thread that waits in the kernel (for a device, or for a
    /// child of vfork) stops later, so the next thread is examined.
    fn is_stopped(&self) -> bool {
        let states = self.threads.iter().filter_map(|thread| process::state_of_thread(*thread));
        states.into_iter().find(|state| !matches!(state, 'D' | 'Z' | 'X')) == Some('T')
    }
}

impl Holds<'_> {
    /// Continues the processes of the session that the guard has stopped and does not hold. While
    /// the guard works, this has to be called at least twice a second.
    pub fn continue_left_stopped(&self) {
        if !self.was_any_held() {
            return;
        }
        let candidates = self.candidates();
        self.continue_if_left_stopped(candidates.values());
    }

    /// As [`Self::continue_left_stopped`], for processes that were released just now. Their last
    /// SIGSTOP may have come after the SIGCONT.
    pub fn check_released(&self, released: &[HeldProcess]) {
        let candidates = self.candidates();
        self.continue_if_left_stopped(
            released.iter().filter_map(|process| candidates.get(&process.tgid)),
        );
    }

    fn continue_if_left_stopped<'c>(&self, candidates: impl Iterator<Item = &'c Candidate>) {
        for Candidate { process, .. } in candidates.filter(|candidate| candidate.is_stopped()) {
            let is_held = self.held_slots(process).next().is_some();
            if is_left_stopped(true, is_held, self.foreign_stop(process.tgid)) {
                self.continue_process(process);
            }
        }
    }

    /// The processes of the session that the guard has held, by their numbers in the initial PID
    /// namespace.
    fn candidates(&self) -> BTreeMap<u32, Candidate> {
        let mut candidates = BTreeMap::new();
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
            });
            candidate.threads.push(thread.visible_pid);
            candidate.is_marked |= self.guard_threads.read(slot).ever_held != 0;
            candidate.has_first_thread |= thread.pid == thread.tgid;
        }
        candidates.retain(|_, candidate| {
            candidate.is_marked || are_orphans_marked && !candidate.has_first_thread
        });
        candidates
    }
}
