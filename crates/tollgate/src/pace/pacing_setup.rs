//! The setup of pacing: the file of rules, and the levels and frequency domains of this machine.

use std::path::Path;

use ::pace::{Levels, TaskRules};
use anyhow::{Context as _, Result, anyhow, bail};
use kernel::pace::TrackingRules;
use kernel::pace::actuator::Actuator;
use kernel::pace::cpufreq::{self, FrequencyDomain};
use kernel::session::SessionOptions;
use kernel::wire;

use super::arguments::PacingOptions;
use super::pacing_session::PacingInSession;
use super::sample_store::SampleStore;
use super::{level_set, machine_levels, rules};
use crate::extension::{Extension, ExtensionSetup, SessionContext};
use crate::format::number_of;

/// Paces the tasks of a session.
pub struct PacingSetup {
    pub(super) rules: TaskRules,
    pub(super) tracking_rules: TrackingRules,
    pub(super) levels: Levels,
    pub(super) store: SampleStore,
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
            setup.tracking_rules.users.get_or_insert_default();
        }
        Ok(setup)
    }

    /// Reads a file of task rules, and the levels of this machine.
    fn read(path: &Path, store: SampleStore) -> Result<Self> {
        let rules = rules::read(Some(path))?;
        let tracking_rules = rules::tracking_rules(&rules)?;
        let domains =
            cpufreq::domains(Path::new("/")).context("cannot read the frequency domains")?;
        if domains.is_empty() {
            bail!(
                "this machine has no cpufreq driver, so its speeds cannot be set; `tollgate pace \
                watch` shows what lower speeds would save"
            );
        }
        if let Some(levels) = &rules.levels {
            let levels = level_set::find(levels)?.levels;
            return Ok(Self { rules, tracking_rules, levels, store });
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
        Ok(Self { rules, tracking_rules, levels, store })
    }
}

impl ExtensionSetup for PacingSetup {
    fn configure(&self, options: &mut SessionOptions) {
        options.mask |= wire::PACE;
    }

    fn start(self: Box<Self>, context: &mut SessionContext<'_>) -> Result<Box<dyn Extension>> {
        Ok(Box::new(PacingInSession::start(*self, context)?))
    }
}

/// The domains, each with the actuator of this name or, without one, the best actuator.
pub(super) fn with_actuators(
    root: &Path,
    domains: &[FrequencyDomain],
    name: Option<&str>,
) -> Result<Vec<(FrequencyDomain, Actuator)>> {
    let named = name.and_then(Actuator::of_name);
    if named == Some(Actuator::Clamp) && domains.len() > 1 {
        bail!(
            "the actuator \"clamp\" limits the whole machine, so it needs a single frequency \
            domain; this machine has {}; name another actuator",
            number_of(domains.len(), "frequency domain")
        );
    }
    let with_actuator = |domain: &FrequencyDomain| {
        let actuator = named.unwrap_or_else(|| Actuator::best(root, domain));
        if !actuator.is_available(root, domain) {
            bail!(
                "policy{} does not support the actuator {:?} (driver {}, governor {})",
                domain.number,
                actuator.name(),
                domain.driver,
                domain.governor
            );
        }
        Ok((domain.clone(), actuator))
    };
    domains.iter().map(with_actuator).collect()
}
