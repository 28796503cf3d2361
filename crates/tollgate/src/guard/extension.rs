//! The guard of a running session: it assigns baselines to programs, advances their states and
//! releases held processes.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use kernel::clock::{now_ns, wall_clock};
use kernel::gate::{Gate, Lock};
use kernel::guard::holds::Holds;
use kernel::guard::profile::window_symbols;
use kernel::guard::profile_table::ProfileTable;
use kernel::process::{is_stopped, session_of};
use kernel::session::Session;
use kernel::signals::was_termination_requested;
use kernel::wire;

use super::baseline::{BaselineId, Digest};
use super::clock::unix_now;
use super::file_hasher::{FileHasher, StartedProgram};
use super::placement::UnitAndContainer;
use super::policy::{Mode, Policy};
use super::program_file::{open_program, opened_path};
use super::report::{GuardEvent, with_scope};
use super::scopes::{MAX_SCOPES, SessionScopes, has_free_scope};
use super::store::Store;
use super::tracked_program::{TrackedProgram, name};
use super::training_stops::TrainingStops;
use super::watchdog::HoldWatchdog;
use crate::format::number_of;
use crate::output::print_message;

/// The limit of kept events; further ones are only counted.
const EVENTS: usize = 10_000;

/// A hold long enough to puzzle a user at a terminal.
const REPORTED_HOLD_NS: u64 = 1_000_000_000;

/// How often the guard prints that it can hold no further process.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// What a program did in this session.
#[derive(Default)]
pub(super) struct Activity {
    pub anomalies: u64,
    pub max_lfc: u32,
    pub holds: u64,
    pub held_ns: u64,
    pub killed: u64,
    pub refused: u64,
    pub unheld: u64,
}

pub struct Guard {
    pub(super) policy: Policy,
    /// What the gate does for the guard: bits of [`wire::gate_mask`].
    pub(super) enabled: u32,
    /// An operator has switched responses off.
    pub(super) is_off: bool,
    pub(super) store: Store,
    pub(super) session: u32,
    pub(super) programs: BTreeMap<u32, (TrackedProgram, Activity)>,
    pub(super) profile_slots: BTreeMap<BaselineId, u32>,
    pub(super) scopes: SessionScopes,
    pub(super) events: Vec<GuardEvent>,
    pub(super) events_left_out: u64,
    pub(super) unidentified: u64,
    began_ns: u64,
    next_release_ns: Option<u64>,
    next_training_stop_ns: u64,
    unheld_reported: Option<Instant>,
    held_reported: bool,
    pub(super) reader: FileHasher,
    pub(super) watchdog: Option<HoldWatchdog>,
    training_stops: Option<TrainingStops>,
}

/// A program whose file could be read.
pub(super) struct IdentifiedProgram {
    pub path: PathBuf,
    pub metadata: fs::Metadata,
    /// None: the program is trained as well, but its baseline could not be found again.
    pub identity: Option<BaselineId>,
}

impl Guard {
    pub fn mode(&self) -> Mode {
        self.policy.mode
    }

    pub fn start(gate: &Gate, lock: &Lock, session: &Session, policy: Policy) -> Result<Self> {
        let (store, scopes) = (Store::new(&policy.store), SessionScopes::new(policy.scope));
        // Without the store nothing could be learned, so no program could be guarded.
        store.lock()?;
        // From now on, a process may have to be released in time.
        let store = store.with_lock_timeout(Duration::from_secs(1));
        ProfileTable::new(gate).make_profiles(lock)?;
        let watchdog =
            policy.holds().then(|| HoldWatchdog::start(gate, session.index)).transpose()?;
        Ok(Self {
            training_stops: policy.train_on_stops.map(TrainingStops::new),
            policy,
            is_off: false,
            enabled: gate.sessions.read(session.index).mask,
            store,
            session: session.index,
            programs: BTreeMap::new(),
            profile_slots: BTreeMap::new(),
            scopes,
            events: Vec::new(),
            events_left_out: 0,
            unidentified: 0,
            began_ns: now_ns(),
            next_release_ns: None,
            next_training_stop_ns: u64::MAX,
            unheld_reported: None,
            held_reported: false,
            reader: FileHasher::default(),
            watchdog,
        })
    }

    pub fn begin(&mut self, began_ns: u64) {
        self.began_ns = began_ns;
    }

    /// Tracks the program of this profile slot and loads its baseline.
    pub(super) fn track(
        &mut self,
        gate: &Gate,
        lock: &Lock,
        place: u32,
        IdentifiedProgram { path, metadata, identity }: IdentifiedProgram,
    ) -> Result<()> {
        let profile = ProfileTable::new(gate).profile(place)?;
        let mut program = TrackedProgram::new(profile, Some(path), identity.clone());
        if self.policy.selection.is_exempt(&metadata) {
            program.profile.set_exempt();
        }
        if let Some(identity) = identity {
            self.install(&mut program, gate, lock, &identity)?;
            self.profile_slots.insert(identity, place);
        }
        self.programs.insert(place, (program, Activity::default()));
        Ok(())
    }

    pub(super) fn install(
        &self,
        program: &mut TrackedProgram,
        gate: &Gate,
        lock: &Lock,
        of: &BaselineId,
    ) -> Result<()> {
        let baseline = match self.store.load(&of.digest, of.scope.as_deref()) {
            Ok(Some(baseline)) => baseline,
            Ok(None) => return Ok(()),
            // An error of one program's baseline must not affect the other programs.
            Err(error) => {
                let path = title(program);
                let _ = print_message(&format!(
                    "tollgate: the stored baseline of {path} cannot be used: {error:#}; it stays \
                    as it is, and what is learned now is not stored"
                ));
                program.digest = None;
                return Ok(());
            }
        };
        let wire::guard_parameters { lookahead, sequence, .. } = self.policy.wire;
        if (baseline.lookahead, baseline.sequence) != (lookahead.into(), sequence.into()) {
            let _ = print_message(&format!(
                "tollgate: the stored baseline of {} has windows of {} and {} calls instead of \
                {lookahead} and {sequence}: it stays as it is, and what is learned now is not \
                stored",
                super::resolve::short_name(&baseline),
                baseline.lookahead,
                baseline.sequence
            ));
            program.digest = None;
            return Ok(());
        }
        while baseline.windows.len() > program.profile.window_capacity()
            && ProfileTable::new(gate).add_overflow(lock, &mut program.profile)?
        {}
        let unfit = program.install(baseline, self.policy.mode);
        if unfit > 0 {
            // The missing part would be anomalous.
            program.profile.tolerize();
            let _ = print_message(&format!(
                "tollgate: {unfit} pairs and windows of {} do not fit into its profile in the \
                kernel, so the program is not tested",
                title(program)
            ));
        }
        Ok(())
    }

    /// The events since the last call of this function.
    pub fn take_events(&mut self) -> Vec<GuardEvent> {
        std::mem::take(&mut self.events)
    }

    /// Handles the start of a program.
    pub fn on_program_start(
        &mut self,
        gate: &Gate,
        record: &wire::guard_program_record,
    ) -> Result<()> {
        let place = record.profile_slot;
        let Some(file) = open_program(record) else { return self.track_unidentified(gate, place) };
        let (metadata, path) = (file.metadata()?, opened_path(&file).unwrap_or_default());
        if !self.policy.selection.is_selected(&path, &metadata) {
            let (lock, profiles) = (Lock::take()?, ProfileTable::new(gate));
            let (program, to) = (&record.program, wire::GUARD_PROFILE_UNSELECTED);
            profiles.share_profile(&lock, program, place, to)?;
            if self.policy.scope.is_some() {
                profiles.insert_any_scope_key(&lock, program, to)?;
            }
            return Ok(());
        }
        let (key, scope) = (record.program, self.scopes.of_record(record));
        match self.reader.read(StartedProgram {
            profile_slot: place,
            key,
            file,
            path,
            metadata,
            scope,
        }) {
            Some((met, digest)) => self.on_hashed(gate, met, digest),
            None => Ok(()),
        }
    }

    fn on_hashed(
        &mut self,
        gate: &Gate,
        met: StartedProgram,
        digest: Option<Digest>,
    ) -> Result<()> {
        let (lock, StartedProgram { profile_slot: place, key, path, metadata, scope, .. }) =
            (Lock::take()?, met);
        let mut identity = digest.map(|digest| BaselineId { digest, scope });
        let is_one_too_many = |of: &BaselineId| {
            !self.profile_slots.contains_key(of) && !has_free_scope(of, self.profile_slots.keys())
        };
        let too_many = identity.as_ref().is_some_and(is_one_too_many);
        if let Some(identity) = identity.as_mut().filter(|_| too_many) {
            identity.scope = None;
            let _ = print_message(&format!(
                "tollgate: {} runs in more than {MAX_SCOPES} scopes: in further scopes it uses \
                the baseline without a scope",
                path.display()
            ));
        }
        let known =
            identity.as_ref().and_then(|identity| self.profile_slots.get(identity)).copied();
        let known = known.filter(|known| *known != place);
        if too_many {
            ProfileTable::new(gate).insert_any_scope_key(&lock, &key, known.unwrap_or(place))?;
        }
        let Some(known) = known else {
            return self.track(gate, &lock, place, IdentifiedProgram { path, metadata, identity });
        };
        let calls = ProfileTable::new(gate).share_profile(&lock, &key, place, known)?;
        if let Some((program, _)) = self.programs.get_mut(&known) {
            program.early_calls += calls;
            // A copy, which any user can make, may have started before the exempt program itself.
            if self.policy.selection.is_exempt(&metadata) {
                program.profile.set_exempt();
            }
        }
        Ok(())
    }

    /// The program is trained, but its baseline could not be found again.
    fn track_unidentified(&mut self, gate: &Gate, place: u32) -> Result<()> {
        self.unidentified += 1;
        let profile = ProfileTable::new(gate).profile(place)?;
        self.programs
            .insert(place, (TrackedProgram::new(profile, None, None), Activity::default()));
        Ok(())
    }

    pub fn on_event(&mut self, event: &wire::guard_event) {
        let Some((program, deeds)) = self.programs.get_mut(&event.profile_slot) else { return };
        let is_held = event.held_until_ns != 0;
        // A hold without an end has no length.
        let until =
            if event.held_until_ns == u64::MAX { event.time_ns } else { event.held_until_ns };
        let held_ns = until.saturating_sub(event.time_ns);
        let action = u32::from(event.action);
        deeds.anomalies += u64::from(event.mismatches > 0);
        deeds.max_lfc = deeds.max_lfc.max(event.lfc.into());
        deeds.holds += u64::from(is_held);
        deeds.held_ns = deeds.held_ns.saturating_add(held_ns);
        let is_refused = event.precall & wire::PRECALL_DENY != 0;
        let is_killed =
            !is_held && matches!(action, wire::GUARD_DENY | wire::GUARD_KILL) && !is_refused;
        deeds.killed += u64::from(is_killed);
        deeds.refused += u64::from(is_refused);
        let is_unheld = event.restraint == wire::GUARD_MAX_HELD;
        deeds.unheld += u64::from(is_unheld);
        if is_unheld && self.unheld_reported.is_none_or(|told| told.elapsed() > REPORT_INTERVAL) {
            self.unheld_reported = Some(Instant::now());
            let _ = print_message(&format!(
                "tollgate: {} held, the maximum of --max-held: further unusual calls are only \
                reported until one is released",
                number_of(self.policy.wire.max_held as usize, "process")
            ));
        }
        if self.policy.reports_holds
            && is_held
            && event.held_until_ns.saturating_sub(event.time_ns) >= REPORTED_HOLD_NS
        {
            self.policy.reports_holds = false;
            let _ = print_message(&format!(
                "tollgate: {} is held because of unusual calls; `tollgate guard off` releases all \
                processes",
                title(program)
            ));
        }
        if held_ns > 0 {
            self.next_release_ns =
                Some(self.next_release_ns.unwrap_or(u64::MAX).min(event.held_until_ns));
        }
        if self.events.len() == EVENTS {
            self.events_left_out += 1;
            return;
        }
        let window = window_symbols(event.window);
        let before = window.len().checked_sub(2).map(|place| window[place]);
        let mismatches = event.mismatches & !(wire::GUARD_DENOUNCED as u16);
        let expected =
            before.filter(|_| mismatches > 0).map(|symbol| program.expected_after(symbol));
        let late_ns = now_ns().saturating_sub(event.time_ns);
        let UnitAndContainer { unit, container } = UnitAndContainer::of(event.tgid);
        self.events.push(GuardEvent {
            time: humantime::format_rfc3339_micros(wall_clock(event.time_ns)).to_string(),
            at_ns: event.time_ns.saturating_sub(self.began_ns),
            unit,
            container,
            pid: event.tgid,
            tid: event.pid,
            program: path_of(program),
            scope: program.scope.clone(),
            command: wire::text(&event.comm),
            call: name(event.call),
            sequence: window.iter().map(|symbol| program.call(*symbol)).collect(),
            expected: expected.unwrap_or_default(),
            mismatches,
            is_denounced: mismatches != event.mismatches,
            lfc: event.lfc,
            action: action_name(action).into(),
            restraint: restraint(event.restraint).map(str::to_owned),
            effect: effect(event).map(Into::into),
            held_ns,
            late_ns,
        });
    }

    /// Must be called at least as often as [`Guard::deadline`] requires.
    pub fn tend(&mut self, gate: &Gate) -> Result<()> {
        let (holds, profiles) = (Holds::new(gate, self.session), ProfileTable::new(gate));
        if holds.was_switched_off() && !self.is_off {
            self.is_off = true;
            let _ = print_message(
                "tollgate: the guard was switched off by `tollgate guard off` and holds no \
                process any more",
            );
        }
        if was_termination_requested() {
            holds.wake_for_termination();
            let held = holds.held().len();
            if held > 0 && !std::mem::replace(&mut self.held_reported, true) {
                let held = number_of(held, "process");
                let _ = print_message(&format!(
                    "tollgate: {held} held: a process that handles the signal is stopped again, \
                    and only SIGKILL ends it"
                ));
            }
        }
        self.next_training_stop_ns = u64::MAX;
        if let (Some(training_stops), false) = (&mut self.training_stops, self.is_off) {
            let spared = self.policy.selection.exempt_sid;
            let is_learning = |tgid, place| {
                let program = self.programs.get(&place).map(|(program, _)| &program.profile);
                program.is_some_and(|it| it.state() != wire::GUARD_NORMAL && !it.is_exempt())
                    && (spared.is_none() || session_of(tgid) != spared)
                    // Another process stopped it and does not expect it to continue.
                    && !is_stopped(tgid)
            };
            self.next_training_stop_ns = training_stops.tend(gate, self.session, is_learning);
        }
        self.next_release_ns = holds.release_expired();
        for (met, digest) in self.reader.done() {
            self.on_hashed(gate, met, digest)?;
        }
        let now = unix_now();
        let (mode, wait) = (self.policy.mode, self.policy.normal_wait);
        for (program, _) in self.programs.values_mut() {
            program.tick(now, wait, mode);
        }
        let is_small = |(program, _): &(TrackedProgram, Activity)| program.profile.needs_overflow();
        if profiles.needs_profiles() || self.programs.values().any(is_small) {
            let lock = Lock::take()?;
            for (program, _) in self.programs.values_mut().filter(|entry| is_small(entry)) {
                profiles.add_overflow(&lock, &mut program.profile)?;
            }
            profiles.make_profiles(&lock)?;
        }
        if let Some(watchdog) = &mut self.watchdog {
            watchdog.tend(gate, self.session)?;
        }
        Ok(())
    }

    /// Must be called when no process is held any more. If Tollgate ends before that, the watchdog
    /// releases the processes.
    pub fn dismiss_watchdog(&mut self) {
        if let Some(watchdog) = self.watchdog.take() {
            watchdog.stop();
        }
    }

    /// The time until the next release or training stop, at most `most`.
    pub fn deadline(&self, most: Duration) -> Duration {
        let next = self.next_release_ns.unwrap_or(u64::MAX).min(self.next_training_stop_ns);
        Duration::from_nanos(next.saturating_sub(now_ns())).min(most)
    }
}

pub(super) fn path_of(program: &TrackedProgram) -> String {
    program
        .path
        .as_ref()
        .map_or_else(|| "(ended too soon)".into(), |path| path.to_string_lossy().into_owned())
}

/// The program's path and scope, for display.
pub(super) fn title(program: &TrackedProgram) -> String {
    with_scope(&path_of(program), program.scope.as_deref())
}

fn action_name(action: u32) -> &'static str {
    match action {
        wire::GUARD_DELAY => "delay",
        wire::GUARD_DENY => "deny",
        wire::GUARD_STOP => "stop",
        wire::GUARD_KILL => "kill",
        _ => "observe",
    }
}

fn restraint(why: u32) -> Option<&'static str> {
    match why {
        wire::GUARD_EXEMPT => Some("never held"),
        wire::GUARD_MAX_HELD => Some("too many are held"),
        _ => None,
    }
}

/// The point of the call at which the response takes effect.
fn effect(event: &wire::guard_event) -> Option<&'static str> {
    match (u32::from(event.action), event.precall) {
        (wire::GUARD_OBSERVE, _) => None,
        (wire::GUARD_DELAY | wire::GUARD_STOP, 0) | (wire::GUARD_KILL, _) => Some("end"),
        (_, before) if before & wire::PRECALL_IP_ONLY != 0 => Some("before-ip"),
        (_, before) if before & wire::PRECALL_DEFER != 0 => Some("next"),
        _ => Some("before"),
    }
}
