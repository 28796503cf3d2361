//! The guard at work on a session: programs get their baselines, time passes for them, and the held are let go.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Result;
use kernel::clock::now_ns;
use kernel::gate::{Gate, Lock};
use kernel::profile::symbols;
use kernel::session::Session;
use kernel::signals::was_asked_to_end;
use kernel::wire;

use super::baseline::Digest;
use super::content::{Met, Reader, SHORT, executed, key, open_file, open_program, opened_path};
use super::placement::Placement;
use super::policy::Policy;
use super::program::{Program, name};
use super::store::Store;
use super::unix_now;
use super::warden::Warden;
use crate::output::say;
use crate::report::Event;
use crate::slow;

/// More events than this are counted only.
const EVENTS: usize = 10_000;
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
    pub(super) places: BTreeMap<Digest, u32>,
    pub(super) events: Vec<Event>,
    pub(super) events_left_out: u64,
    pub(super) unidentified: u64,
    began_ns: u64,
    next_release_ns: Option<u64>,
    reader: Reader,
    pub(super) warden: Option<Warden>,
}

impl Guard {
    pub fn start(gate: &Gate, lock: &Lock, session: &Session, policy: Policy) -> Result<Self> {
        let store = Store::new(&policy.store);
        gate.make_profiles(lock)?;
        let warden = match policy.wire.response {
            wire::GUARD_OBSERVE => None,
            _ => Some(Warden::start(gate, session.index)?),
        };
        Ok(Self {
            policy,
            is_off: false,
            enabled: gate.sessions.read(session.index).mask,
            store,
            session: session.index,
            programs: BTreeMap::new(),
            places: BTreeMap::new(),
            events: Vec::new(),
            events_left_out: 0,
            unidentified: 0,
            began_ns: now_ns(),
            next_release_ns: None,
            reader: Reader::default(),
            warden,
        })
    }

    pub fn begin(&mut self) {
        self.began_ns = now_ns();
    }

    /// Before a command begins: its own program has its baseline from its first call on.
    pub fn expect_command(&mut self, gate: &Gate, lock: &Lock, command: &Path) -> Result<()> {
        self.expect(gate, lock, &[executed(command)], u64::MAX)
    }

    /// Before processes are taken in: their programs have their baselines from then on.
    pub fn expect_processes(&mut self, gate: &Gate, pids: &[u32]) -> Result<()> {
        let programs: Vec<_> = pids.iter().map(|pid| PathBuf::from(format!("/proc/{pid}/exe"))).collect();
        self.expect(gate, &Lock::take()?, &programs, SHORT)
    }

    /// Programs that the store knows have their baselines before they begin.
    pub fn expect_stored(&mut self, gate: &Gate) -> Result<()> {
        /// For programs that are not known yet there is as much room again.
        const MOST: usize = wire::GUARD_PROFILES as usize / 2;
        let stored = self.store.load_all()?;
        let paths = stored.iter().flat_map(|baseline| &baseline.paths).map(PathBuf::from);
        let paths: Vec<_> = paths.take(MOST).collect();
        self.expect(gate, &Lock::take()?, &paths, SHORT)
    }

    /// Those of at most `longest` bytes; what is longer is met when it begins.
    fn expect(&mut self, gate: &Gate, lock: &Lock, paths: &[PathBuf], longest: u64) -> Result<()> {
        let mut programs = Vec::new();
        let (mut seen, mut digests) = (BTreeSet::new(), BTreeSet::new());
        for path in paths {
            // What cannot be read now is met when it begins, or fails to.
            let Ok((file, metadata)) = open_file(path) else { continue };
            if metadata.len() > longest || !seen.insert((metadata.dev(), metadata.ino())) {
                continue;
            }
            let path = opened_path(&file).unwrap_or_else(|| path.clone());
            let Ok(digest) = Digest::of_all((&file).take(metadata.len())) else { continue };
            // A copy shares the profile of the first when it begins.
            let is_first = !self.places.contains_key(&digest) && digests.insert(digest);
            if is_first && self.policy.selection.is_chosen(&path, &metadata) {
                programs.push((path, metadata, digest));
            }
        }
        let keys: Vec<_> = programs.iter().map(|(_, metadata, _)| key(metadata, self.session)).collect();
        let places = gate.give_profiles(lock, &keys)?;
        for (place, (path, metadata, digest)) in places.into_iter().zip(programs) {
            self.admit(gate, lock, place, (path, metadata, Some(digest)))?;
        }
        Ok(())
    }

    /// The profile at this place is of this program, and gets its baseline.
    fn admit(
        &mut self,
        gate: &Gate,
        lock: &Lock,
        place: u32,
        (path, metadata, digest): (PathBuf, fs::Metadata, Option<Digest>),
    ) -> Result<()> {
        let mut program = Program::new(gate.profile(place)?, Some(path), digest);
        if self.policy.selection.is_spared(&metadata) {
            program.profile.spare();
        }
        if let Some(digest) = digest {
            self.install(&mut program, gate, lock, &digest)?;
            self.places.insert(digest, place);
        }
        self.programs.insert(place, (program, Deeds::default()));
        Ok(())
    }

    pub(super) fn install(
        &self,
        program: &mut Program,
        gate: &Gate,
        lock: &Lock,
        digest: &Digest,
    ) -> Result<()> {
        let baseline = match self.store.load(digest, None) {
            Ok(Some(baseline)) => baseline,
            Ok(None) => return Ok(()),
            // Of one program, which nobody else has to suffer for.
            Err(error) => {
                let path = path_of(program);
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
                 alone, and learned anew",
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
                path_of(program)
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
            gate.share_profile(&Lock::take()?, &record.program, place, wire::GUARD_NOT_CHOSEN)?;
            return Ok(());
        }
        match self.reader.read(Met { place, key: record.program, file, path, metadata }) {
            Some((met, digest)) => self.identify(gate, met, digest),
            None => Ok(()),
        }
    }

    /// Without a digest it learns, too, but nobody would find again what.
    fn identify(&mut self, gate: &Gate, met: Met, digest: Option<Digest>) -> Result<()> {
        let (lock, Met { place, key, path, metadata, .. }) = (Lock::take()?, met);
        let known = digest.and_then(|digest| self.places.get(&digest)).filter(|known| **known != place);
        let Some(known) = known.copied() else {
            return self.admit(gate, &lock, place, (path, metadata, digest));
        };
        let calls = gate.share_profile(&lock, &key, place, known)?;
        if let Some((program, _)) = self.programs.get_mut(&known) {
            program.early_calls += calls;
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
        if held_ns > 0 {
            self.next_release_ns = Some(self.next_release_ns.unwrap_or(u64::MAX).min(event.held_until_ns));
        }
        if self.events.len() == EVENTS {
            self.events_left_out += 1;
            return;
        }
        let window = symbols(event.window);
        let before = window.len().checked_sub(2).map(|place| window[place]);
        let expected = before.filter(|_| event.mismatches > 0).map(|symbol| program.expected_after(symbol));
        let late_ns = now_ns().saturating_sub(event.time_ns);
        let Placement { unit, container } = Placement::of(event.tgid);
        self.events.push(Event {
            time: humantime::format_rfc3339_micros(SystemTime::now() - Duration::from_nanos(late_ns))
                .to_string(),
            at_ns: event.time_ns.saturating_sub(self.began_ns),
            unit,
            container,
            pid: event.tgid,
            tid: event.pid,
            program: path_of(program),
            command: slow::text(&event.comm),
            call: name(event.call),
            sequence: window.iter().map(|symbol| program.call(*symbol)).collect(),
            expected: expected.unwrap_or_default(),
            mismatches: event.mismatches,
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
        if was_asked_to_end() {
            gate.wake_held(self.session);
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

    /// Until when somebody must be let go, from now on.
    pub fn patience(&self, most: Duration) -> Duration {
        let until = |end: u64| Duration::from_nanos(end.saturating_sub(now_ns()));
        self.next_release_ns.map_or(most, |end| until(end).min(most))
    }
}

pub(super) fn path_of(program: &Program) -> String {
    program
        .path
        .as_ref()
        .map_or_else(|| "(ended too soon)".into(), |path| path.to_string_lossy().into_owned())
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
        _ => Some("before"),
    }
}
