//! The guard at work on a session: programs get their baselines, time passes for them, and the held are let go.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use kernel::clock::{now_ns, wall_clock};
use kernel::gate::{Gate, Lock};
use kernel::process::{is_stopped, session_of};
use kernel::profile::symbols;
use kernel::session::Session;
use kernel::signals::was_asked_to_end;
use kernel::wire;

use super::baseline::{Digest, Identity};
use super::content::{Met, Reader};
use super::file::{open_program, opened_path};
use super::placement::Placement;
use super::policy::{Mode, Policy};
use super::program::{Program, name};
use super::rehearsal::Rehearsal;
use super::scope::{MOST_SCOPES, Scopes, has_room};
use super::store::Store;
use super::unix_now;
use super::warden::Warden;
use crate::format::number_of;
use crate::output::say;
use crate::report::{Event, scoped};
use crate::slow;

/// More events than this are counted only.
const EVENTS: usize = 10_000;

/// A hold that people at a terminal wonder about.
const LONG_NS: u64 = 1_000_000_000;

/// That nobody else can be held.
const TELL_AGAIN: Duration = Duration::from_secs(60);

/// A record from the gate.
pub enum Notice {
    Program(Box<wire::guard_program_record>),
    Event(wire::guard_event),
}

/// What a program did in this session.
#[derive(Default)]
pub(super) struct Deeds {
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
    /// What the gate does for it: bits of [`wire::gate_mask`].
    pub(super) enabled: u32,
    /// An operator has switched responses off.
    pub(super) is_off: bool,
    pub(super) store: Store,
    pub(super) session: u32,
    pub(super) programs: BTreeMap<u32, (Program, Deeds)>,
    pub(super) places: BTreeMap<Identity, u32>,
    pub(super) scopes: Scopes,
    pub(super) events: Vec<Event>,
    pub(super) events_left_out: u64,
    pub(super) unidentified: u64,
    began_ns: u64,
    next_release_ns: Option<u64>,
    next_rehearsal_ns: u64,
    told_of_unheld: Option<Instant>,
    told_of_held: bool,
    pub(super) reader: Reader,
    pub(super) warden: Option<Warden>,
    rehearsal: Option<Rehearsal>,
}

/// A program whose file could be read.
pub(super) struct Known {
    pub path: PathBuf,
    pub metadata: fs::Metadata,
    /// None: it learns, too, but nobody would find again what.
    pub identity: Option<Identity>,
}

impl Guard {
    pub fn mode(&self) -> Mode {
        self.policy.mode
    }

    pub fn start(gate: &Gate, lock: &Lock, session: &Session, policy: Policy) -> Result<Self> {
        let (store, scopes) = (Store::new(&policy.store), Scopes::new(policy.scope));
        // Nothing could be learned, so nobody be guarded.
        store.lock()?;
        // From now on, somebody may have to be let go in time.
        let store = store.with_patience(Duration::from_secs(1));
        gate.make_profiles(lock)?;
        let warden = policy.holds().then(|| Warden::start(gate, session.index)).transpose()?;
        Ok(Self {
            rehearsal: policy.rehearse.map(Rehearsal::new),
            policy,
            is_off: false,
            enabled: gate.sessions.read(session.index).mask,
            store,
            session: session.index,
            programs: BTreeMap::new(),
            places: BTreeMap::new(),
            scopes,
            events: Vec::new(),
            events_left_out: 0,
            unidentified: 0,
            began_ns: now_ns(),
            next_release_ns: None,
            next_rehearsal_ns: u64::MAX,
            told_of_unheld: None,
            told_of_held: false,
            reader: Reader::default(),
            warden,
        })
    }

    pub fn begin(&mut self) {
        self.began_ns = now_ns();
    }

    /// The profile at this place is of this program, and gets its baseline.
    pub(super) fn admit(
        &mut self,
        gate: &Gate,
        lock: &Lock,
        place: u32,
        Known { path, metadata, identity }: Known,
    ) -> Result<()> {
        let mut program = Program::new(gate.profile(place)?, Some(path), identity.clone());
        if self.policy.selection.is_spared(&metadata) {
            program.profile.spare();
        }
        if let Some(identity) = identity {
            self.install(&mut program, gate, lock, &identity)?;
            self.places.insert(identity, place);
        }
        self.programs.insert(place, (program, Deeds::default()));
        Ok(())
    }

    pub(super) fn install(
        &self,
        program: &mut Program,
        gate: &Gate,
        lock: &Lock,
        of: &Identity,
    ) -> Result<()> {
        let baseline = match self.store.load(&of.digest, of.scope.as_deref()) {
            Ok(Some(baseline)) => baseline,
            Ok(None) => return Ok(()),
            // Of one program, which nobody else has to suffer for.
            Err(error) => {
                let path = title(program);
                let _ = say(&format!(
                    "tollgate: the baseline of {path} is left alone, and learned anew: {error:#}"
                ));
                program.digest = None;
                return Ok(());
            }
        };
        let wire::guard_parameters { lookahead, sequence, .. } = self.policy.wire;
        if (baseline.lookahead, baseline.sequence) != (lookahead.into(), sequence.into()) {
            let _ = say(&format!(
                "tollgate: the baseline of {} has windows of {} and {} calls, not {lookahead} and {sequence}: it is left \
                 alone, and what is learned now is not stored",
                super::select::short_name(&baseline),
                baseline.lookahead,
                baseline.sequence
            ));
            program.digest = None;
            return Ok(());
        }
        while baseline.windows.len() > program.profile.room_for_windows()
            && gate.make_room(lock, &mut program.profile)?
        {}
        let unfit = program.install(baseline, self.policy.mode);
        if unfit > 0 {
            // What it lacks would be unusual.
            program.profile.tolerize();
            let _ = say(&format!(
                "tollgate: {unfit} pairs and windows of {} have no room in the kernel, so it is not tested",
                title(program)
            ));
        }
        Ok(())
    }

    pub fn take(&mut self, gate: &Gate, notice: &Notice) -> Result<()> {
        match notice {
            Notice::Program(record) => self.meet(gate, record),
            Notice::Event(event) => {
                self.note(event);
                Ok(())
            }
        }
    }

    /// Those since the last time.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// A program that began.
    fn meet(&mut self, gate: &Gate, record: &wire::guard_program_record) -> Result<()> {
        let place = record.profile;
        let Some(file) = open_program(record) else { return self.meet_unknown(gate, place) };
        let (metadata, path) = (file.metadata()?, opened_path(&file).unwrap_or_default());
        if !self.policy.selection.is_chosen(&path, &metadata) {
            let lock = Lock::take()?;
            gate.share_profile(&lock, &record.program, place, wire::GUARD_NOT_CHOSEN)?;
            if self.policy.scope.is_some() {
                gate.name_any_scope(&lock, &record.program, wire::GUARD_NOT_CHOSEN)?;
            }
            return Ok(());
        }
        let (key, scope) = (record.program, self.scopes.of_record(record));
        match self.reader.read(Met { place, key, file, path, metadata, scope }) {
            Some((met, digest)) => self.identify(gate, met, digest),
            None => Ok(()),
        }
    }

    fn identify(&mut self, gate: &Gate, met: Met, digest: Option<Digest>) -> Result<()> {
        let (lock, Met { place, key, path, metadata, scope, .. }) = (Lock::take()?, met);
        let mut identity = digest.map(|digest| Identity { digest, scope });
        let is_one_too_many =
            |of: &Identity| !self.places.contains_key(of) && !has_room(of, self.places.keys());
        let too_many = identity.as_ref().is_some_and(is_one_too_many);
        if let Some(identity) = identity.as_mut().filter(|_| too_many) {
            identity.scope = None;
            let _ = say(&format!(
                "tollgate: {} is met in more than {MOST_SCOPES} scopes: in others, its baseline is that of its \
                 content alone",
                path.display()
            ));
        }
        let known = identity.as_ref().and_then(|identity| self.places.get(identity)).copied();
        let known = known.filter(|known| *known != place);
        if too_many {
            gate.name_any_scope(&lock, &key, known.unwrap_or(place))?;
        }
        let Some(known) = known else {
            return self.admit(gate, &lock, place, Known { path, metadata, identity });
        };
        let calls = gate.share_profile(&lock, &key, place, known)?;
        if let Some((program, _)) = self.programs.get_mut(&known) {
            program.early_calls += calls;
            // A copy that anybody made may have been met before the one that is never held.
            if self.policy.selection.is_spared(&metadata) {
                program.profile.spare();
            }
        }
        Ok(())
    }

    /// It learns, but nobody would find again what.
    fn meet_unknown(&mut self, gate: &Gate, place: u32) -> Result<()> {
        self.unidentified += 1;
        self.programs.insert(place, (Program::new(gate.profile(place)?, None, None), Deeds::default()));
        Ok(())
    }

    fn note(&mut self, event: &wire::guard_event) {
        let Some((program, deeds)) = self.programs.get_mut(&event.profile) else { return };
        let is_held = event.held_until_ns != 0;
        // For good has no time.
        let until = if event.held_until_ns == u64::MAX { event.time_ns } else { event.held_until_ns };
        let held_ns = until.saturating_sub(event.time_ns);
        let action = u32::from(event.action);
        deeds.anomalies += u64::from(event.mismatches > 0);
        deeds.max_lfc = deeds.max_lfc.max(event.lfc.into());
        deeds.holds += u64::from(is_held);
        deeds.held_ns = deeds.held_ns.saturating_add(held_ns);
        let is_refused = event.before & wire::BEFORE_REFUSED != 0;
        let is_killed = !is_held && matches!(action, wire::GUARD_DENY | wire::GUARD_KILL) && !is_refused;
        deeds.killed += u64::from(is_killed);
        deeds.refused += u64::from(is_refused);
        let is_unheld = event.restraint == wire::GUARD_TOO_MANY;
        deeds.unheld += u64::from(is_unheld);
        if is_unheld && self.told_of_unheld.is_none_or(|told| told.elapsed() > TELL_AGAIN) {
            self.told_of_unheld = Some(Instant::now());
            let _ = say(&format!(
                "tollgate: held: {}, as many as --held-most allows; what else is unusual is only observed until one is \
                 let go",
                number_of(self.policy.wire.held_most as usize, "process")
            ));
        }
        if self.policy.tells_of_holds
            && is_held
            && event.held_until_ns.saturating_sub(event.time_ns) >= LONG_NS
        {
            self.policy.tells_of_holds = false;
            let _ = say(&format!(
                "tollgate: {} is held, for unusual calls; `tollgate guard off` lets everybody go",
                title(program)
            ));
        }
        if held_ns > 0 {
            self.next_release_ns = Some(self.next_release_ns.unwrap_or(u64::MAX).min(event.held_until_ns));
        }
        if self.events.len() == EVENTS {
            self.events_left_out += 1;
            return;
        }
        let window = symbols(event.window);
        let before = window.len().checked_sub(2).map(|place| window[place]);
        let mismatches = event.mismatches & !(wire::GUARD_DENOUNCED as u16);
        let expected = before.filter(|_| mismatches > 0).map(|symbol| program.expected_after(symbol));
        let late_ns = now_ns().saturating_sub(event.time_ns);
        let Placement { unit, container } = Placement::of(event.tgid);
        self.events.push(Event {
            time: humantime::format_rfc3339_micros(wall_clock(event.time_ns)).to_string(),
            at_ns: event.time_ns.saturating_sub(self.began_ns),
            unit,
            container,
            pid: event.tgid,
            tid: event.pid,
            program: path_of(program),
            scope: program.scope.clone(),
            command: slow::text(&event.comm),
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

    /// To be called at least as often as [`Guard::patience`] says.
    pub fn tend(&mut self, gate: &Gate) -> Result<()> {
        if gate.was_switched_off(self.session) && !self.is_off {
            self.is_off = true;
            let _ = say("tollgate: switched off by `tollgate guard off`: nobody is held any more");
        }
        if was_asked_to_end() {
            gate.wake_held(self.session);
            let held = gate.held(self.session).len();
            if held > 0 && !std::mem::replace(&mut self.told_of_held, true) {
                let held = number_of(held, "process");
                let _ = say(&format!(
                    "tollgate: held: {held}; who handles the signal is stopped again, and ended by SIGKILL only"
                ));
            }
        }
        self.next_rehearsal_ns = u64::MAX;
        if let (Some(rehearsal), false) = (&mut self.rehearsal, self.is_off) {
            let spared = self.policy.selection.spared_sid;
            let is_learning = |tgid, place| {
                let program = self.programs.get(&place).map(|(program, _)| &program.profile);
                program.is_some_and(|it| it.state() != wire::GUARD_NORMAL && !it.is_spared())
                    && (spared.is_none() || session_of(tgid) != spared)
                    // Whoever stopped it does not want it continued.
                    && !is_stopped(tgid)
            };
            self.next_rehearsal_ns = rehearsal.tend(gate, self.session, is_learning);
        }
        self.next_release_ns = gate.let_go_in_time(self.session);
        for (met, digest) in self.reader.done() {
            self.identify(gate, met, digest)?;
        }
        let now = unix_now();
        let (mode, wait) = (self.policy.mode, self.policy.normal_wait);
        for (program, _) in self.programs.values_mut() {
            program.tick(now, wait, mode);
        }
        let is_small = |(program, _): &(Program, Deeds)| program.profile.wants_room();
        if gate.wants_profiles() || self.programs.values().any(is_small) {
            let lock = Lock::take()?;
            for (program, _) in self.programs.values_mut().filter(|entry| is_small(entry)) {
                gate.make_room(&lock, &mut program.profile)?;
            }
            gate.make_profiles(&lock)?;
        }
        if let Some(warden) = &mut self.warden {
            warden.tend(gate, self.session)?;
        }
        Ok(())
    }

    /// When nobody is held any more. Where Tollgate ends before it could see to that, the warden does.
    pub fn dismiss_warden(&mut self) {
        if let Some(warden) = self.warden.take() {
            warden.dismiss();
        }
    }

    /// Until when somebody must be let go, or stopped, from now on.
    pub fn patience(&self, most: Duration) -> Duration {
        let next = self.next_release_ns.unwrap_or(u64::MAX).min(self.next_rehearsal_ns);
        Duration::from_nanos(next.saturating_sub(now_ns())).min(most)
    }
}

pub(super) fn path_of(program: &Program) -> String {
    program
        .path
        .as_ref()
        .map_or_else(|| "(ended too soon)".into(), |path| path.to_string_lossy().into_owned())
}

/// For people.
pub(super) fn title(program: &Program) -> String {
    scoped(&path_of(program), program.scope.as_deref())
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
        wire::GUARD_SPARED => Some("never held"),
        wire::GUARD_TOO_MANY => Some("too many are held"),
        _ => None,
    }
}

/// Where what was done takes effect.
fn effect(event: &wire::guard_event) -> Option<&'static str> {
    match (u32::from(event.action), event.before) {
        (wire::GUARD_OBSERVE, _) => None,
        (wire::GUARD_DELAY | wire::GUARD_STOP, 0) | (wire::GUARD_KILL, _) => Some("end"),
        (_, before) if before & wire::BEFORE_IP_ONLY != 0 => Some("before-ip"),
        (_, before) if before & wire::BEFORE_NEXT != 0 => Some("next"),
        _ => Some("before"),
    }
}
