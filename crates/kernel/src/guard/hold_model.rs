//! A model of holds, which is explored in every order of events: a process with two threads, the
//! kernel's stops, the gate, a user who stops and continues the process, and the one who releases
//! it: the guard's process or, when that has died, its watchdog or a later command.
//!
//! Each step does what the code does between two moments at which others may act. The decisions are
//! those of the code (`hold_decisions.rs`); the steps have the names of the functions that they
//! stand for. From each reachable state, all that is under way is brought to its end. Then nobody
//! may be stopped whom the user has not stopped, and nobody may run whom the user has stopped.
//!
//! With `has_parent`, the process has a parent that stops itself when it sees that the process was
//! stopped, and that continues the process when the parent has been continued.
//!
//! A fork is not in the model: it fails while a stop is pending, and a child shares no stop with
//! its parent. Nor is vfork: its parent stops when the child has executed a program or has ended.

use std::collections::HashSet;

use super::hold_decisions::{
    ends_with, is_due, is_left_stopped, is_stopped_with_child, is_to_be_continued,
    keeps_parent_stopped, to_be_repeated,
};
use crate::wire;

const THREADS: usize = 2;
const CERTAIN: u8 = wire::FOREIGN_STOP_CERTAIN as u8;
const WITH_CHILD: u8 = wire::FOREIGN_STOP_WITH_CHILD as u8;
const SIGSTOP: u8 = libc::SIGSTOP as u8;
const SIGTSTP: u8 = libc::SIGTSTP as u8;

/// What of the code is changed, to show that the model finds what would then go wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Change {
    None,
    /// Released processes are not checked, and there is no sweep.
    NoSweep,
    /// A release clears the flags of all threads, also of holds that have begun since.
    ClearsLaterHoldsWithoutSweep,
    /// A release sends its SIGCONT although another sender has stopped the process.
    IgnoresForeignStops,
    /// An execve leaves no mark on the thread.
    ExecveLeavesNoMark,
    /// A thread that ended while it was held still counts, because its slot keeps the flag.
    CountsEndedThreads,
    /// A stop of a parent by itself always counts as one by another process.
    DistrustsParents,
    /// A parent's stop is a reaction only while the child is held.
    ForgetsReactions,
}

/// What happens in an exploration, besides holds and releases.
#[derive(Clone, Copy)]
struct Scope {
    change: Change,
    /// SIGTSTP stops the process; otherwise its process group is orphaned.
    has_job_control: bool,
    holds: u8,
    ends: u8,
    user_stop: Option<u8>,
    user_continues: u8,
    deaths: u8,
    operator_holds: u8,
    has_parent: bool,
}

/// What a parent does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
enum ParentStep {
    /// In waitpid() with WUNTRACED.
    #[default]
    Waits,
    /// It has returned from waitpid(), and is about to stop itself.
    SawStop,
    Stopped,
    /// It has been continued, and is about to continue the child.
    Continued,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
struct Parent {
    step: ParentStep,
    /// The child has stopped since the parent last saw that, and was not continued.
    has_news: bool,
    /// `guard_reactions`; the time is not in the model.
    is_reaction_expected: bool,
    foreign_stop: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
struct Thread {
    is_alive: bool,
    /// In `guard_respond`: the flag is set, and the SIGSTOP not sent.
    is_between: bool,
    is_held: bool,
    until: u8,
    is_marked: bool,
    foreign_stop: u8,
    /// A SIGSTOP by the gate, in an interrupt that has not come yet.
    in_flight: bool,
    /// A SIGSTOP to this thread.
    pending: bool,
    /// JOBCTL_STOP_PENDING
    has_to_stop: bool,
    is_stopped: bool,
}

/// Where the one who releases is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Step {
    Idle,
    Clear {
        thread: usize,
        decided: u8,
    },
    CheckHeld,
    ReadForeign,
    Continue,
    ReadAgain,
    Repeat {
        signal: u8,
    },
    ReadLast,
    /// `undo_pending_stops`
    Wait,
    SweepRead,
    SweepDecide,
    SweepParent,
    ContinueParent,
    /// `hold`: the flags are set.
    OperatorStop,
    OperatorCheck,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    threads: [Thread; THREADS],
    /// The process's first thread. It may have ended.
    leader: usize,
    is_slot_0_marked: bool,
    was_any_held: bool,
    /// Pending for the process: SIGSTOP, SIGTSTP.
    pending: [bool; 2],
    group_signal: u8,
    step: Step,
    /// The guard's process has died: all holds end, and none begins after the wait.
    is_ending: bool,
    has_waited: bool,
    is_undoing: bool,
    sigconts: bool,
    next_until: u8,
    holds: u8,
    ends: u8,
    user_stop: Option<u8>,
    user_continues: u8,
    deaths: u8,
    operator_holds: u8,
    is_user_stopped: bool,
    has_died: bool,
    parent: Option<Parent>,
}

impl State {
    fn new(scope: &Scope) -> Self {
        Self {
            threads: [Thread { is_alive: true, ..Default::default() }; THREADS],
            leader: 0,
            is_slot_0_marked: false,
            was_any_held: false,
            pending: [false; 2],
            group_signal: 0,
            step: Step::Idle,
            is_ending: false,
            has_waited: false,
            is_undoing: false,
            sigconts: false,
            next_until: 1,
            holds: scope.holds,
            ends: scope.ends,
            user_stop: scope.user_stop,
            user_continues: scope.user_continues,
            deaths: scope.deaths,
            operator_holds: scope.operator_holds,
            is_user_stopped: false,
            has_died: false,
            parent: scope.has_parent.then(Parent::default),
        }
    }

    fn alive(&mut self) -> impl Iterator<Item = &mut Thread> {
        self.threads.iter_mut().filter(|thread| thread.is_alive)
    }

    fn is_any(&self, is: impl Fn(&Thread) -> bool) -> bool {
        self.threads.iter().any(|thread| thread.is_alive && is(thread))
    }

    fn foreign_stop(&self) -> u8 {
        let alive = self.threads.iter().filter(|thread| thread.is_alive);
        alive.map(|thread| thread.foreign_stop).max().unwrap_or(0)
    }

    /// The gate notes a stop by another process (`guard_foreign_stop`).
    fn note_foreign(&mut self, value: u8) {
        self.alive().for_each(|thread| thread.foreign_stop = thread.foreign_stop.max(value));
    }

    /// kernel/signal.c, `prepare_signal` of SIGCONT
    fn sigcont(&mut self) {
        self.pending = [false; 2];
        for thread in self.alive() {
            (thread.pending, thread.has_to_stop, thread.is_stopped) = (false, false, false);
        }
        self.parent.iter_mut().for_each(|parent| parent.has_news = false);
    }

    /// `guard_expect_reaction`
    fn expect_reaction(&mut self) {
        self.parent.iter_mut().for_each(|parent| parent.is_reaction_expected = true);
    }

    /// A process other than Tollgate continues the process (`guard_sig_generate`).
    fn foreign_sigcont(&mut self) {
        self.alive().for_each(|thread| thread.foreign_stop = 0);
        self.sigcont();
        // guard_sigcont
        let held = self.alive().find(|thread| thread.is_held);
        let is_any_held = held.map(|held| held.in_flight = true).is_some();
        self.sigconts |= is_any_held;
    }

    /// The next step of the parent, if it has one.
    fn parent_acts(&self, scope: &Scope) -> Option<Self> {
        let mut next = self.clone();
        let (is_held, foreign_stop) = (self.is_any(|thread| thread.is_held), self.foreign_stop());
        let parent = next.parent.as_mut()?;
        match parent.step {
            ParentStep::Waits if parent.has_news => {
                (parent.step, parent.has_news) = (ParentStep::SawStop, false);
            }
            ParentStep::SawStop => {
                // guard_foreign_stop, is_reaction
                let is_expected =
                    parent.is_reaction_expected && scope.change != Change::ForgetsReactions;
                let is_reaction = foreign_stop == 0
                    && (is_held || is_expected)
                    && scope.change != Change::DistrustsParents;
                parent.foreign_stop |= if is_reaction { WITH_CHILD } else { CERTAIN | SIGSTOP };
                parent.step = ParentStep::Stopped;
            }
            ParentStep::Continued => {
                parent.step = ParentStep::Waits;
                next.foreign_sigcont();
            }
            ParentStep::Waits | ParentStep::Stopped => return None,
        }
        Some(next)
    }

    fn send_stop(&mut self, signal: u8) {
        self.pending[usize::from(signal == SIGTSTP)] = true;
    }

    fn stop(&mut self, index: usize) {
        let signal = self.group_signal;
        let thread = &mut self.threads[index];
        (thread.has_to_stop, thread.is_stopped) = (false, true);
        // guard_note_stop
        if signal == SIGTSTP && thread.foreign_stop != 0 {
            thread.foreign_stop = CERTAIN | SIGTSTP;
        }
        // do_notify_parent_cldstop
        let has_news = !self.is_any(|thread| !thread.is_stopped);
        self.parent.iter_mut().for_each(|parent| parent.has_news |= has_news);
    }

    fn has_signal(&self, index: usize) -> bool {
        let thread = &self.threads[index];
        let may_act = thread.is_alive && !thread.is_stopped && !thread.is_between;
        may_act && (thread.pending || thread.has_to_stop || self.pending.contains(&true))
    }

    /// kernel/signal.c, `get_signal`
    fn check_signals(&mut self, index: usize, scope: &Scope) {
        let signal = if self.threads[index].has_to_stop {
            return self.stop(index);
        } else if std::mem::take(&mut self.threads[index].pending)
            || std::mem::take(&mut self.pending[0])
        {
            SIGSTOP
        } else {
            self.pending[1] = false;
            SIGTSTP
        };
        if signal == SIGTSTP && !scope.has_job_control {
            return;
        }
        self.group_signal = signal;
        let running = self.alive().filter(|thread| !thread.is_stopped);
        running.for_each(|thread| thread.has_to_stop = true);
        self.stop(index);
    }

    /// `guard_respond`, until the flag is set
    fn begin_hold(&mut self, index: usize) {
        self.holds -= 1;
        self.was_any_held = true;
        match self.threads[self.leader].is_alive {
            true => self.threads[self.leader].is_marked = true,
            false => self.is_slot_0_marked = true,
        }
        let thread = &mut self.threads[index];
        (thread.is_held, thread.is_marked, thread.is_between) = (true, true, true);
        thread.until = self.next_until;
        self.next_until += 1;
    }

    /// The slot of the thread keeps the flag of its hold.
    fn exit(&mut self, index: usize) {
        let is_held = self.threads[index].is_held;
        self.threads[index] = Thread { is_held, ..Default::default() };
    }

    /// fs/exec.c, `de_thread`; `guard_exec`
    fn execve(&mut self, index: usize, scope: &Scope) {
        (0..THREADS).filter(|other| *other != index).for_each(|other| self.exit(other));
        self.leader = index;
        if self.was_any_held && scope.change != Change::ExecveLeavesNoMark {
            self.threads[index].is_marked = true;
        }
    }

    fn deliver(&mut self) {
        for thread in &mut self.threads {
            if std::mem::take(&mut thread.in_flight) && thread.is_alive {
                thread.pending = true;
            }
        }
    }

    fn is_candidate(&self) -> bool {
        self.is_any(|thread| thread.is_marked)
            || self.is_slot_0_marked && !self.threads[self.leader].is_alive
    }

    /// The next step of the one who releases. In `Idle`, it begins a release.
    fn advance(&mut self, scope: &Scope) {
        let counts_ended = scope.change == Change::CountsEndedThreads;
        let is_counted = |thread: &Thread| thread.is_held && (thread.is_alive || counts_ended);
        let is_held = self.threads.iter().any(is_counted);
        let ignores = scope.change == Change::IgnoresForeignStops;
        let sweeps =
            !matches!(scope.change, Change::NoSweep | Change::ClearsLaterHoldsWithoutSweep);
        let after_continue = match (self.is_undoing, self.is_ending || self.sigconts) {
            (false, true) => Step::Wait,
            _ if sweeps && self.is_ending => Step::SweepRead,
            _ => Step::Idle,
        };
        self.step = match self.step {
            Step::Idle => {
                let held = self.threads.iter().filter(|thread| thread.is_alive && thread.is_held);
                let decided = held.map(|thread| thread.until).max().unwrap_or(0);
                self.is_undoing = false;
                assert!(is_due(decided.into(), false, u64::MAX));
                Step::Clear { thread: 0, decided }
            }
            Step::Clear { thread, decided } => {
                let it = &mut self.threads[thread];
                let clears_all = scope.change == Change::ClearsLaterHoldsWithoutSweep;
                if it.is_alive && (clears_all || ends_with(it.until.into(), decided.into(), false))
                {
                    it.is_held = false;
                }
                match thread + 1 {
                    THREADS => Step::CheckHeld,
                    next => Step::Clear { thread: next, decided },
                }
            }
            Step::CheckHeld if is_held => after_continue,
            Step::CheckHeld => Step::ReadForeign,
            Step::ReadForeign if ignores || is_to_be_continued(self.foreign_stop()) => {
                Step::Continue
            }
            Step::ReadForeign => after_continue,
            Step::Continue => {
                self.expect_reaction();
                self.sigcont();
                Step::ReadAgain
            }
            Step::ReadAgain => match to_be_repeated(self.foreign_stop()) {
                Some(signal) if !ignores => Step::Repeat { signal: signal as u8 },
                _ => after_continue,
            },
            Step::Repeat { signal } => {
                self.send_stop(signal);
                Step::ReadLast
            }
            Step::ReadLast if self.foreign_stop() != 0 => after_continue,
            Step::ReadLast => Step::Continue,
            Step::Wait => {
                self.has_waited |= self.is_ending;
                self.is_undoing = true;
                self.sigconts = false;
                self.deliver();
                Step::CheckHeld
            }
            Step::SweepRead if self.is_any(|thread| thread.is_stopped) => Step::SweepDecide,
            Step::SweepRead => Step::SweepParent,
            Step::SweepDecide => {
                // A sweep at the end of a guard is not followed by another one.
                (self.is_undoing, self.sigconts) = (true, false);
                let is_left = is_left_stopped(true, is_held, self.foreign_stop());
                match self.is_candidate() && is_left {
                    true => Step::ReadForeign,
                    false => Step::SweepParent,
                }
            }
            Step::SweepParent => {
                let foreign_stop = self.foreign_stop();
                let is_to_be_continued = self.parent.is_some_and(|parent| {
                    parent.step == ParentStep::Stopped
                        && is_left_stopped(true, false, parent.foreign_stop)
                        && !(is_stopped_with_child(parent.foreign_stop)
                            && keeps_parent_stopped(is_held, foreign_stop))
                });
                if is_to_be_continued { Step::ContinueParent } else { Step::Idle }
            }
            Step::ContinueParent => {
                let parent = self.parent.as_mut().expect("the sweep has found it");
                (parent.foreign_stop, parent.step) = (0, ParentStep::Continued);
                Step::Idle
            }
            Step::OperatorStop => {
                self.expect_reaction();
                self.send_stop(SIGSTOP);
                Step::OperatorCheck
            }
            Step::OperatorCheck if is_held => Step::Idle,
            Step::OperatorCheck => Step::ReadForeign,
        };
    }

    /// `hold`, until the flags are set
    fn begin_operator_hold(&mut self) {
        self.operator_holds -= 1;
        self.was_any_held = true;
        let until = self.next_until;
        self.next_until += 1;
        for thread in self.alive() {
            (thread.is_held, thread.is_marked, thread.until) = (true, true, until);
        }
        self.step = Step::OperatorStop;
    }

    fn user_acts(&mut self, stop: Option<u8>, scope: &Scope) {
        if let Some(signal) = stop {
            self.user_stop = None;
            self.note_foreign(if signal == SIGSTOP { CERTAIN | signal } else { signal });
            self.send_stop(signal);
            self.is_user_stopped = signal == SIGSTOP || scope.has_job_control;
            return;
        }
        self.user_continues -= 1;
        self.is_user_stopped = false;
        self.foreign_sigcont();
    }

    /// All states that may follow.
    fn successors(&self, scope: &Scope) -> Vec<Self> {
        let mut all = Vec::new();
        let mut add = |act: &dyn Fn(&mut Self)| {
            let mut next = self.clone();
            act(&mut next);
            all.push(next);
        };
        for (index, thread) in self.threads.iter().enumerate() {
            if thread.in_flight {
                add(&|next| {
                    next.threads[index].in_flight = false;
                    next.threads[index].pending = thread.is_alive;
                });
            }
            if !thread.is_alive || thread.is_stopped {
                continue;
            }
            if thread.is_between {
                // Before 6.14, the SIGSTOP is sent at once.
                for is_immediate in [false, true] {
                    add(&|next| {
                        next.expect_reaction();
                        next.threads[index].is_between = false;
                        next.threads[index].in_flight |= !is_immediate;
                        next.threads[index].pending |= is_immediate;
                    });
                }
                continue;
            }
            if self.has_signal(index) {
                add(&|next| next.check_signals(index, scope));
            }
            if self.holds > 0 && !self.has_waited {
                add(&|next| next.begin_hold(index));
            }
            if self.ends > 0 {
                add(&|next| {
                    next.ends -= 1;
                    next.exit(index);
                });
                add(&|next| {
                    next.ends -= 1;
                    next.execve(index, scope);
                });
            }
        }
        if self.step != Step::Idle || self.is_any(|thread| thread.is_held) || self.is_ending {
            add(&|next| next.advance(scope));
        }
        if self.step == Step::Idle && !self.is_ending {
            if self.operator_holds > 0 {
                add(&Self::begin_operator_hold);
            }
            if scope.change != Change::NoSweep && self.was_any_held {
                add(&|next| next.step = Step::SweepRead);
            }
        }
        if let Some(next) = self.parent_acts(scope) {
            add(&|state| *state = next.clone());
        }
        if self.user_stop.is_some() {
            add(&|next| next.user_acts(next.user_stop, scope));
        }
        if self.user_continues > 0 {
            add(&|next| next.user_acts(None, scope));
        }
        if self.deaths > 0 {
            add(&|next| {
                next.deaths -= 1;
                (next.is_ending, next.has_died, next.step) = (true, true, Step::Idle);
            });
        }
        all
    }

    /// Brings everything that is under way to its end: all interrupts come, all threads reach their
    /// stops, and all holds end. In between, the one who releases sweeps as often as it does in a
    /// second.
    fn settle(mut self, scope: &Scope) -> Self {
        let act = |state: &mut Self| {
            for index in 0..THREADS {
                let thread = &mut state.threads[index];
                let was_between = std::mem::take(&mut thread.is_between);
                thread.in_flight |= was_between && thread.is_alive;
                if was_between {
                    state.expect_reaction();
                }
            }
            loop {
                state.deliver();
                while let Some(index) = (0..THREADS).find(|index| state.has_signal(*index)) {
                    state.check_signals(index, scope);
                }
                let Some(next) = state.parent_acts(scope) else { return };
                *state = next;
            }
        };
        let finish = |state: &mut Self| {
            while state.step != Step::Idle {
                state.advance(scope);
            }
        };
        finish(&mut self);
        for _ in 0..3 {
            act(&mut self);
            if self.is_ending || self.is_any(|thread| thread.is_held) {
                self.advance(scope);
                finish(&mut self);
            }
            act(&mut self);
            if !matches!(scope.change, Change::NoSweep | Change::ClearsLaterHoldsWithoutSweep) {
                self.step = Step::SweepRead;
                finish(&mut self);
                act(&mut self);
            }
        }
        self
    }

    fn is_right(&self) -> bool {
        let is_stopped = self.is_any(|thread| thread.is_stopped);
        // Who dies between a SIGCONT and the repetition of a user's stop leaves the process
        // running.
        let may_run = !self.is_user_stopped || self.has_died || !self.is_any(|_| true);
        let is_parent_right =
            self.parent.is_none_or(|parent| parent.step == ParentStep::Waits && !parent.has_news);
        is_parent_right && if self.is_user_stopped { is_stopped || may_run } else { !is_stopped }
    }
}

/// Explores all states. Returns their number, or a state that ends wrongly.
fn explore(scope: &Scope) -> Result<usize, Box<(State, State)>> {
    let mut seen = HashSet::from([State::new(scope)]);
    let mut open = vec![State::new(scope)];
    while let Some(state) = open.pop() {
        let settled = state.clone().settle(scope);
        if !settled.is_right() {
            return Err(Box::new((state, settled)));
        }
        for next in state.successors(scope) {
            if seen.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    Ok(seen.len())
}

const SMALL: Scope = Scope {
    change: Change::None,
    has_job_control: true,
    holds: 2,
    ends: 1,
    user_stop: None,
    user_continues: 0,
    deaths: 0,
    operator_holds: 0,
    has_parent: false,
};

#[track_caller]
fn is_right(scope: &Scope) {
    match explore(scope) {
        Ok(states) => println!("{states} states"),
        Err(wrong) => panic!("{:#?}\nends as {:#?}", wrong.0, wrong.1),
    }
}

#[test]
fn no_order_of_events_leaves_a_process_held() {
    is_right(&Scope { holds: 3, ends: 2, ..SMALL });
    is_right(&Scope { deaths: 2, ..SMALL });
    is_right(&Scope { holds: 1, operator_holds: 1, deaths: 1, ..SMALL });
    is_right(&Scope { user_continues: 1, ..SMALL });
    is_right(&Scope { user_continues: 1, holds: 1, deaths: 1, ..SMALL });
}

#[test]
fn no_order_of_events_leaves_a_parent_stopped() {
    let scope = Scope { has_parent: true, ..SMALL };
    is_right(&scope);
    is_right(&Scope { holds: 1, deaths: 1, ..scope });
    is_right(&Scope { holds: 0, operator_holds: 2, ..scope });
    for change in [Change::DistrustsParents, Change::ForgetsReactions] {
        assert!(explore(&Scope { change, ..scope }).is_err(), "{change:?}");
    }
}

#[test]
fn a_user_stops_and_continues_a_held_process() {
    for user_stop in [Some(SIGSTOP), Some(SIGTSTP)] {
        for has_job_control in [true, false] {
            let scope = Scope { user_stop, has_job_control, holds: 1, user_continues: 1, ..SMALL };
            is_right(&scope);
            is_right(&Scope { deaths: 1, ends: 0, ..scope });
            is_right(&Scope { holds: 2, user_continues: 2, deaths: 1, ..scope });
            is_right(&Scope { operator_holds: 1, ..scope });
        }
    }
}

/// The model finds what goes wrong without each part of the mechanism.
#[test]
fn each_part_is_needed() {
    for change in [
        Change::NoSweep,
        Change::ClearsLaterHoldsWithoutSweep,
        Change::ExecveLeavesNoMark,
        Change::CountsEndedThreads,
    ] {
        assert!(explore(&Scope { change, ..SMALL }).is_err(), "{change:?}");
    }
    let user_stop = Some(SIGSTOP);
    let scope = Scope { change: Change::IgnoresForeignStops, user_stop, ends: 0, ..SMALL };
    assert!(explore(&scope).is_err());
}
