//! The guard at work on a session: programs get their baselines, time passes for them, the held are let go, and what
//! was learned is stored.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use kernel::clock::now_ns;
use kernel::gate::{Gate, Lock};
use kernel::profile::symbols;
use kernel::session::Session;
use kernel::signals::was_asked_to_end;
use kernel::{before, wire};

use super::baseline::Digest;
use super::policy::{Mode, Policy};
use super::program::{Program, name};
use super::store::Store;
use super::unix_now;
use super::warden::Warden;
use crate::output::say;
use crate::report::{Event, Guard as Report, GuardedProgram};
use crate::slow;

/// More events than this are counted only.
const EVENTS: usize = 10_000;
/// `dev_t` in the kernel has 20 bits for the minor number (include/linux/kdev_t.h).
const MINOR_BITS: u32 = 20;

/// A record from the gate.
pub enum Notice {
    Program(Box<wire::guard_program_record>),
    Event(wire::guard_event),
}

/// What a program did in this session.
#[derive(Default)]
struct Deeds {
    anomalies: u64,
    max_lfc: u32,
    holds: u64,
    held_ns: u64,
    killed: u64,
    refused: u64,
}

pub struct Guard {
    policy: Policy,
    /// What the gate does for it: bits of [`wire::gate_mask`].
    enabled: u32,
    store: Store,
    session: u32,
    programs: BTreeMap<u32, (Program, Deeds)>,
    places: BTreeMap<Digest, u32>,
    events: Vec<Event>,
    events_left_out: u64,
    unidentified: u64,
    began_ns: u64,
    next_release_ns: Option<u64>,
    warden: Option<Warden>,
}

/// What the gate knows a file by. The device's number is not the kernel's own where a file system has several
/// (btrfs); then a program is met when it begins.
fn key(metadata: &fs::Metadata, session: u32) -> wire::guard_program {
    let device = metadata.dev();
    wire::guard_program {
        inode: metadata.ino(),
        ctime_ns: metadata.ctime() * 1_000_000_000 + metadata.ctime_nsec(),
        size: metadata.size(),
        device: libc::major(device) << MINOR_BITS | libc::minor(device),
        session,
    }
}

fn is_same_file(metadata: &fs::Metadata, key: &wire::guard_program) -> bool {
    let wire::guard_program { inode, ctime_ns, size, .. } = self::key(metadata, key.session);
    (inode, ctime_ns, size) == (key.inode, key.ctime_ns, key.size)
}

/// The interpreter of a script is the program that runs.
fn executed(path: &Path) -> PathBuf {
    use std::io::Read as _;
    use std::os::unix::ffi::OsStrExt as _;
    /// BINPRM_BUF_SIZE, include/uapi/linux/binfmts.h
    const LONGEST: u64 = 256;
    let mut first = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LONGEST).read_to_end(&mut first));
    let line = first.split(|byte| *byte == b'\n').next().unwrap_or_default();
    match line.strip_prefix(b"#!") {
        Some(rest) if read.is_ok() => {
            let interpreter = rest.trim_ascii().split(u8::is_ascii_whitespace).next().unwrap_or_default();
            PathBuf::from(std::ffi::OsStr::from_bytes(interpreter))
        }
        _ => path.to_owned(),
    }
}

/// The file that began: of the process, if it still runs, or by its path. Opened, as what either stands for may
/// change at any time.
fn open_program(record: &wire::guard_program_record) -> Option<File> {
    let same = |file: &File| file.metadata().is_ok_and(|metadata| is_same_file(&metadata, &record.program));
    let ways = [format!("/proc/{}/exe", record.pid), slow::path(&record.path)];
    ways.iter().find_map(|way| File::open(way).ok().filter(same))
}

impl Guard {
    /// Before the command begins: its own program has its baseline from its first call on.
    pub fn start(
        gate: &Gate,
        lock: &Lock,
        session: &Session,
        policy: Policy,
        command: &Path,
    ) -> Result<Self> {
        let store = Store::new(&policy.store);
        gate.make_profiles(lock)?;
        let warden = match policy.wire.response {
            wire::GUARD_OBSERVE => None,
            _ => Some(Warden::start(gate, session.index)?),
        };
        let mut guard = Self {
            policy,
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
            warden,
        };
        guard.expect(gate, lock, &executed(command))?;
        Ok(guard)
    }

    pub fn begin(&mut self) {
        self.began_ns = now_ns();
    }

    fn expect(&mut self, gate: &Gate, lock: &Lock, path: &Path) -> Result<()> {
        // What cannot be read now is met when it begins, or fails to.
        let (Ok(metadata), Ok(digest)) = (fs::metadata(path), Digest::of_file(path)) else { return Ok(()) };
        let Some(place) = gate.give_profile(lock, &key(&metadata, self.session))? else { return Ok(()) };
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        self.admit(gate, lock, place, Some(path), digest)
    }

    /// The profile at this place is of this program, and gets its baseline.
    fn admit(
        &mut self,
        gate: &Gate,
        lock: &Lock,
        place: u32,
        path: Option<PathBuf>,
        digest: Digest,
    ) -> Result<()> {
        let mut program = Program::new(gate.profile(place)?, path, Some(digest));
        self.install(&mut program, gate, lock, &digest)?;
        self.places.insert(digest, place);
        self.programs.insert(place, (program, Deeds::default()));
        Ok(())
    }

    fn install(&self, program: &mut Program, gate: &Gate, lock: &Lock, digest: &Digest) -> Result<()> {
        let Some(baseline) = self.store.lock()?.load(digest, None)? else { return Ok(()) };
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

    /// A program that began.
    fn meet(&mut self, gate: &Gate, record: &wire::guard_program_record) -> Result<()> {
        let lock = Lock::take()?;
        let place = record.profile;
        let Some(file) = open_program(record) else {
            self.unidentified += 1;
            self.programs.insert(place, (Program::new(gate.profile(place)?, None, None), Deeds::default()));
            return Ok(());
        };
        let opened = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let digest = Digest::of_file(&opened)?;
        let path = fs::read_link(&opened).ok();
        if let Some(known) = self.places.get(&digest).filter(|known| **known != place) {
            let (known, calls) = (*known, gate.share_profile(&lock, &record.program, place, *known)?);
            if let Some((program, _)) = self.programs.get_mut(&known) {
                program.early_calls += calls;
            }
            return Ok(());
        }
        self.admit(gate, &lock, place, path, digest)
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
        self.events.push(Event {
            at_ns: event.time_ns.saturating_sub(self.began_ns),
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
            effect: effect(event).map(Into::into),
            held_ns,
            late_ns: now_ns().saturating_sub(event.time_ns),
        });
    }

    /// To be called at least as often as [`Guard::patience`] says.
    pub fn tend(&mut self, gate: &Gate) -> Result<()> {
        if was_asked_to_end() {
            gate.wake_held(self.session);
        }
        self.next_release_ns = gate.let_go_in_time(self.session);
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

    /// Until when somebody must be let go, from now on.
    pub fn patience(&self, most: Duration) -> Duration {
        let until = |end: u64| Duration::from_nanos(end.saturating_sub(now_ns()));
        self.next_release_ns.map_or(most, |end| until(end).min(most))
    }

    /// Stores what was learned, and tells what happened. The warden is to be dismissed when nobody is held any more.
    pub fn finish(&mut self) -> Result<Report> {
        let store = self.store.lock()?;
        let now = unix_now();
        for (program, _) in self.programs.values() {
            let Some(mut baseline) = program.baseline(&self.policy.wire, now) else { continue };
            // Another run of the same program may have stored something meanwhile.
            let before = program.stored.as_ref().map(|stored| stored.saved);
            match store.load(&baseline.digest, None)? {
                Some(other) if Some(other.saved) != before => {
                    baseline.merge(&other)?;
                }
                _ => {}
            }
            store.save(&mut baseline)?;
        }
        drop(store);
        let mut programs: Vec<_> =
            self.programs.values().map(|(program, deeds)| account(program, deeds)).collect();
        programs
            .sort_by_key(|program| (std::cmp::Reverse(program.anomalies), std::cmp::Reverse(program.calls)));
        programs.retain(|program| program.calls > 0);
        Ok(Report {
            mode: self.policy.mode.name().into(),
            response: response(&self.policy, self.enabled),
            programs,
            events: std::mem::take(&mut self.events),
            events_left_out: self.events_left_out,
            unidentified: self.unidentified,
        })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(warden) = self.warden.take() {
            warden.dismiss();
        }
    }
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
        bytes: program.profile.bytes() as u64,
    }
}

fn path_of(program: &Program) -> String {
    program
        .path
        .as_ref()
        .map_or_else(|| "(ended too soon)".into(), |path| path.to_string_lossy().into_owned())
}

const KILL_AT_EXECVE: &str = "kill at an execve, before the new program runs";

fn action_name(action: u32) -> &'static str {
    match action {
        wire::GUARD_DELAY => "delay",
        wire::GUARD_DENY => "deny",
        wire::GUARD_STOP => "stop",
        wire::GUARD_KILL => "kill",
        _ => "observe",
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

/// In words, with when it takes effect in a gate with `enabled`.
fn response(policy: &Policy, enabled: u32) -> String {
    let calls = before::names(enabled).join(", ");
    let (way, denial) = match enabled {
        lsm if lsm & wire::GUARD_LSM != 0 => ("", "refuse an execve"),
        cgroup if cgroup & wire::GUARD_CGROUP != 0 => (" (sockets: over IPv4 and IPv6)", KILL_AT_EXECVE),
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
