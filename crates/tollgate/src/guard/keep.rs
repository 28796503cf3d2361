//! What the guard knows of its programs: stored while it works, given back when nobody uses it, and told.

use anyhow::{Context as _, Result};
use kernel::gate::{Gate, Lock};
use kernel::{before, wire};

use super::baseline::Identity;
use super::live::{Deeds, Guard, path_of, title};
use super::policy::{Mode, Policy};
use super::program::Program;
use super::store::{Locked, Store};
use super::unix_now;
use crate::output::say;
use crate::report::{Guard as Report, GuardedProgram};

/// Which programs are written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Save {
    /// Those that made calls since.
    All,
    /// Those that learned something or changed their state since.
    Changed,
}

impl Guard {
    /// All are tried; the first failure is returned. What others have stored meanwhile is in use then, too.
    pub fn save(&mut self, gate: &Gate, which: Save) -> Result<()> {
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
                result = result.and(identity.map_or(Ok(()), |identity| self.reload(gate, &identity)));
                self.tell_of_learning(place, was_normal);
            }
        }
        result
    }

    fn tell_of_learning(&self, place: u32, was_normal: bool) {
        let Some((program, _)) = self.programs.get(&place) else { return };
        if was_normal && program.profile.state() != wire::GUARD_NORMAL {
            let title = title(program);
            let _ = say(&format!(
                "tollgate: {title} learns again, and is not tested: so another Tollgate has stored it"
            ));
        }
    }

    /// At the end: with all the patience there is, as nothing is stored later.
    pub fn save_finally(&mut self) -> Result<()> {
        let store = Store::new(&self.policy.store);
        let lock = store.lock()?;
        let mut result = Ok(());
        for (program, _) in self.programs.values_mut() {
            result = result.and(save(&lock, program, &self.policy.wire, Save::All));
        }
        result
    }

    /// Stores what was learned, if that is possible, and tells what happened. The warden is to be dismissed when nobody
    /// is held any more.
    pub fn finish(&mut self) -> (Report, Result<()>) {
        (self.report(), self.save_finally())
    }

    /// With the events since the last one.
    fn report(&mut self) -> Report {
        Report {
            mode: self.policy.mode.name().into(),
            response: self.response(),
            programs: self.accounts(),
            events: std::mem::take(&mut self.events),
            events_left_out: self.events_left_out,
            unidentified: self.unidentified,
        }
    }

    /// Of each program that made calls, the most unusual one first.
    pub(super) fn accounts(&self) -> Vec<GuardedProgram> {
        let mut programs: Vec<_> =
            self.programs.values().map(|(program, deeds)| account(program, deeds)).collect();
        programs
            .sort_by_key(|program| (std::cmp::Reverse(program.anomalies), std::cmp::Reverse(program.calls)));
        programs.retain(|program| program.calls > 0);
        programs
    }

    pub(super) fn response(&self) -> String {
        response(&self.policy, self.enabled)
    }

    /// Programs that nobody runs are stored, and their profiles given back, if few are left for new ones. All are tried;
    /// the first failure is returned.
    pub fn retire_unused(&mut self, gate: &Gate) -> Result<()> {
        /// As many are made ahead (`READY` of crates/kernel/src/profiles.rs), several times over.
        const SPARE: usize = 256;
        /// Each takes the kernel some milliseconds, and those that are held may wait.
        const AT_ONCE: usize = 32;
        gate.forget_names()?;
        if self.programs.len() + SPARE < wire::GUARD_PROFILES as usize {
            return Ok(());
        }
        let in_use = gate.profiles_in_use();
        let unused: Vec<_> = self.programs.keys().copied().filter(|place| !in_use.contains(place)).collect();
        let (mut result, mut retired) = (Ok(()), 0);
        for place in unused {
            let Some((program, _)) = self.programs.get_mut(&place) else { continue };
            let saved = save(&self.store.lock()?, program, &self.policy.wire, Save::All);
            if saved.is_ok() && gate.retire_profile(&Lock::take()?, place)? {
                self.programs.remove(&place);
                self.places.retain(|_, known| *known != place);
                retired += 1;
            }
            result = result.and(saved);
            if retired == AT_ONCE {
                break;
            }
        }
        result
    }

    /// The store has another baseline of this program than what is in use.
    pub fn reload(&mut self, gate: &Gate, identity: &Identity) -> Result<()> {
        let Some(place) = self.places.get(identity).copied() else { return Ok(()) };
        let lock = Lock::take()?;
        let Some((mut program, deeds)) = self.programs.remove(&place) else { return Ok(()) };
        program.forget();
        // Also where what was stored could not be used.
        program.digest = Some(identity.digest);
        gate.begin_windows_anew(place);
        let installed = self.install(&mut program, gate, &lock, identity);
        self.programs.insert(place, (program, deeds));
        installed
    }
}

fn save(store: &Locked<'_>, program: &mut Program, wire: &wire::guard_parameters, which: Save) -> Result<()> {
    let Some(own) = program.baseline(wire, unix_now()) else { return Ok(()) };
    let is_new = program.saved.at.is_none();
    if is_new && !own.has_learned() || !program.saved.differs(&own, which == Save::All) {
        return Ok(());
    }
    let title = title(program);
    let context = || format!("what {title} does could not be stored");
    // Another Tollgate may have stored something meanwhile.
    let (mut baseline, has_more) =
        match store.load(&own.digest, own.scope.as_deref()).with_context(context)? {
            Some(stored) => program.saved.with(&own, &stored)?,
            None => (own.clone(), false),
        };
    store.save(&mut baseline).with_context(context)?;
    program.saved.note(&own, baseline.saved);
    program.saved.has_more = has_more;
    Ok(())
}

fn account(program: &Program, deeds: &Deeds) -> GuardedProgram {
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

/// In words, with when it takes effect in a gate with `enabled`.
fn response(policy: &Policy, enabled: u32) -> String {
    let calls = before::names(enabled).join(", ");
    let (way, denial) = match enabled {
        lsm if lsm & wire::GUARD_LSM != 0 => ("", "refuse an execve"),
        cgroup if cgroup & wire::GUARD_CGROUP != 0 => {
            (" (sockets: over IPv4 and IPv6; sends: by UDP with an address)", KILL_AT_EXECVE)
        }
        _ => ("", KILL_AT_EXECVE),
    };
    let when = format!("before {calls}{way}; at the end of other calls, or at once where they sleep");
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
