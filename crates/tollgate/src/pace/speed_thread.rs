//! The thread that sets the speeds of the frequency domains.

use std::io::{self, PipeWriter};
use std::os::fd::AsRawFd as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use kernel::clock::now_ns;
use kernel::gate::Gate;
use kernel::pace::WantedSpeeds;
use kernel::pace::actuator::Actuator;
use kernel::pace::cpufreq::FrequencyDomain;
use kernel::pace::speed_control::{OTHER_GOVERNOR, Setting, SpeedControl};
use kernel::pace::speed_journal::{JournalEntry, SpeedJournal};
use kernel::process;

use super::domain_speed::{DomainSpeed, SpeedTiming};
use super::report_format::quantile;
use crate::output::log_message;

/// How long a domain is at its slowest speed after the last task. A change of the governor takes
/// the kernel some milliseconds, so it should not change between two frames.
pub const GOVERNOR_RELEASE_DELAY: Duration = Duration::from_millis(100);
/// The same where the governor stays, so that only bounds have to be written.
const BOUNDS_RELEASE_DELAY: Duration = Duration::from_millis(2);
/// The minimum time between two changes, in multiples of the time of a write, so that writes take
/// at most a tenth of a processor's time. A change that makes a domain faster does not wait.
const INTERVAL_IN_WRITES: u64 = 10;
/// The writes by which the time of a write is measured. The median of so many is hardly disturbed.
const MEASURED_WRITES: usize = 40;
/// The time of a write if it cannot be measured, in ns: more than a write takes.
const DEFAULT_WRITE_NS: u64 = 100_000;
/// How often to test whether the domains that this process has are still its own.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// The maximum number of latencies that are kept: enough for the 99th percentile.
const MAX_LATENCIES: usize = 1000;

/// What the thread has done.
#[derive(Debug, Default, Clone)]
pub struct SpeedStats {
    /// How often a speed was set, by domain.
    pub changes: Vec<u64>,
    /// The times from the moment at which a domain needed another speed until it was written, in
    /// ns; the latest ones.
    latencies: Vec<u64>,
    latest: usize,
    /// The domains that this process does not control any more, with the reasons.
    pub lost: Vec<(u32, String)>,
}

impl SpeedStats {
    fn add_latency(&mut self, ns: u64) {
        if self.latencies.len() < MAX_LATENCIES {
            self.latencies.push(ns);
        } else {
            self.latencies[self.latest % MAX_LATENCIES] = ns;
        }
        self.latest += 1;
    }

    /// The median and the 99th percentile of the latencies. `None` before the first change.
    pub fn latency(&self) -> Option<(Duration, Duration)> {
        let mut sorted = self.latencies.clone();
        sorted.sort_unstable();
        let at = |share| quantile(&sorted, share).map(Duration::from_nanos);
        Some((at(0.5)?, at(0.99)?))
    }
}

/// The running thread. It releases the domains when it ends.
pub struct SpeedThread {
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
    stats: Arc<Mutex<SpeedStats>>,
}

impl SpeedThread {
    /// Starts the thread. `domains` are those of the gate, in the same order, each with its
    /// actuator.
    pub fn start(
        gate: &Gate,
        journal: SpeedJournal,
        domains: &[(FrequencyDomain, Actuator)],
    ) -> Result<Self> {
        let stats = Arc::new(Mutex::new(SpeedStats {
            changes: vec![0; domains.len()],
            ..SpeedStats::default()
        }));
        let open = |(domain, actuator): &(FrequencyDomain, Actuator)| {
            let control = SpeedControl::open(Path::new("/"), domain, *actuator)
                .with_context(|| format!("cannot set the speed of policy{}", domain.number))?;
            let (range, is_lost) = (domain.range, false);
            Ok(Controlled { control, speed: None, range, is_lost })
        };
        let controlled = domains.iter().map(open).collect::<Result<Vec<_>>>()?;
        let ids = WantedSpeeds::ids(gate)?;
        let (stopped, stop) = io::pipe().context("cannot make a pipe")?;
        let shared = Arc::clone(&stats);
        let thread = std::thread::Builder::new().name("pace-speeds".into()).spawn(move || {
            process::set_realtime();
            let mut setter = SpeedSetter { journal, controlled, stats: shared };
            let run = || setter.run(&WantedSpeeds::open(ids)?, stopped.as_raw_fd());
            // Even if the thread panics, the speeds must be restored.
            let run = catch_unwind(AssertUnwindSafe(run));
            let failure = match run.unwrap_or_else(|_| Err(anyhow!("the thread has panicked"))) {
                Ok(()) => setter.release().err(),
                Err(error) => {
                    setter.lose_all(&format!("{error:#}"));
                    setter.release().err()
                }
            };
            if let Some(error) = failure {
                log_message(&format!("{error:#}"));
            }
        });
        let thread = Some(thread.context("cannot start the thread that sets the speeds")?);
        Ok(Self { stop: Some(stop), thread, stats })
    }

    /// A copy of what the thread has done so far.
    pub fn stats(&self) -> SpeedStats {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for SpeedThread {
    fn drop(&mut self) {
        // The thread sees the end of the pipe.
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A domain whose speed this process sets.
struct Controlled {
    control: SpeedControl,
    /// `None` until the time of a write has been measured.
    speed: Option<DomainSpeed>,
    range: (u64, u64),
    /// The domain is not paced any more.
    is_lost: bool,
}

struct SpeedSetter {
    journal: SpeedJournal,
    controlled: Vec<Controlled>,
    stats: Arc<Mutex<SpeedStats>>,
}

impl SpeedSetter {
    fn run(&mut self, wanted: &WantedSpeeds, stopped: i32) -> Result<()> {
        self.write_journal()?;
        let write_ns = self.measure();
        for domain in &mut self.controlled {
            let release_delay = match domain.control.original().actuator {
                Actuator::SetSpeed => GOVERNOR_RELEASE_DELAY,
                Actuator::Bounds | Actuator::Preference | Actuator::Clamp => BOUNDS_RELEASE_DELAY,
            };
            domain.speed = Some(DomainSpeed::new(SpeedTiming {
                range: domain.range,
                release_delay: release_delay.as_nanos() as u64,
                min_interval: INTERVAL_IN_WRITES * write_ns,
            }));
        }
        let mut next_check = now_ns();
        loop {
            let changes = wanted.changes()?;
            let mut again_ns = u64::MAX;
            for index in 0..self.controlled.len() {
                let since = changes.iter().find(|(domain, _)| *domain == index);
                let due = self.tend(index, wanted, since.map(|(_, ns)| *ns));
                again_ns = again_ns.min(due.unwrap_or(u64::MAX));
            }
            if now_ns() >= next_check {
                next_check = now_ns() + CHECK_INTERVAL.as_nanos() as u64;
                self.check();
            }
            // Nothing can change in domains that the system has.
            if !self.controlled.iter().all(|domain| domain.control.is_released()) {
                again_ns = again_ns.min(now_ns() + CHECK_INTERVAL.as_nanos() as u64);
            }
            let limit = Duration::from_nanos(again_ns.saturating_sub(now_ns()));
            if process::wait_for([wanted.descriptor(), stopped], limit)[1] {
                return Ok(());
            }
        }
    }

    /// Sets the speed of a domain, if that is due. `since` is when it began to need another speed.
    /// Returns when to check again.
    fn tend(&mut self, index: usize, wanted: &WantedSpeeds, since: Option<u64>) -> Option<u64> {
        let domain = &mut self.controlled[index];
        if domain.is_lost {
            return None;
        }
        let due = domain.speed.as_mut()?.next(wanted.wanted(index), now_ns());
        let Some(setting) = due.setting else { return due.again_ns };
        if let Err(error) = self.set(index, setting) {
            self.lose(index, &error.to_string());
            return None;
        }
        let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        stats.changes[index] += 1;
        if let Some(since) = since {
            stats.add_latency(now_ns().saturating_sub(since));
        }
        due.again_ns
    }

    fn set(&mut self, index: usize, setting: Setting) -> io::Result<()> {
        let root = Path::new("/");
        let control = &mut self.controlled[index].control;
        if control.is_released() {
            if setting == Setting::System {
                return Ok(());
            }
            if control.reread(root)? {
                self.write_journal().map_err(io::Error::other)?;
            }
            self.journal.mark(index, false)?;
        }
        let control = &mut self.controlled[index].control;
        control.set(root, setting)?;
        match control.is_released() {
            true => self.journal.mark(index, true),
            false => Ok(()),
        }
    }

    /// This process does not control a domain any more. A governor that another process has set is
    /// kept; everything else becomes as it was. What cannot be restored now is tried again.
    fn lose(&mut self, index: usize, reason: &str) {
        let _ = self.set(index, Setting::System);
        let domain = &mut self.controlled[index];
        domain.is_lost = true;
        let number = domain.control.original().domain;
        log_message(&format!(
            "policy{number} is not paced any more, and runs as the system decides: {reason}"
        ));
        let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        stats.lost.push((number, reason.to_owned()));
    }

    /// The same for all domains.
    fn lose_all(&mut self, reason: &str) {
        for index in 0..self.controlled.len() {
            if !self.controlled[index].is_lost {
                self.lose(index, reason);
            }
        }
    }

    /// Tests whether another process has changed the governor of a domain. That governor is kept.
    fn check(&mut self) {
        for index in 0..self.controlled.len() {
            let Controlled { control, is_lost, .. } = &self.controlled[index];
            if control.is_released() {
                continue;
            }
            if *is_lost {
                let _ = self.set(index, Setting::System);
                continue;
            }
            match control.is_ours() {
                Ok(true) => {}
                Ok(false) => self.lose(index, OTHER_GOVERNOR),
                Err(error) => self.lose(index, &error.to_string()),
            }
        }
    }

    /// The median time of a write that changes the speed, in ns, in the first domain in which that
    /// is possible.
    fn measure(&mut self) -> u64 {
        let measured = (0..self.controlled.len()).find_map(|index| self.measure_domain(index));
        measured.unwrap_or(DEFAULT_WRITE_NS)
    }

    /// The same in this domain. `None`: its speed cannot be set.
    fn measure_domain(&mut self, index: usize) -> Option<u64> {
        let (slowest, fastest) = self.controlled[index].range;
        let mut times = Vec::new();
        for write in 0..MEASURED_WRITES {
            let khz = if write % 2 == 0 { fastest } else { slowest };
            let began = now_ns();
            if let Err(error) = self.set(index, Setting::At(khz)) {
                self.lose(index, &error.to_string());
                return None;
            }
            times.push(now_ns() - began);
        }
        if let Err(error) = self.set(index, Setting::System) {
            self.lose(index, &error.to_string());
        }
        times.sort_unstable();
        quantile(&times, 0.5)
    }

    fn write_journal(&mut self) -> Result<()> {
        let entry = |domain: &Controlled| JournalEntry {
            original: domain.control.original().clone(),
            is_released: domain.control.is_released(),
        };
        let entries: Vec<_> = self.controlled.iter().map(entry).collect();
        Ok(self.journal.write(&entries)?)
    }

    /// Restores all domains. What cannot be restored now, because it is offline, stays in the
    /// journal for a later command.
    fn release(&mut self) -> Result<()> {
        let (root, mut left) = (Path::new("/"), Vec::new());
        for Controlled { control, .. } in &mut self.controlled {
            match control.set(root, Setting::System) {
                Ok(()) => control.original().wait_for_effect(root),
                Err(_) => {
                    let original = control.original().clone();
                    left.push(JournalEntry { original, is_released: false });
                }
            }
        }
        Ok(self.journal.write(&left)?)
    }
}
