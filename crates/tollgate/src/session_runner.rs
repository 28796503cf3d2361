//! The life of a session, as `run`, `lens` and the daemon share it: keeps up with the gate, reads
//! its records, and makes the report.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use anyhow::Result;
use kernel::clock::now_ns;
use kernel::extensions;
use kernel::gate::{Gate, Lock};
use kernel::guard::hold_table::PinnedHolds;
use kernel::lens::call_stats::RowStats;
use kernel::lens::counters::Collector;
use kernel::process;
use kernel::session::{LiveThread, Session, SessionOptions};
use kernel::symbols::KernelSymbols;
use kernel::wire;
use libbpf_rs::{RingBuffer, RingBufferBuilder};

use crate::format::number_of;
use crate::guard::{Guard, GuardRecord, Policy};
use crate::output::print_message;
use crate::plugin::Plugins;
use crate::report::{InProgress, Report, SessionResult, call_name, document};
use crate::session_toll;
use crate::slow_calls::SlowCalls;
use crate::source_file::SourceFile;

/// How often to tend the gate.
pub const TEND_INTERVAL: Duration = Duration::from_millis(100);
/// How often to read counters, some of which could otherwise wrap.
const READ_EVERY_NS: u64 = 60_000_000_000;
/// Loading a gate takes a tenth of this; after a longer wait, the user needs to know the reason.
const LOCK_NOTICE_AFTER: Duration = Duration::from_secs(2);
/// How long a process that loaded a newer generation stays, so that the others can follow.
const HANDOVER_LIMIT_NS: u64 = 2_000_000_000;

/// What `run` and `lens` know at the end of a session.
pub struct SessionEnd {
    pub command: Vec<String>,
    pub exit: Option<i32>,
    pub user_ns: Option<u64>,
    pub system_ns: Option<u64>,
    pub notes: Vec<String>,
    pub measures_toll: bool,
}

/// Records of the gate that are not processed yet.
struct PendingRecords {
    done: BTreeSet<u32>,
    slow: SlowCalls,
    guard: Vec<GuardRecord>,
}

impl PendingRecords {
    fn new(began_ns: u64) -> Self {
        Self { done: BTreeSet::new(), slow: SlowCalls::new(began_ns), guard: Vec::new() }
    }
}

pub struct SessionRunner {
    pub gate: Gate,
    pub session: Session,
    options: SessionOptions,
    collector: Collector,
    ring: RingBuffer<'static>,
    inbox: Rc<RefCell<PendingRecords>>,
    guard: Option<Guard>,
    plugins: Plugins,
    /// Lets `guard off` find the held processes, even if the watchdog is killed together with the
    /// guard.
    pin: Option<PinnedHolds>,
    began_ns: u64,
    read_ns: u64,
    gaps: u64,
    begun: bool,
    ended: bool,
}

pub const THREADS_FULL: &str = "threads not gated (table full)";

/// Reasons as the report names them, in the order of `wire::loss`.
const LOSS_REASONS: [&str; wire::LOSSES as usize] = [
    THREADS_FULL,
    "calls without an observed end",
    "calls not recorded (table full)",
    "calls counted in their session's common row (table full)",
    "groups merged into another (table full)",
    "calls not attributable at a change of the gate's generation",
    "blocking sites not recorded (table full)",
    "slow calls not reported (buffer full)",
    "group notices not sent (buffer full)",
    "programs without a profile (none was ready)",
    "calls of programs without a profile",
    "guard events not reported (buffer full)",
    "charges to services lost (no memory)",
    "messages not followed (connection table full)",
    "work charged to a parent because no service could be started (table full)",
    "threads not moved to their service's control group (buffer full)",
    "opened files not matched with rules (path too deep)",
];

impl SessionRunner {
    /// Starts a session with a guard.
    pub fn start_guarded(mut options: SessionOptions, policy: Policy) -> Result<Self> {
        options.guard = policy.wire;
        options.mask |= policy.needs();
        let (mut watch, may_hold) = (Self::start(options)?, policy.holds());
        let lock = Lock::take()?;
        watch.guard = Some(Guard::start(&watch.gate, &lock, &watch.session, policy)?);
        if may_hold {
            let unpinned = |error| {
                print_message(&format!(
                    "tollgate: {error}; `guard off` cannot reach this guard, and cannot release \
                    its processes if the guard and its watchdog are killed together"
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

    pub fn start(options: SessionOptions) -> Result<Self> {
        let lock = Lock::take_with_notice(LOCK_NOTICE_AFTER, |path| {
            let _ = print_message(&format!(
                "tollgate: waiting for another Tollgate process that holds the lock {} (`fuser` \
                shows which one)",
                path.display()
            ));
        })?;
        let mut gate = Gate::open(&lock, options.mask, &extensions::ALL)?;
        let session = gate.start_session(&lock, &options).map_err(anyhow::Error::from);
        drop(lock);
        let began_ns = now_ns();
        let inbox = Rc::new(RefCell::new(PendingRecords::new(began_ns)));
        let started = session.and_then(|session| Ok((ring(&session, &inbox)?, session)));
        if started.is_err() {
            wait_for_followers(&mut gate, None);
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

    /// Loads plugins for the session's tasks. Their output goes to stderr.
    pub fn load_plugins(&mut self, sources: &[SourceFile]) -> Result<()> {
        self.plugins.load_files(&mut self.gate, sources)
    }

    fn tend_plugins(&mut self) -> Result<()> {
        for line in self.plugins.tend()? {
            // If stderr has no reader any more, the command continues all the same.
            let _ = print_message(&line.with_name());
        }
        Ok(())
    }

    /// A descriptor that is readable when a record has arrived.
    pub fn descriptor(&self) -> i32 {
        self.ring.epoll_fd()
    }

    /// Restarts the elapsed time.
    pub fn begin(&mut self) -> Result<()> {
        // Another process may have activated a newer generation meanwhile.
        self.follow_generation()?;
        self.begun = true;
        self.began_ns = now_ns();
        self.inbox.borrow_mut().slow = SlowCalls::new(self.began_ns);
        if let Some(guard) = &mut self.guard {
            guard.begin();
        }
        Ok(())
    }

    /// The time until the next call of [`Self::tend`].
    pub fn deadline(&self) -> Duration {
        let patience = self.plugins.deadline(TEND_INTERVAL);
        self.guard.as_ref().map_or(patience, |guard| guard.deadline(patience))
    }

    /// Ends the session without a report.
    pub fn cancel(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        self.ended = true;
        // Another session may get the same number at once.
        self.plugins.unload_all();
        wait_for_followers(&mut self.gate, Some(self.session.index));
        self.gate.end_session(&self.session)?;
        self.stop_watchdog();
        Ok(())
    }

    fn stop_watchdog(&mut self) {
        if let Some(guard) = &mut self.guard {
            guard.dismiss_watchdog();
        }
    }

    /// Must be called at least once in each [`TEND_INTERVAL`].
    pub fn tend(&mut self) -> Result<()> {
        self.follow_generation()?;
        self.ring.consume()?;
        self.tend_guard()?;
        self.tend_plugins()?;
        let mut done = std::mem::take(&mut self.inbox.borrow_mut().done);
        done.extend(self.gate.rows_handed_over(self.session.index));
        if !done.is_empty() {
            match Lock::try_take()? {
                Some(lock) => self.collector.finish_rows(&self.gate, &lock, &done)?,
                None => self.inbox.borrow_mut().done.extend(done),
            }
        }
        if now_ns() - self.read_ns > READ_EVERY_NS {
            self.collector.read(&self.gate, self.session.index)?;
            self.read_ns = now_ns();
        }
        Ok(())
    }

    fn follow_generation(&mut self) -> Result<()> {
        let acted = self.gate.tend_session(&self.session)?;
        // Without threads, nothing was missed.
        if !acted && (self.begun || self.gate.has_threads(self.session.index)) {
            self.gaps += 1;
        }
        Ok(())
    }

    fn tend_guard(&mut self) -> Result<()> {
        let Some(guard) = &mut self.guard else { return Ok(()) };
        let notices = std::mem::take(&mut self.inbox.borrow_mut().guard);
        notices.iter().try_for_each(|notice| guard.on_record(&self.gate, notice))?;
        guard.tend(&self.gate)
    }

    /// Detaches the tasks, reads all statistics, measures the toll and frees the session.
    pub fn finish(mut self, ending: SessionEnd) -> Result<Report> {
        let elapsed_ns = now_ns() - self.began_ns;
        self.tend()?;
        let live = self.gate.live_threads(self.session.index);
        let now = now_ns();
        let in_progress = live.iter().filter_map(|thread| in_progress(thread, now)).collect();
        let mut notes = ending.notes;
        let (guard, stored) = self.guard.as_mut().map(Guard::finish).unzip();
        if let Some(Err(error)) = stored {
            notes.push(format!("the baselines could not be stored: {error:#}"));
        }
        self.gate.detach_tasks(&Lock::take()?, self.session.index);
        self.stop_watchdog();
        let mut figures = self.collector.stats_by_row(&self.gate, self.session.index)?;
        if self.options.mask & wire::LENS == 0 {
            // Another session's counts cover only the time of that session.
            figures.values_mut().for_each(|row| *row = RowStats::default());
        }
        self.tend_plugins()?;
        let plugins = self.plugins.states()?;
        let losses = self.losses()?;
        if !live.is_empty() && ending.exit.is_some() {
            let threads = number_of(live.len(), "thread");
            notes.push(format!("{threads} of the command are still running and no longer gated"));
        }
        // Slow calls, and sessions around or within this one, may record blocking sites that this
        // session did not request.
        let has_sites = self.options.mask & wire::LENS_SITES != 0
            || figures.values().any(|row| !row.sites.is_empty());
        let symbols = if has_sites { KernelSymbols::get() } else { KernelSymbols::none() };
        if has_sites && symbols.is_empty() {
            notes.push("blocking sites have no names: /proc/kallsyms shows no addresses".into());
        }
        let measure = || session_toll::measure(&mut self.gate, &self.session, &self.options);
        let toll = ending.measures_toll.then(measure).transpose().unwrap_or_else(|error| {
            notes.push(format!("the toll could not be measured: {error:#}"));
            None
        });
        self.end()?;
        let slow = self.inbox.replace(PendingRecords::new(0)).slow;
        let (slow, slow_seen) = slow.finish();
        if slow_seen > slow.len() as u64 {
            notes.push(format!(
                "{slow_seen} slow calls were reported; the {} slowest of them are kept",
                slow.len()
            ));
        }
        let facts = SessionResult {
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
        let mut losses: BTreeMap<_, _> = LOSS_REASONS
            .iter()
            .zip(self.gate.losses(self.session.index)?)
            .map(|(reason, n)| ((*reason).to_owned(), n))
            .filter(|(_, n)| *n > 0)
            .collect();
        losses.extend(self.plugins.losses());
        if self.gaps > 0 {
            losses.insert("gaps after the process that held the gate was killed".into(), self.gaps);
        }
        Ok(losses)
    }
}

/// Waits until other processes hold the links of the generation that this process loaded, before
/// this process ends.
fn wait_for_followers(gate: &mut Gate, own: Option<u32>) {
    let began = now_ns();
    while gate.toggle().is_some()
        && !gate.have_all_followed(own)
        && now_ns() - began < HANDOVER_LIMIT_NS
    {
        std::thread::sleep(TEND_INTERVAL / 10);
    }
}

impl Drop for SessionRunner {
    /// Ends the session after an error, without affecting other sessions.
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.end();
        }
    }
}

/// The call that a thread is in. /proc is read for a thread that has not crossed the boundary since
/// it was attached.
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

fn ring(session: &Session, inbox: &Rc<RefCell<PendingRecords>>) -> Result<RingBuffer<'static>> {
    let inbox = Rc::clone(inbox);
    let mut builder = RingBufferBuilder::new();
    builder.add(&session.ring, move |bytes: &[u8]| {
        if let Some(done) = kernel::ring::group_done(bytes) {
            inbox.borrow_mut().done.insert(done.row);
        } else if let Some(slow) = kernel::ring::slow_call(bytes) {
            inbox.borrow_mut().slow.add_record(&slow);
        } else if let Some(program) = kernel::ring::guard_program(bytes) {
            inbox.borrow_mut().guard.push(GuardRecord::Program(Box::new(program)));
        } else if let Some(event) = kernel::ring::guard_event(bytes) {
            inbox.borrow_mut().guard.push(GuardRecord::Event(event));
        }
        0
    })?;
    Ok(builder.build()?)
}
