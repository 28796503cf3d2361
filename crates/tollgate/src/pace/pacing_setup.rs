//! The setup of pacing: the file of rules, and the levels and frequency domains of this machine.

use std::path::Path;

use ::pace::{LevelFile, Levels};
use anyhow::{Context as _, Result, anyhow, bail};
use kernel::pace::cpufreq::{self, FrequencyDomain};
use kernel::session::SessionOptions;
use kernel::wire;

use super::arguments::PacingOptions;
use super::pacing_session::{PacingInSession, PacingInput};
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
            setup.input.rules.tracking_rules.users.get_or_insert_default();
        }
        Ok(setup)
    }

    /// Reads a file of task rules, and the levels of this machine.
    fn read(path: &Path, store: SampleStore) -> Result<Self> {
        let (rules, levels) = rules::read(Some(path))?;
        let domains =
            cpufreq::domains(Path::new("/")).context("cannot read the frequency domains")?;
        if domains.is_empty() {
            bail!(
                "this machine has no cpufreq driver, so its speeds cannot be set; `tollgate pace \
                watch` shows what lower speeds would save"
            );
        }
        if let Some(LevelFile { levels, .. }) = levels {
            let named = rules.file.levels.as_ref();
            check_levels(&levels, &domains)
                .map_err(|error| rules.locate(named, error, HELP_OF_LEVELS))?;
            return Ok(Self { input: PacingInput { rules, levels, store } });
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
        Ok(Self { input: PacingInput { rules, levels, store } })
    }
}

const HELP_OF_LEVELS: &str = "pacing needs the levels of this machine; `tollgate pace watch \
    --levels` and `simulate` compare policies on other machines";

/// The fastest level of a file of rules must be the fastest speed of this machine: a task that
/// exceeds all that was seen runs at that level.
fn check_levels(levels: &Levels, domains: &[FrequencyDomain]) -> Result<()> {
    /// Speeds have up to four digits in MHz.
    const ROUNDING: f64 = 1e-3;
    let level = levels.all().last().expect("there is a level").hz / 1e6;
    for domain in domains {
        let fastest = domain.range.1 as f64 / 1e3;
        if (level - fastest).abs() > fastest * ROUNDING {
            bail!(
                "the fastest of these levels is {level} MHz, but the fastest speed of policy{} is \
                {fastest} MHz",
                domain.number
            );
        }
    }
    Ok(())
}

impl ExtensionSetup for PacingSetup {
    fn configure(&self, options: &mut SessionOptions) {
        options.mask |= wire::PACE;
    }

    fn start(self: Box<Self>, context: &mut SessionContext<'_>) -> Result<Box<dyn Extension>> {
        Ok(Box::new(PacingInSession::start(self.input, context)?))
    }
}

#[cfg(test)]
mod tests {
    use ::pace::Level;

    use super::*;

    #[test]
    fn levels_of_another_machine_are_refused() {
        let levels = [1.2e9, 3e9].map(|hz| Level { hz, watts: hz / 1e9 });
        let levels = Levels::new(levels.into(), 0.0).unwrap();
        let domain = |fastest_khz| FrequencyDomain {
            number: 1,
            cpus: vec![0],
            driver: "acpi-cpufreq".into(),
            governor: "schedutil".into(),
            khz: Vec::new(),
            range: (800_000, fastest_khz),
        };
        // The driver adds 1 MHz for speeds that the processor chooses itself.
        check_levels(&levels, &[domain(3_000_000), domain(3_001_000)]).unwrap();
        let error = check_levels(&levels, &[domain(3_000_000), domain(4_000_000)]).unwrap_err();
        let expected = "is 3000 MHz, but the fastest speed of policy1 is 4000 MHz";
        assert!(error.to_string().contains(expected), "{error}");
    }
}
