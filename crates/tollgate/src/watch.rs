//! A session's life as `run` and `lens` share it: follow the gate, take in its records, make the report.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use anyhow::Result;
use kernel::cells::Collector;
use kernel::clock::now_ns;
use kernel::figures::GroupFigures;
use kernel::gate::{Gate, Lock};
use kernel::pinned::Pin;
use kernel::process;
use kernel::session::{LiveThread, Options, Session};
use kernel::symbols::KernelSymbols;
use kernel::wire;
use libbpf_rs::{RingBuffer, RingBufferBuilder};

use crate::format::number_of;
use crate::guard::{Guard, Notice, Policy};
use crate::output::say;
use crate::plugin::Plugins;
use crate::report::{Document, Facts, InProgress, call_name, document};
use crate::slow::SlowCalls;
use crate::source::Source;
use crate::toll;

/// How often the gate is looked after, and counters that could wrap are read.
pub const TICK: Duration = Duration::from_millis(100);
const READ_EVERY_NS: u64 = 60_000_000_000;
/// Loading a gate takes a tenth of this; who waits longer wants to know what for.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a process that loaded a newer gate stays for the others to follow.
const HANDOVER_LIMIT_NS: u64 = 2_000_000_000;

/// What `run` and `lens` know of a session's end.
pub struct Ending {
    pub command: Vec<String>,
    pub exit: Option<i32>,
    pub user_ns: Option<u64>,
    pub system_ns: Option<u64>,
    pub notes: Vec<String>,
    pub measures_toll: bool,
}

/// What came from the gate and is still to be worked on.
struct Inbox {
    done: BTreeSet<u32>,
    slow: SlowCalls,
    guard: Vec<Notice>,
}

impl Inbox {
    fn new(began_ns: u64) -> Self {
        Self { done: BTreeSet::new(), slow: SlowCalls::new(began_ns), guard: Vec::new() }
    }
}

pub struct Watch {
    pub gate: Gate,
    pub session: Session,
    options: Options,
    collector: Collector,
    ring: RingBuffer<'static>,
    inbox: Rc<RefCell<Inbox>>,
    guard: Option<Guard>,
    plugins: Plugins,
    /// So that `guard off` finds whom it holds, even if the warden is killed with it.
    pin: Option<Pin>,
    began_ns: u64,
    read_ns: u64,
    gaps: u64,
    begun: bool,
    ended: bool,
}

pub const THREADS_FULL: &str = "threads not gated (table full)";

/// Reasons as the report names them, in the order of `wire::loss`.
const REASONS: [&str; wire::LOSSES as usize] = [
    THREADS_FULL,
    "calls whose end was not seen",
    "calls not recorded (table full)",
    "calls in their session's common row (table full)",
    "groups merged into another (table full)",
    "calls ambiguous at a change of configuration",
    "blocking sites not recorded (table full)",
    "slow calls not reported (buffer full)",
    "group notices not sent (buffer full)",
    "programs without a profile (none was ready)",
    "calls of programs without a profile",
    "guard events not reported (buffer full)",
    "charges of services not booked (no memory)",
    "messages of connections not followed (table full)",
    "work for services that could not be started (table full)",
    "threads not put in their service's control group (buffer full)",
    "opened files that no rule was asked of (too deep in folders)",
];

impl Watch {
    /// Guards, too.
    pub fn start_guarded(mut options: Options, policy: Policy) -> Result<Self> {
        options.guard = policy.wire;
        options.mask |= policy.needs();
        let (mut watch, may_hold) = (Self::start(options)?, policy.holds());
        let lock = Lock::take()?;
        watch.guard = Some(Guard::start(&watch.gate, &lock, &watch.session, policy)?);
        if may_hold {
            let unpinned = |error| {
                say(&format!(
                    "tollgate: {error}; `guard off` cannot reach this guard, nor let go whom it holds if it and its warden are killed at once"
                ))
            };
            watch.pin = watch.gate.pin_holds(&lock).map_err(unpinned).ok();
        }
        Ok(watch)
    }

    /// The guard, and the gate that it works on.
    pub fn guard(&mut self) -> Option<(&mut Guard, &Gate)> {
        self.guard.as_mut().map(|guard| (guard, &self.gate))
    }

    pub fn start(options: Options) -> Result<Self> {
        let lock = Lock::take_with_notice(PATIENCE, |path| {
            let _ = say(&format!(
                "tollgate: waiting for another Tollgate, which holds {} (fuser names it)",
                path.display()
            ));
        })?;
        let mut gate = Gate::open(&lock, options.mask)?;
        let session = gate.start_session(&lock, &options).map_err(anyhow::Error::from);
        drop(lock);
        let began_ns = now_ns();
        let inbox = Rc::new(RefCell::new(Inbox::new(began_ns)));
        let started = session.and_then(|session| Ok((ring(&session, &inbox)?, session)));
        if started.is_err() {
            stay_for_others(&mut gate, None);
        }
        let (ring, session) = started?;
        let plugins = Plugins::of_session(session.index, options.mask & wire::GUARD != 0);
        Ok(Self {
            gate,
            session,
            options,
            collector: Collector::default(),
            ring,
            inbox,
            guard: None,
            plugins,
            pin: None,
            began_ns,
            read_ns: began_ns,
            gaps: 0,
            begun: false,
            ended: false,
        })
    }

    /// For the session's tasks. What they tell goes to stderr.
    pub fn load_plugins(&mut self, sources: &[Source]) -> Result<()> {
        self.plugins.load_files(&mut self.gate, sources)
    }

    fn tend_plugins(&mut self) -> Result<()> {
        for line in self.plugins.tend()? {
            // Where nobody can read it any more, the command goes on all the same.
            let _ = say(&line.named());
        }
        Ok(())
    }

    /// Readable when a record has come.
    pub fn descriptor(&self) -> i32 {
        self.ring.epoll_fd()
    }

    /// Starts the elapsed time anew.
    pub fn begin(&mut self) -> Result<()> {
        // The gate may have changed while this one got ready.
        self.follow()?;
        self.begun = true;
        self.began_ns = now_ns();
        self.inbox.borrow_mut().slow = SlowCalls::new(self.began_ns);
        if let Some(guard) = &mut self.guard {
            guard.begin();
        }
        Ok(())
    }

    /// How long nothing needs to be looked after.
    pub fn patience(&self) -> Duration {
        let patience = self.plugins.patience(TICK);
        self.guard.as_ref().map_or(patience, |guard| guard.patience(patience))
    }

    /// Ends the session without a report.
    pub fn give_up(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        self.ended = true;
        // The session's number may be another's at once.
        self.plugins.unload_all();
        stay_for_others(&mut self.gate, Some(self.session.index));
        self.gate.end_session(&self.session)?;
        self.dismiss_warden();
        Ok(())
    }

    fn dismiss_warden(&mut self) {
        if let Some(guard) = &mut self.guard {
            guard.dismiss_warden();
        }
    }

    /// To be called at least every [`TICK`].
    pub fn tend(&mut self) -> Result<()> {
        self.follow()?;
        self.ring.consume()?;
        self.tend_guard()?;
        self.tend_plugins()?;
        let mut done = std::mem::take(&mut self.inbox.borrow_mut().done);
        done.extend(self.gate.groups_handed_over(self.session.index));
        if !done.is_empty() {
            match Lock::try_take()? {
                Some(lock) => self.collector.finish_groups(&self.gate, &lock, &done)?,
                None => self.inbox.borrow_mut().done.extend(done),
            }
        }
        if now_ns() - self.read_ns > READ_EVERY_NS {
            self.collector.read(&self.gate, self.session.index)?;
            self.read_ns = now_ns();
        }
        Ok(())
    }

    fn follow(&mut self) -> Result<()> {
        let acted = self.gate.tend_session(&self.session)?;
        // Where there is nobody yet, nothing was missed.
        if !acted && (self.begun || self.gate.has_threads(self.session.index)) {
            self.gaps += 1;
        }
        Ok(())
    }

    fn tend_guard(&mut self) -> Result<()> {
        let Some(guard) = &mut self.guard else { return Ok(()) };
        let notices = std::mem::take(&mut self.inbox.borrow_mut().guard);
        notices.iter().try_for_each(|notice| guard.take(&self.gate, notice))?;
        guard.tend(&self.gate)
    }

    /// Lets the tasks go, reads everything, measures the toll, and gives the session back.
    pub fn finish(mut self, ending: Ending) -> Result<Document> {
        let elapsed_ns = now_ns() - self.began_ns;
        self.tend()?;
        let live = self.gate.live_threads(self.session.index);
        let now = now_ns();
        let in_progress = live.iter().filter_map(|thread| in_progress(thread, now)).collect();
        let mut notes = ending.notes;
        let (guard, stored) = self.guard.as_mut().map(Guard::finish).unzip();
        if let Some(Err(error)) = stored {
            notes.push(format!("what the guard learned could not be stored: {error:#}"));
        }
        self.gate.release(&Lock::take()?, self.session.index);
        self.dismiss_warden();
        let mut figures = self.collector.figures(&self.gate, self.session.index)?;
        if self.options.mask & wire::LENS == 0 {
            // What another session has counted, for as long as that was there, is not all.
            figures.values_mut().for_each(|row| *row = GroupFigures::default());
        }
        self.tend_plugins()?;
        let plugins = self.plugins.states()?;
        let losses = self.losses()?;
        if !live.is_empty() && ending.exit.is_some() {
            let threads = number_of(live.len(), "thread");
            notes.push(format!("still running, and not gated any more: {threads} of the command"));
        }
        // Slow calls, and sessions around or within this one, may bring sites that it has not asked for.
        let has_sites =
            self.options.mask & wire::LENS_SITES != 0 || figures.values().any(|row| !row.sites.is_empty());
        let symbols = if has_sites { KernelSymbols::get() } else { KernelSymbols::none() };
        if has_sites && symbols.is_empty() {
            notes.push("blocking sites have no names: /proc/kallsyms shows no addresses".into());
        }
        let measure = || toll::measure(&mut self.gate, &self.session, &self.options);
        let toll = ending.measures_toll.then(measure).transpose().unwrap_or_else(|error| {
            notes.push(format!("the toll could not be measured: {error:#}"));
            None
        });
        self.end()?;
        let slow = self.inbox.replace(Inbox::new(0)).slow;
        let (slow, slow_seen) = slow.finish();
        if slow_seen > slow.len() as u64 {
            notes.push(format!(
                "{slow_seen} slow calls were reported; the {} slowest of them are kept",
                slow.len()
            ));
        }
        let facts = Facts {
            command: ending.command,
            exit: ending.exit,
            elapsed_ns,
            user_ns: ending.user_ns,
            system_ns: ending.system_ns,
            figures,
            per: self.options.per,
            slow,
            in_progress,
            guard,
            plugins,
            toll: toll.unwrap_or_default(),
            losses,
            notes,
        };
        Ok(document(facts, symbols))
    }

    pub fn losses(&self) -> Result<BTreeMap<String, u64>> {
        let mut losses: BTreeMap<_, _> = REASONS
            .iter()
            .zip(self.gate.losses(self.session.index)?)
            .map(|(reason, n)| ((*reason).to_owned(), n))
            .filter(|(_, n)| *n > 0)
            .collect();
        losses.extend(self.plugins.losses());
        if self.gaps > 0 {
            losses.insert("gaps in which the gate's keeper had died".into(), self.gaps);
        }
        Ok(losses)
    }
}

/// Others must hold the links of the gate that this process loaded before it goes.
fn stay_for_others(gate: &mut Gate, own: Option<u32>) {
    let began = now_ns();
    while gate.toggle().is_some() && !gate.all_follow(own) && now_ns() - began < HANDOVER_LIMIT_NS {
        std::thread::sleep(TICK / 10);
    }
}

impl Drop for Watch {
    /// Where an error ended it: the others go on all the same.
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.end();
        }
    }
}

/// The call that a thread is in; one that has not crossed the boundary while it was watched is asked for its own.
fn in_progress(thread: &LiveThread, now: u64) -> Option<InProgress> {
    let tid = thread.pid;
    let (slot, entered) = match thread.call {
        Some(call) => call,
        None if thread.has_crossed => return None,
        None => (process::current_call(tid)?, 0),
    };
    let (abi, name) = call_name(slot);
    let ns = (entered != 0).then(|| now.saturating_sub(entered));
    Some(InProgress { tid, name, abi: abi.as_str().into(), ns })
}

fn ring(session: &Session, inbox: &Rc<RefCell<Inbox>>) -> Result<RingBuffer<'static>> {
    let inbox = Rc::clone(inbox);
    let mut builder = RingBufferBuilder::new();
    builder.add(&session.ring, move |bytes: &[u8]| {
        if let Some(done) = kernel::records::group_done(bytes) {
            inbox.borrow_mut().done.insert(done.group);
        } else if let Some(slow) = kernel::records::slow_call(bytes) {
            inbox.borrow_mut().slow.take(&slow);
        } else if let Some(program) = kernel::records::guard_program(bytes) {
            inbox.borrow_mut().guard.push(Notice::Program(Box::new(program)));
        } else if let Some(event) = kernel::records::guard_event(bytes) {
            inbox.borrow_mut().guard.push(Notice::Event(event));
        }
        0
    })?;
    Ok(builder.build()?)
}
