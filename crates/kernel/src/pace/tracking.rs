//! The tasks that the gate follows, and the rules by which they begin.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use ::pace::BeginningResult;
use calls::Abi;
use libbpf_rs::{MapCore as _, MapFlags};
use zerocopy::FromZeros as _;

use crate::error::{ErrorContext as _, Result};
use crate::gate::Gate;
use crate::mapped_array::{MappedArray, atomic_field, field};
use crate::wire;

/// A speed of 1 GHz is a cycle in each ns.
const KHZ_PER_GHZ: u64 = 1_000_000;
const PROGRAM_LEN: usize = wire::PACE_PROGRAM_LEN as usize;

/// A rule by which tasks of unmodified programs begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrackingRule {
    /// The file name of the executable; `None`: any program.
    pub program: Option<String>,
    /// The names of the calls whose return begins a task.
    pub calls: Vec<(String, BeginningResult)>,
    /// Bits of [`wire::pace_descriptor`]; 0: any descriptor, or none.
    pub descriptors: u32,
    /// The local port of the socket; 0: any.
    pub port: u16,
    /// A task continues while its first thread sleeps in a call that begins no task of the rule.
    pub includes_waits: bool,
}

/// The rules of a session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrackingRules {
    /// At most [`wire::PACE_RULES`]. The first one that matches decides.
    pub rules: Vec<TrackingRule>,
    /// The file names of the executables whose threads work on no task, at most
    /// [`wire::PACE_EXEMPT`].
    pub exempt: Vec<String>,
    /// The users whose programs may begin tasks themselves, besides those of root, at most
    /// [`wire::PACE_USERS`]. `None`: all users.
    pub users: Option<Vec<u32>>,
}

/// The state of pace in the gate.
pub struct Tracking {
    pub(super) control: MappedArray<wire::pace_control>,
    rules: MappedArray<wire::pace_rules>,
    tasks: MappedArray<wire::pace_task>,
    index: MappedArray<u64>,
    threads: MappedArray<wire::pace_thread>,
    /// What the gate itself knows of the threads.
    states: MappedArray<wire::thread_state>,
    pub(super) cpus: MappedArray<wire::pace_cpu>,
    domains: MappedArray<wire::pace_domain>,
}

impl Tracking {
    /// Maps the state. The gate must have been loaded with pace.
    pub fn open(gate: &Gate) -> Result<Self> {
        let control = MappedArray::<wire::pace_control>::new(gate.maps.get(".bss.pace_ctl"), 1)?;
        // Entry 0 stands for no task.
        let next = atomic_field!(control, 0, next_task);
        let _ = next.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst);
        Ok(Self {
            control,
            rules: MappedArray::new(gate.maps.get(".bss.pace_rules"), wire::SESSIONS)?,
            tasks: MappedArray::new(gate.maps.get(".bss.pace_tasks"), wire::PACE_TASKS)?,
            index: MappedArray::new(gate.maps.get(".bss.pace_index"), wire::PACE_INDEX)?,
            threads: MappedArray::new(gate.maps.get(".bss.pace_thr"), wire::THREADS)?,
            states: MappedArray::new(gate.maps.get(".bss.threads"), wire::THREADS)?,
            cpus: MappedArray::new(gate.maps.get(".bss.pace_cpus"), wire::CPUS)?,
            domains: MappedArray::new(gate.maps.get(".bss.pace_dom"), wire::CPUS)?,
        })
    }

    /// Sets the rules of a session, which has no tasks yet.
    ///
    /// # Panics
    /// If there are more rules, programs or users than the gate has room for.
    pub fn set_rules(&self, session: u32, rules: &TrackingRules) {
        let users = rules.users.as_deref().unwrap_or_default();
        let mut set = wire::pace_rules {
            exempt_programs: rules.exempt.len() as u32,
            has_users: rules.users.is_some().into(),
            users: users.len() as u32,
            ..wire::pace_rules::new_zeroed()
        };
        set.user[..users.len()].copy_from_slice(users);
        for (index, name) in rules.exempt.iter().enumerate() {
            set.exempt[index] = program_name(name);
        }
        for (index, rule) in rules.rules.iter().enumerate() {
            let to = &mut set.rule[index];
            to.program = program_name(rule.program.as_deref().unwrap_or_default());
            to.descriptors = rule.descriptors;
            to.port = rule.port;
            to.includes_waits = rule.includes_waits.into();
            for (name, result) in &rule.calls {
                for abi in Abi::ALL {
                    let Some(number) = calls::number(abi, name) else { continue };
                    let call = &mut set.calls[(abi as u32 * wire::CALLS_PER_ABI + number) as usize];
                    let bit = 1 << index;
                    match result {
                        BeginningResult::Zero => call.if_zero |= bit,
                        BeginningResult::Positive => call.if_positive |= bit,
                        BeginningResult::PositiveOrTimeout => {
                            call.if_positive |= bit;
                            call.if_timeout |= bit;
                        }
                    }
                }
            }
        }
        self.rules.write(session, set);
    }

    /// The unfinished tasks of a session, with their entries.
    pub fn live(&self, session: u32) -> Vec<(u32, wire::pace_task)> {
        (1..self.tasks.entries())
            .map(|entry| (entry, self.tasks.read(entry)))
            .filter(|(_, task)| task.life as u32 == wire::PACE_LIVE && task.session == session)
            .collect()
    }

    /// The tasks of a session that programs began, and whose processes have no thread any more:
    /// their entries and numbers.
    pub fn abandoned(&self, session: u32) -> Vec<(u32, u32)> {
        let mut tasks = self.live(session);
        tasks.retain(|(_, task)| task.id != 0);
        if tasks.is_empty() {
            return Vec::new();
        }
        // With services, a thread has a slot until the kernel frees it, and is in no session then.
        let is_running = |thread: &wire::thread_state| thread.task != 0 && thread.session != 0;
        let threads = (1..self.states.entries()).map(|slot| self.states.read(slot));
        let running: BTreeSet<u32> = threads.filter(is_running).map(|thread| thread.tgid).collect();
        tasks.retain(|(_, task)| !running.contains(&task.tgid));
        tasks.into_iter().map(|(entry, task)| (entry, number(&task))).collect()
    }

    /// Ends a task without a record, if the entry still has the task of this number.
    pub fn drop_task(&self, gate: &Gate, entry: u32, number: u32) -> Result<()> {
        let life = atomic_field!(self.tasks, entry, life);
        let in_state = |state: u32| u64::from(number) << wire::PACE_NUMBER_SHIFT | u64::from(state);
        let (live, ended) = (in_state(wire::PACE_LIVE), in_state(wire::PACE_ENDED));
        if life.compare_exchange(live, ended, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return Ok(());
        }
        self.leave_domain(entry);
        match u32::from(field!(self.tasks, entry, index_slot).read()) {
            0 => {}
            wire::PACE_UNINDEXED => {
                atomic_field!(self.control, 0, unindexed).fetch_sub(1, Ordering::SeqCst);
            }
            place => self.index.write(place - 1, 0),
        }
        life.store(in_state(wire::PACE_FREE), Ordering::SeqCst);
        // An update of a queue appends a value, and has no key.
        let free = gate.maps.get("pace_free_tasks");
        free.update(&[], &entry.to_ne_bytes(), MapFlags::ANY).doing("freeing a task of pace")
    }

    /// The tasks of this session no longer decide the speeds.
    pub fn stop_pacing(&self, session: u32) {
        let paced = atomic_field!(self.control, 0, session);
        if paced.compare_exchange(session, 0, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return;
        }
        field!(self.control, 0, powers).write(0);
        for cpu in 0..self.cpus.entries() {
            field!(self.cpus, cpu, milliwatts).write(0);
        }
    }

    /// Removes from their domains the tasks that began before `before_ns` and on which no thread
    /// works. Their programs may still end them, but they do not decide speeds any more.
    pub fn stop_pacing_old(&self, session: u32, before_ns: u64) {
        for (entry, task) in self.live(session) {
            if task.begin_ns < before_ns && task.ready <= 0 {
                self.leave_domain(entry);
            }
        }
    }

    /// A task is not counted in a domain any more. The thread that sets the speeds notices it at
    /// its next check.
    fn leave_domain(&self, entry: u32) {
        let domain = atomic_field!(self.tasks, entry, domain).swap(0, Ordering::SeqCst);
        if domain != 0 {
            atomic_field!(self.domains, domain - 1, tasks).fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn hand_over(&self, gate: &Gate, session: u32) {
        for slot in 1..self.threads.entries() {
            if field!(self.threads, slot, session).read() != session {
                continue;
            }
            let row = self.states.read(slot).row.into();
            let follows = |other: &u32| {
                *other != session && gate.sessions.read(*other).mask & wire::PACE != 0
            };
            let next = gate.enclosing_sessions(row).into_iter().find(follows).unwrap_or(0);
            // Its program may be exempt in one session only.
            field!(self.threads, slot, is_known).write(0);
            field!(self.threads, slot, session).write(next);
        }
    }

    /// Drops all tasks and rules of a session. The next session of its threads follows their tasks
    /// from now on, if one is to do so.
    pub fn release(&self, gate: &Gate, session: u32) -> Result<()> {
        self.hand_over(gate, session);
        // A thread that was being created meanwhile may have the session of its parent.
        self.hand_over(gate, session);
        self.set_rules(session, &TrackingRules::default());
        let mut live = self.live(session).into_iter();
        live.try_for_each(|(entry, task)| self.drop_task(gate, entry, number(&task)))
    }

    /// Sets the speed at which a processor runs, by which its time is converted to cycles, unless
    /// the driver reports each change of it.
    pub fn record_speed(&self, cpu: u32, khz: u32) {
        if field!(self.cpus, cpu, is_reported).read() == 0 {
            let cycles_per_ns = (u64::from(khz) << wire::PACE_CYCLES_SHIFT) / KHZ_PER_GHZ;
            field!(self.cpus, cpu, khz).write(khz);
            field!(self.cpus, cpu, cycles_per_ns).write(cycles_per_ns as u32);
            field!(self.cpus, cpu, milliwatts).write(self.milliwatts(khz));
        }
    }

    /// The power at a speed, as the gate finds it (`pace_record_speed`).
    fn milliwatts(&self, khz: u32) -> u32 {
        let control = self.control.read(0);
        let powers = &control.power[..control.powers as usize];
        let at = powers.iter().find(|power| power.khz >= khz).or(powers.last());
        at.map_or(0, |power| power.milliwatts)
    }

    /// Sets the levels of a processor, in ascending order. With more than [`wire::PACE_POWERS`],
    /// the slowest ones are left out: they count with the power of the slowest one that is left,
    /// and late tasks do not use them.
    pub fn set_levels(&self, levels: &[LevelPower]) {
        let levels = &levels[levels.len().saturating_sub(wire::PACE_POWERS as usize)..];
        field!(self.control, 0, powers).write(0);
        let mut worthwhile = 0;
        for (index, level) in levels.iter().enumerate() {
            let milliwatts = (level.watts * 1e3).round() as u32;
            let power = wire::pace_power { khz: level.khz as u32, milliwatts };
            field!(self.control, 0, power[index]).write(power);
            worthwhile |= u64::from(level.is_worthwhile) << index;
        }
        field!(self.control, 0, worthwhile).write(worthwhile);
        field!(self.control, 0, powers).write(levels.len() as u32);
        for cpu in 0..self.cpus.entries() {
            let khz = field!(self.cpus, cpu, khz).read();
            field!(self.cpus, cpu, milliwatts).write(self.milliwatts(khz));
        }
    }
}

/// A speed of the processors.
pub struct LevelPower {
    /// The speed.
    pub khz: u64,
    /// Its power in watts, beyond that of an idle processor.
    pub watts: f64,
    /// Whether tasks should use it.
    pub is_worthwhile: bool,
}

fn number(task: &wire::pace_task) -> u32 {
    (task.life >> wire::PACE_NUMBER_SHIFT) as u32
}

/// The name of a program, cut as the gate cuts it. The last byte stays 0.
fn program_name(name: &str) -> [std::ffi::c_char; PROGRAM_LEN] {
    let mut program = [0; PROGRAM_LEN];
    for (to, byte) in program.iter_mut().zip(name.bytes().take(PROGRAM_LEN - 1)) {
        *to = byte as _;
    }
    program
}
