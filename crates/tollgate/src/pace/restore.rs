//! Restores the speeds of frequency domains that a killed Tollgate process has left.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
use kernel::pace::speed_journal::{self, JOURNAL, SpeedJournal};
use kernel::process::is_root;

use crate::output::{Output, log_message, print_message};

/// `tollgate pace restore`
pub fn restore() -> Result<ExitCode> {
    if !is_root() {
        bail!("only root can restore speeds; run it with sudo");
    }
    let mut journal = SpeedJournal::open(Path::new(JOURNAL))?;
    let restored = journal.restore(Path::new("/"))?;
    let left = journal.read()?;
    Output::Stdout.write(&match restored.as_slice() {
        [] => "nothing to restore: no killed Tollgate process has left its speeds\n".to_owned(),
        restored => format!("restored {}\n", names(restored)),
    })?;
    if left.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let left: Vec<_> = left.iter().map(|original| original.domain).collect();
    print_message(&format!(
        "tollgate: {} cannot be restored now: are its processors offline?",
        names(&left)
    ))?;
    Ok(ExitCode::FAILURE)
}

/// Restores what killed processes have left, if there is anything.
pub fn restore_abandoned() {
    if !is_root() {
        return;
    }
    let message = match speed_journal::restore_abandoned(Path::new("/"), Path::new(JOURNAL)) {
        Ok(restored) if restored.is_empty() => return,
        Ok(restored) => {
            format!("restored {}, whose speeds a killed Tollgate process had set", names(&restored))
        }
        Err(error) => format!("{error:#}"),
    };
    log_message(&message);
}

/// "policy0, policy2"
fn names(domains: &[u32]) -> String {
    let names: Vec<_> = domains.iter().map(|number| format!("policy{number}")).collect();
    names.join(", ")
}
