//! Watching as an extension of a session: collects the tasks that the gate follows.

use anyhow::Result;
use kernel::session::{LiveThread, SessionOptions};
use kernel::{ring, wire};

use super::recorder::Recorder;
use super::rules::ResolvedRules;
use super::tracked_tasks::TrackedTasks;
use super::watch_outcome::WatchOutcome;
use crate::extension::{Extension, ExtensionSetup, SessionContext};
use crate::report::Section;

/// Watches tasks without changing a speed.
pub struct PaceWatchSetup {
    pub rules: ResolvedRules,
    /// What to do with the tasks at the end.
    pub outcome: WatchOutcome,
}

impl ExtensionSetup for PaceWatchSetup {
    fn configure(&self, options: &mut SessionOptions) {
        options.mask |= wire::PACE;
    }

    fn start(self: Box<Self>, context: &mut SessionContext<'_>) -> Result<Box<dyn Extension>> {
        let tasks = TrackedTasks::start(context, &self.rules)?;
        let recorder = Recorder::new(self.rules.file);
        Ok(Box::new(WatchInSession {
            tasks,
            recorder,
            outcome: Some(self.outcome),
            has_unwritten_file: false,
        }))
    }
}

struct WatchInSession {
    tasks: TrackedTasks,
    recorder: Recorder,
    /// Taken at the end of the session.
    outcome: Option<WatchOutcome>,
    has_unwritten_file: bool,
}

impl Extension for WatchInSession {
    fn begin(&mut self, began_ns: u64) {
        self.recorder.begin(began_ns);
        self.tasks.begin();
    }

    fn on_record(&mut self, _context: &mut SessionContext<'_>, record: &[u8]) -> Result<bool> {
        let Some(named) = ring::pace_type(record) else { return Ok(false) };
        self.recorder.name_type(&named);
        Ok(true)
    }

    fn tend(&mut self, context: &mut SessionContext<'_>) -> Result<()> {
        self.tasks.ended().iter().for_each(|task| self.recorder.add(task));
        if let Some(abandoned) = self.tasks.check(context.gate)? {
            self.recorder.add_abandoned(abandoned);
        }
        Ok(())
    }

    fn before_detach(&mut self, _live: &[LiveThread]) {
        self.tasks.before_detach();
    }

    fn section(
        &mut self,
        _context: &mut SessionContext<'_>,
        notes: &mut Vec<String>,
    ) -> Result<Option<Box<dyn Section>>> {
        let (ended, unended) = self.tasks.at_end();
        let mut recorder = std::mem::take(&mut self.recorder);
        ended.iter().for_each(|task| recorder.add(task));
        recorder.add_abandoned(unended.abandoned);
        let recorded = recorder.finish(unended.unfinished);
        let Some(outcome) = self.outcome.take() else { return Ok(None) };
        let hardware = self.tasks.hardware_counts();
        Ok(Some(Box::new(outcome.section(
            recorded,
            hardware,
            notes,
            &mut self.has_unwritten_file,
        )?)))
    }

    fn has_unwritten_file(&self) -> bool {
        self.has_unwritten_file
    }
}
