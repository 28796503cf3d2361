//! The setup of pacing: the file of rules, and the levels and frequency domains of this machine.

use std::path::Path;

use ::pace::LevelFile;
use anyhow::{Context as _, Result, anyhow, bail};
use kernel::pace::cpufreq;
use kernel::session::SessionOptions;
use kernel::wire;

use super::arguments::PacingOptions;
use super::pacing_session::{PacingInSession, PacingInput};
use super::rules::ResolvedRules;
use super::sample_store::SampleStore;
use super::{machine_levels, rules};
use crate::extension::{Extension, ExtensionSetup, SessionContext};

/// Paces the tasks of a session.
pub struct PacingSetup {
    input: PacingInput,
}

impl PacingSetup {
    /// The setup of a command's options. `None` without a file of rules.
    pub fn of_options(options: &PacingOptions) -> Result<Option<Self>> {
        let store = SampleStore::new(&options.store.folder);
        options.file.as_deref().map(|file| Self::read(file, store)).transpose()
    }

    /// The same for the daemon, which gates all programs: if the file names no users, only programs
    /// of root may begin tasks themselves.
    pub fn of_daemon(options: &PacingOptions) -> Result<Option<Self>> {
        let mut setup = Self::of_options(options)?;
        if let Some(setup) = &mut setup {
            setup.input.tracking_rules.users.get_or_insert_default();
        }
        Ok(setup)
    }

    /// Reads a file of task rules, and the levels of this machine.
    fn read(path: &Path, store: SampleStore) -> Result<Self> {
        let ResolvedRules { rules, tracking_rules, levels } = rules::read(Some(path))?;
        let domains =
            cpufreq::domains(Path::new("/")).context("cannot read the frequency domains")?;
        if domains.is_empty() {
            bail!(
                "this machine has no cpufreq driver, so its speeds cannot be set; `tollgate pace \
                watch` shows what lower speeds would save"
            );
        }
        if let Some(LevelFile { levels, .. }) = levels {
            return Ok(Self { input: PacingInput { rules, tracking_rules, levels, store } });
        }
        let mut kinds = machine_levels::find().map_err(|error| {
            anyhow!(
                "{error:#}; describe the levels in a file, and name it in the file of rules: \
                levels = \"FILE\""
            )
        })?;
        if kinds.len() > 1 {
            bail!(
                "this machine has {} kinds of processors, and pacing supports one kind only; \
                `tollgate pace watch` shows what pacing would save",
                kinds.len()
            );
        }
        let levels = kinds.remove(0).levels;
        Ok(Self { input: PacingInput { rules, tracking_rules, levels, store } })
    }
}

impl ExtensionSetup for PacingSetup {
    fn configure(&self, options: &mut SessionOptions) {
        options.mask |= wire::PACE;
    }

    fn start(self: Box<Self>, context: &mut SessionContext<'_>) -> Result<Box<dyn Extension>> {
        Ok(Box::new(PacingInSession::start(self.input, context)?))
    }
}
