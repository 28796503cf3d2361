//! Logs that programs ran without a profile.

use std::time::{Duration, Instant};

use anyhow::Result;
use kernel::wire;

use crate::extension::SessionContext;
use crate::format::number_of;
use crate::output::log_message;

/// How often at most a message is logged.
const INTERVAL: Duration = Duration::from_secs(60);

/// The programs without a profile.
#[derive(Default)]
pub struct UnguardedPrograms {
    logged: u64,
    latest: Option<Instant>,
}

impl UnguardedPrograms {
    /// Logs how many programs have run without a profile since the latest message.
    pub fn tend(&mut self, context: &SessionContext<'_>) -> Result<()> {
        if self.latest.is_some_and(|latest| latest.elapsed() < INTERVAL) {
            return Ok(());
        }
        let losses = context.gate.losses(context.session.index)?;
        let all = [wire::LOSS_PROFILES, wire::LOSS_USER_PROFILES].map(|at| losses[at as usize]);
        let more = all.iter().sum::<u64>() - self.logged;
        if more > 0 {
            self.latest = Some(Instant::now());
            self.logged += more;
            let programs = number_of(more as usize, "program");
            log_message(&format!(
                "{programs} started without a profile and {} not guarded: too many new programs \
                started at the same time, or too many of one user are tracked",
                if more == 1 { "is" } else { "are" }
            ));
        }
        Ok(())
    }
}
