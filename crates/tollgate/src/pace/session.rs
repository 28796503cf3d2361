//! Pace as an extension of a session: collects the tasks that the gate follows.

use std::fs;
use std::time::{Duration, Instant};

use ::pace::TaskRules;
use anyhow::{Context as _, Result, bail};
use kernel::pace::Tracking;
use kernel::session::{LiveThread, SessionOptions};
use kernel::{cpus, ring, wire};

use super::recorder::Recorder;
use super::rules::tracking_rule;
use super::watch_outcome::WatchOutcome;
use crate::extension::{Extension, ExtensionSetup, SessionContext};
use crate::report::Section;

/// How often to search for abandoned tasks. Each search reads all tasks, and a session is tended
/// for each batch of records, which may be thousands of times a second.
const SWEEP_INTERVAL: Duration = Duration::from_millis(500);

/// Watches tasks without changing a speed.
pub struct PaceWatchSetup {
    pub rules: TaskRules,
    /// What to do with the tasks at the end.
    pub outcome: WatchOutcome,
}

impl ExtensionSetup for PaceWatchSetup {
    fn configure(&self, options: &mut SessionOptions) {
        options.mask |= wire::PACE;
    }

    fn start(self: Box<Self>, context: &mut SessionContext<'_>) -> Result<Box<dyn Extension>> {
        let tracking = Tracking::open(context.gate)?;
        let khz = nominal_khz()?;
        for cpu in 0..cpus::possible() as u32 {
            tracking.set_speed(cpu, khz);
        }
        let rules: Vec<_> = self.rules.rules.iter().map(tracking_rule).collect();
        tracking.set_rules(context.session.index, &rules);
        let recorder = Recorder::new(self.rules);
        let session = context.session.index;
        Ok(Box::new(PaceInSession {
            session,
            tracking,
            recorder,
            latest_sweep: Instant::now(),
            unfinished: 0,
            outcome: Some(self.outcome),
        }))
    }
}

struct PaceInSession {
    /// The number of the session.
    session: u32,
    tracking: Tracking,
    recorder: Recorder,
    /// When abandoned tasks were last searched for.
    latest_sweep: Instant,
    /// The tasks that had not ended when the threads were detached.
    unfinished: usize,
    /// Taken at the end of the session.
    outcome: Option<WatchOutcome>,
}

impl Extension for PaceInSession {
    fn begin(&mut self, began_ns: u64) {
        self.recorder.begin(began_ns);
    }

    fn on_record(&mut self, _context: &mut SessionContext<'_>, record: &[u8]) -> Result<bool> {
        if let Some(task) = ring::pace_task(record) {
            self.recorder.add(&task);
            return Ok(true);
        }
        let Some(named) = ring::pace_type(record) else { return Ok(false) };
        self.recorder.name_type(&named);
        Ok(true)
    }

    fn tend(&mut self, context: &mut SessionContext<'_>) -> Result<()> {
        if self.latest_sweep.elapsed() < SWEEP_INTERVAL {
            return Ok(());
        }
        self.latest_sweep = Instant::now();
        self.drop_abandoned(context)
    }

    fn before_detach(&mut self, _live: &[LiveThread]) {
        self.unfinished = self.tracking.live(self.session).len();
    }

    fn section(
        &mut self,
        _context: &mut SessionContext<'_>,
        notes: &mut Vec<String>,
    ) -> Result<Option<Box<dyn Section>>> {
        let recorded = std::mem::take(&mut self.recorder).finish(self.unfinished);
        let Some(outcome) = self.outcome.take() else { return Ok(None) };
        Ok(Some(Box::new(outcome.section(recorded, notes)?)))
    }
}

impl PaceInSession {
    /// Drops tasks that programs began and did not end before they ended themselves.
    fn drop_abandoned(&mut self, context: &mut SessionContext<'_>) -> Result<()> {
        for (entry, number) in self.tracking.abandoned(context.gate, self.session) {
            self.recorder.add_abandoned();
            self.tracking.drop_task(context.gate, entry, number)?;
        }
        Ok(())
    }
}

/// The speed by which processor time is converted to cycles, where no driver reports one: that of
/// the first processor in /proc/cpuinfo.
fn nominal_khz() -> Result<u32> {
    let text = fs::read_to_string("/proc/cpuinfo").context("cannot read /proc/cpuinfo")?;
    let mhz = text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "cpu MHz").then(|| value.trim().parse::<f64>().ok())?
    });
    match mhz {
        Some(mhz) if mhz > 0.0 => Ok((mhz * 1000.0) as u32),
        _ => bail!("/proc/cpuinfo does not have the speed of the processor"),
    }
}
