//! Holds and releases processes, as the policy and an operator demand.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use kernel::clock::now_ns;
use kernel::gate::Gate;
use kernel::guard::holds::HeldProcess;
use kernel::guard::holds::{self, Holds};
use kernel::process::{self, has_terminal, is_stopped, session_of};
use kernel::signals::was_termination_requested;
use kernel::wire;

use super::activity::held_ns;
use super::placement::UnitAndContainer;
use super::policy::Policy;
use super::program_table::ProgramTable;
use super::requests::HeldProcessReport;
use super::resolve::{is_in_scope, split_scope};
use super::tracked_program::TrackedProgram;
use super::training_stops::TrainingStops;
use super::watchdog::HoldWatchdog;
use crate::format::{count, number_of, printable};
use crate::output::print_message;

/// A hold of at least this length is printed, because a user at a terminal cannot see its reason.
const REPORTED_HOLD_NS: u64 = 1_000_000_000;

/// How often the guard prints that it can hold no further process, or that others continue those
/// that it holds.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// After this many SIGCONTs by others, a message is printed. A single one shows no persistent
/// sender.
const REPORTED_CONTINUES: u64 = 20;

/// When a released process is checked: by then, the stops that were on their way have taken effect.
const RELEASE_CHECK_NS: u64 = 1_000_000;

/// How often all processes are checked that were held at any time.
const SWEEP_INTERVAL_NS: u64 = 400_000_000;

/// The holds of a session.
pub struct HoldControl {
    session: u32,
    /// The policy's response: one of [`wire::guard_response`].
    response: u32,
    max_held: u32,
    /// Processes of this session (setsid) are never held. At first it is the policy's session,
    /// which may be replaced by an operator's.
    exempt_sid: Option<u32>,
    /// An operator has switched responses off.
    is_off: bool,
    /// Whether the next long hold is printed.
    reports_holds: bool,
    next_release_ns: Option<u64>,
    next_training_stop_ns: u64,
    /// Processes that were released at the latest poll, and are to be checked.
    released: Vec<HeldProcess>,
    released_ns: u64,
    next_sweep_ns: u64,
    unheld_reported: Option<Instant>,
    held_reported: bool,
    /// How many SIGCONTs by others the latest message included.
    foreign_continues: u64,
    continues_reported: Option<Instant>,
    watchdog: Option<HoldWatchdog>,
    training_stops: Option<TrainingStops>,
}

impl HoldControl {
    /// Starts the watchdog if the policy may hold processes.
    pub fn start(gate: &Gate, session: u32, policy: &Policy) -> Result<Self> {
        let watchdog = policy.holds().then(|| HoldWatchdog::start(gate, session)).transpose()?;
        Ok(Self {
            session,
            response: policy.wire.response,
            max_held: policy.wire.max_held,
            exempt_sid: policy.selection.exempt_sid,
            is_off: false,
            reports_holds: policy.reports_holds,
            next_release_ns: None,
            next_training_stop_ns: u64::MAX,
            released: Vec::new(),
            released_ns: 0,
            next_sweep_ns: 0,
            unheld_reported: None,
            held_reported: false,
            foreign_continues: 0,
            continues_reported: None,
            watchdog,
            training_stops: policy.train_on_stops.map(TrainingStops::new),
        })
    }

    /// Whether an operator has switched responses off.
    pub fn is_off(&self) -> bool {
        self.is_off
    }

    /// The maximum number of processes that may be held at a time.
    pub fn max_held(&self) -> u32 {
        self.max_held
    }

    /// Prints what a user has to know about an event of a program, and notes the end of its hold.
    pub fn on_event(&mut self, event: &wire::guard_event, program: &TrackedProgram) {
        let is_unheld = event.restraint == wire::GUARD_MAX_HELD;
        if is_unheld
            && self.unheld_reported.is_none_or(|reported| reported.elapsed() > REPORT_INTERVAL)
        {
            self.unheld_reported = Some(Instant::now());
            let _ = print_message(&format!(
                "tollgate: {} held, the maximum of --max-held: further anomalies are only \
                reported until one is released",
                number_of(self.max_held as usize, "process")
            ));
        }
        if self.reports_holds
            && event.held_until_ns != 0
            && event.held_until_ns.saturating_sub(event.time_ns) >= REPORTED_HOLD_NS
        {
            self.reports_holds = false;
            let _ = print_message(&format!(
                "tollgate: {} is held because of anomalous calls; `tollgate guard off` releases \
                all processes",
                program.title()
            ));
        }
        if held_ns(event) > 0 {
            self.next_release_ns =
                Some(self.next_release_ns.unwrap_or(u64::MAX).min(event.held_until_ns));
        }
    }

    /// Releases processes in time, and stops others for training.
    pub fn tend(&mut self, gate: &Gate, programs: &ProgramTable) {
        let holds = Holds::new(gate, self.session);
        if holds.was_switched_off() && !self.is_off {
            self.is_off = true;
            let _ = print_message(
                "tollgate: the guard was switched off by `tollgate guard off` and holds no \
                process any more",
            );
        }
        if was_termination_requested() {
            self.begin_grace(&holds);
        }
        self.note_continues(&holds);
        self.stop_for_training(gate, programs);
        self.check_released(&holds);
        let (mut released, next_release_ns) = holds.release_due();
        self.next_release_ns = next_release_ns;
        if !released.is_empty() {
            self.released.append(&mut released);
            self.released_ns = now_ns();
        }
    }

    /// Prints that others continue held processes again and again, as tmux does.
    fn note_continues(&mut self, holds: &Holds<'_>) {
        let (continues, process) = holds.foreign_continues();
        let new = continues - self.foreign_continues;
        if new < REPORTED_CONTINUES
            || self.continues_reported.is_some_and(|reported| reported.elapsed() < REPORT_INTERVAL)
        {
            return;
        }
        let which = process.map_or_else(String::new, |process| {
            format!(", now {} {process}", process::name(process).unwrap_or_default())
        });
        let _ = print_message(&printable(&format!(
            "tollgate: others have continued held processes {} times{which}; they are stopped \
            again, but may make some calls each time",
            count(new)
        )));
        self.foreign_continues = continues;
        self.continues_reported = Some(Instant::now());
    }

    /// How many SIGCONTs others have sent to held processes.
    pub fn foreign_continues(&self, gate: &Gate) -> u64 {
        Holds::new(gate, self.session).foreign_continues().0
    }

    /// Continues processes that are stopped although they were released.
    fn check_released(&mut self, holds: &Holds<'_>) {
        let now = now_ns();
        if !self.released.is_empty() && now >= self.released_ns + RELEASE_CHECK_NS {
            holds.check_released(&std::mem::take(&mut self.released));
        }
        if now >= self.next_sweep_ns {
            self.next_sweep_ns = now + SWEEP_INTERVAL_NS;
            holds.continue_left_stopped();
        }
    }

    /// Lets all processes run for some seconds, so that a termination signal can end them.
    fn begin_grace(&mut self, holds: &Holds<'_>) {
        let released = holds.begin_grace();
        if released > 0 && !std::mem::replace(&mut self.held_reported, true) {
            let released = number_of(released, "process");
            let _ = print_message(&format!(
                "tollgate: {released} released for {} s to end",
                wire::GUARD_GRACE_NS / 1_000_000_000
            ));
        }
    }

    /// Makes the training stop that is due, if responses are not switched off.
    fn stop_for_training(&mut self, gate: &Gate, programs: &ProgramTable) {
        let training_stops = self.training_stops.as_mut().filter(|_| !self.is_off);
        let exempt_sid = self.exempt_sid;
        let is_learning = |tgid, slot| {
            let program = programs.get(slot);
            program.is_some_and(|it| it.profile.state() != wire::GUARD_NORMAL && !it.is_exempt)
                && (exempt_sid.is_none() || session_of(tgid) != exempt_sid)
                // If a process is stopped, another one stopped it and does not expect it to
                // continue.
                && !is_stopped(tgid)
        };
        self.next_training_stop_ns = training_stops.map_or(u64::MAX, |training_stops| {
            training_stops.tend(gate, self.session, is_learning)
        });
    }

    /// Replaces the watchdog if it was killed.
    pub fn tend_watchdog(&mut self, gate: &Gate) -> Result<()> {
        self.watchdog.as_mut().map_or(Ok(()), |watchdog| watchdog.tend(gate, self.session))
    }

    /// Ends the watchdog. Must be called when no process is held any more: if Tollgate ends before
    /// that, the watchdog releases the processes.
    pub fn dismiss_watchdog(&mut self) {
        if let Some(watchdog) = self.watchdog.take() {
            watchdog.stop();
        }
    }

    /// The time until the next release or training stop, at most `longest`.
    pub fn deadline(&self, longest: Duration) -> Duration {
        let next = self.next_release_ns.unwrap_or(u64::MAX).min(self.next_training_stop_ns);
        let next = if self.released.is_empty() {
            next
        } else {
            next.min(self.released_ns + RELEASE_CHECK_NS)
        };
        Duration::from_nanos(next.saturating_sub(now_ns())).min(longest)
    }

    /// The processes that are held now.
    pub fn held(&self, gate: &Gate, programs: &ProgramTable) -> Vec<HeldProcessReport> {
        let held = Holds::new(gate, self.session).held();
        held.iter().map(|held| held_process(held, programs.get(held.profile))).collect()
    }

    /// Switches responses off or on. While they are off, no process is held, denied or killed.
    /// Returns a line for each released process.
    pub fn switch(&mut self, gate: &Gate, programs: &ProgramTable, off: bool) -> Vec<String> {
        self.is_off = off;
        Holds::new(gate, self.session).set_response(if off {
            wire::GUARD_OBSERVE
        } else {
            self.response
        });
        if off { self.release(gate, programs, &[]).unwrap_or_default() } else { Vec::new() }
    }

    /// Records that a user at this process's terminal operates the guard. If the session from which
    /// the guard was started has no terminal, as under systemd, the user's session becomes the
    /// exempt one until the user logs out.
    pub fn note_operator(&mut self, gate: &Gate, process: u32) {
        let Some(exempt_sid) = &mut self.exempt_sid else { return };
        if !has_terminal(*exempt_sid)
            && has_terminal(process)
            && let Some(session) = session_of(process)
        {
            *exempt_sid = session;
            Holds::new(gate, self.session).set_exempt_session(session);
        }
    }

    /// Holds a process until it is released. It is an error if nothing could release it.
    pub fn hold(&mut self, gate: &Gate, pid: u32) -> Result<()> {
        if self.is_off {
            bail!("the guard is switched off: run `tollgate guard on` first");
        }
        if self.watchdog.is_none() {
            bail!(
                "this guard cannot hold processes: start it with --guard=enforce, with \
                --train-on-stops, or with `train-on-stops` in the file of --guard-config"
            );
        }
        if pid == std::process::id()
            || self.watchdog.as_ref().is_some_and(|watchdog| watchdog.pid() == pid)
        {
            bail!("process {pid} is part of the guard: nothing could release it");
        }
        // pid_namespaces(7): from its own namespace, process 1 receives only signals for which it
        // has a handler.
        if pid == 1 {
            bail!("process 1 cannot be stopped");
        }
        // For getsid(), 0 stands for the calling process.
        if pid != 0 && self.exempt_sid.is_some_and(|exempt_sid| session_of(pid) == Some(exempt_sid))
        {
            bail!("process {pid} is in the operator's session, which could then not release it");
        }
        if let Some(process) = process::process_of_thread(pid).filter(|process| *process != pid) {
            bail!("{pid} is a thread of process {process}, and only whole processes are held");
        }
        if !holds::hold(gate, self.session, pid, u64::MAX) {
            bail!(
                "process {pid} is not guarded here: it may have ended, be a kernel thread, or run \
                a program that was not selected"
            );
        }
        Ok(())
    }

    /// Releases the processes of a program, but not those that only an operator releases.
    pub fn release_program(&self, gate: &Gate, profile_slot: u32) {
        let holds = Holds::new(gate, self.session);
        let held = holds.held();
        let is_delayed =
            |held: &&HeldProcess| held.profile == profile_slot && held.until_ns != u64::MAX;
        held.iter().filter(is_delayed).for_each(|held| holds.release_and_reset(held));
    }

    /// Releases processes, and returns a line for each.
    pub fn release(
        &self,
        gate: &Gate,
        programs: &ProgramTable,
        targets: &[String],
    ) -> Result<Vec<String>> {
        let holds = Holds::new(gate, self.session);
        let held = holds.held();
        let is_target = |held: &HeldProcess, target: &String| {
            let program = programs.get(held.profile);
            let (path, (name, scope)) = (path_text(program), split_scope(target));
            let is_named =
                !name.is_empty() && (name == path || path.rsplit('/').next() == Some(name));
            *target == held.tgid.to_string()
                || is_named && scope.is_none_or(|scope| is_in_scope(scope_of(program), scope))
        };
        let unknown =
            targets.iter().filter(|target| !held.iter().any(|held| is_target(held, target)));
        let unknown: Vec<_> = unknown
            .map(|target| format!("no held process has this ID or name: {target:?}"))
            .collect();
        if !targets.is_empty() && unknown.len() == targets.len() {
            bail!("{}; `tollgate guard status` lists the held processes", unknown.join("; "));
        }
        let selected = held.iter().filter(|held| {
            targets.is_empty() || targets.iter().any(|target| is_target(held, target))
        });
        let released = selected.map(|held| {
            holds.release_and_reset(held);
            format!("{} {}: released", held.tgid, path_text(programs.get(held.profile)))
        });
        Ok(released.chain(unknown).map(|line| printable(&line)).collect())
    }
}

/// The path of a program; empty if it is no longer tracked.
fn path_text(program: Option<&TrackedProgram>) -> String {
    program.map_or_else(String::new, TrackedProgram::path_text)
}

fn scope_of(program: Option<&TrackedProgram>) -> Option<&str> {
    program.and_then(|program| program.scope.as_deref())
}

fn held_process(held: &HeldProcess, program: Option<&TrackedProgram>) -> HeldProcessReport {
    let UnitAndContainer { unit, container } = UnitAndContainer::of(held.tgid);
    HeldProcessReport {
        pid: held.tgid,
        program: path_text(program),
        scope: scope_of(program).map(str::to_owned),
        command: process::name(held.tgid).unwrap_or_default(),
        unit,
        container,
        left_ns: (held.until_ns != u64::MAX).then(|| held.until_ns.saturating_sub(now_ns())),
    }
}
