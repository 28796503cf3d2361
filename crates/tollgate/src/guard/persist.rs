//! Stores and reports what the guard knows of its programs, and evicts profiles that no process
//! uses.

use anyhow::{Context as _, Result};
use kernel::gate::{Gate, Lock};
use kernel::guard::profile_table::ProfileTable;
use kernel::{enforcement, wire};

use super::baseline::BaselineId;
use super::clock::unix_now;
use super::extension::{Activity, Guard, path_of, title};
use super::policy::{Mode, Policy};
use super::report::{GuardReport as Report, GuardedProgram};
use super::store::{LockedStore, Store};
use super::tracked_program::TrackedProgram;
use crate::output::print_message;

/// Which programs are stored.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum SaveScope {
    /// Those that have made calls since they were last stored.
    All,
    /// Those that have learned something or changed their state since they were last stored.
    Changed,
}

impl Guard {
    /// Tries all programs and returns the first failure. Afterwards, the guard also uses what other
    /// Tollgate processes have stored meanwhile.
    pub fn save(&mut self, gate: &Gate, which: SaveScope) -> Result<()> {
        let store = self.store.clone();
        let lock = store.lock()?;
        let places: Vec<_> = self.programs.keys().copied().collect();
        let mut result = Ok(());
        for place in places {
            let Some((program, _)) = self.programs.get_mut(&place) else { continue };
            result = result.and(save(&lock, program, &self.policy.wire, which));
            if program.saved.has_more {
                let was_normal = program.profile.state() == wire::GUARD_NORMAL;
                let identity = program.identity();
                result =
                    result.and(identity.map_or(Ok(()), |identity| self.reload(gate, &identity)));
                self.log_learning_state(place, was_normal);
            }
        }
        result
    }

    fn log_learning_state(&self, place: u32, was_normal: bool) {
        let Some((program, _)) = self.programs.get(&place) else { return };
        if was_normal && program.profile.state() != wire::GUARD_NORMAL {
            let title = title(program);
            let _ = print_message(&format!(
                "tollgate: {title} is in training again and not tested, because another Tollgate \
                process has stored it in that state"
            ));
        }
    }

    /// Stores the baselines at the end of the session. It waits for the lock for the full default
    /// time, because nothing is stored later.
    pub fn save_at_end(&mut self) -> Result<()> {
        let store = Store::new(&self.policy.store);
        let lock = store.lock()?;
        let mut result = Ok(());
        for (program, _) in self.programs.values_mut() {
            result = result.and(save(&lock, program, &self.policy.wire, SaveScope::All));
        }
        result
    }

    /// The report, with the events since the last one.
    pub fn report(&mut self) -> Report {
        Report {
            mode: self.policy.mode.name().into(),
            response: self.response(),
            programs: self.program_reports(),
            events: std::mem::take(&mut self.events),
            events_left_out: self.events_left_out,
            unidentified: self.unidentified,
        }
    }

    /// The programs that made calls, the most anomalous one first.
    pub(super) fn program_reports(&self) -> Vec<GuardedProgram> {
        let mut programs: Vec<_> =
            self.programs.values().map(|(program, deeds)| program_report(program, deeds)).collect();
        programs.sort_by_key(|program| {
            (std::cmp::Reverse(program.anomalies), std::cmp::Reverse(program.calls))
        });
        programs.retain(|program| program.calls > 0);
        programs
    }

    pub(super) fn response(&self) -> String {
        response(&self.policy, self.enabled)
    }

    /// Stores programs that no process runs and frees their profiles, if few are left for new
    /// programs. Tries all of them and returns the first failure.
    pub fn evict_unused(&mut self, gate: &Gate) -> Result<()> {
        /// Several times the number of profiles that are made ahead (`READY_PROFILES` of
        /// crates/kernel/src/guard/profile_table.rs).
        const SPARE: usize = 256;
        /// Each takes the kernel some milliseconds, and held processes may have to wait meanwhile.
        const AT_ONCE: usize = 32;
        ProfileTable::new(gate).prune_program_keys()?;
        if self.programs.len() + SPARE < wire::GUARD_PROFILES as usize {
            return Ok(());
        }
        let in_use = ProfileTable::new(gate).profiles_in_use();
        let unused: Vec<_> =
            self.programs.keys().copied().filter(|place| !in_use.contains(place)).collect();
        let (mut result, mut retired) = (Ok(()), 0);
        for place in unused {
            let Some((program, _)) = self.programs.get_mut(&place) else { continue };
            let saved = save(&self.store.lock()?, program, &self.policy.wire, SaveScope::All);
            if saved.is_ok() && ProfileTable::new(gate).retire_profile(&Lock::take()?, place)? {
                self.programs.remove(&place);
                self.profile_slots.retain(|_, known| *known != place);
                retired += 1;
            }
            result = result.and(saved);
            if retired == AT_ONCE {
                break;
            }
        }
        result
    }

    /// Loads a program's baseline again after the store has received another one.
    pub fn reload(&mut self, gate: &Gate, identity: &BaselineId) -> Result<()> {
        let Some(place) = self.profile_slots.get(identity).copied() else { return Ok(()) };
        let lock = Lock::take()?;
        let Some((mut program, deeds)) = self.programs.remove(&place) else { return Ok(()) };
        program.reset();
        // Set even if the stored baseline could not be used before.
        program.digest = Some(identity.digest);
        ProfileTable::new(gate).restart_windows(place);
        let installed = self.install(&mut program, gate, &lock, identity);
        self.programs.insert(place, (program, deeds));
        installed
    }
}

fn save(
    store: &LockedStore<'_>,
    program: &mut TrackedProgram,
    wire: &wire::guard_parameters,
    which: SaveScope,
) -> Result<()> {
    let Some(own) = program.baseline(wire, unix_now()) else { return Ok(()) };
    let is_new = program.saved.at.is_none();
    if is_new && !own.has_learned() || !program.saved.needs_save(&own, which == SaveScope::All) {
        return Ok(());
    }
    let title = title(program);
    let context = || format!("cannot store the baseline of {title}");
    // Another Tollgate may have stored something meanwhile.
    let (mut baseline, has_more) =
        match store.load(&own.digest, own.scope.as_deref()).with_context(context)? {
            Some(stored) => program.saved.merged_into(&own, &stored)?,
            None => (own.clone(), false),
        };
    store.save(&mut baseline).with_context(context)?;
    program.saved.note(&own, baseline.saved);
    program.saved.has_more = has_more;
    Ok(())
}

fn program_report(program: &TrackedProgram, deeds: &Activity) -> GuardedProgram {
    let contents = program.profile.contents();
    let state = match contents.state {
        wire::GUARD_NORMAL => "normal",
        wire::GUARD_FROZEN => "frozen",
        _ => "training",
    };
    GuardedProgram {
        path: path_of(program),
        digest: program.digest.map(|digest| digest.to_string()),
        scope: program.scope.clone(),
        state: state.into(),
        calls: contents.made,
        early_calls: program.early_calls,
        pairs: contents.pairs.len(),
        windows: contents.windows.len(),
        unlearned: program.profile.unlearned(),
        anomalies: deeds.anomalies,
        max_lfc: deeds.max_lfc,
        holds: deeds.holds,
        held_ns: deeds.held_ns,
        killed: deeds.killed,
        refused: deeds.refused,
        unheld: deeds.unheld,
        bytes: program.profile.bytes() as u64,
    }
}

const KILL_AT_EXECVE: &str = "kill at an execve, before the new program runs";

/// Describes the response, and when it takes effect in a gate with `enabled`.
fn response(policy: &Policy, enabled: u32) -> String {
    let calls = enforcement::enforced_call_names(enabled).join(", ");
    let (way, denial) = match enabled {
        lsm if lsm & wire::GUARD_LSM != 0 => ("", "refuse an execve"),
        cgroup if cgroup & wire::GUARD_CGROUP != 0 => {
            (" (sockets: over IPv4 and IPv6; sends: by UDP with an address)", KILL_AT_EXECVE)
        }
        _ => ("", KILL_AT_EXECVE),
    };
    let when = format!("before {calls}{way}; at the end of other calls, or at once if they sleep");
    match policy.wire.response {
        wire::GUARD_DELAY => format!("delay {when}"),
        wire::GUARD_DENY => format!("{denial}, and delay {when}"),
        wire::GUARD_STOP => format!("stop {when}"),
        wire::GUARD_KILL => "kill, before the call's end".into(),
        _ => match policy.mode {
            Mode::Learn => "none; nothing is tested".into(),
            _ => "none".into(),
        },
    }
}
