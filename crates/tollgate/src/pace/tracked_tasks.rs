//! The tasks of a session in the gate, for watching and for pacing.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use ::pace::{Level, Levels};
use anyhow::{Context as _, Result, bail};
use kernel::clock::now_ns;
use kernel::cpus;
use kernel::gate::Gate;
use kernel::pace::cpufreq::{self, FrequencyDomain};
use kernel::pace::energy_sensor::EnergySensors;
use kernel::pace::{CycleEvent, EndedTasks, LevelPower, Tracking};
use kernel::wire;

use super::cycle_counter;
use super::hardware_counts::{HardwareCounts, MeasuredEnergy};
use super::rules::ResolvedRules;
use crate::extension::SessionContext;

/// How often to search for abandoned tasks, and to read the speeds. Each search reads all tasks,
/// and a session is tended for each batch of records, which may be thousands of times a second.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The numbers of tasks that have not ended.
pub struct UnendedTasks {
    /// Their programs run.
    pub unfinished: usize,
    /// Their programs have ended.
    pub abandoned: usize,
}

/// A task that has not ended.
struct UnendedTask {
    begin_ns: u64,
    /// The thread that began it.
    pid: u32,
    is_abandoned: bool,
}

impl UnendedTask {
    fn has(&self, record: &wire::pace_record) -> bool {
        (record.begin_ns, record.pid) == (self.begin_ns, self.pid)
    }
}

/// The tasks of a session.
pub struct TrackedTasks {
    /// The number of the session.
    session: u32,
    tracking: Tracking,
    ended: EndedTasks,
    domains: Vec<FrequencyDomain>,
    /// What counts cycles. `None`: they are time, times the speed.
    cycle_event: Option<CycleEvent>,
    latest_check: Instant,
    /// `None` if the machine does not measure energy.
    energy: Option<EnergySensors>,
    /// The tasks that had not ended just before the threads were detached.
    at_end: Vec<UnendedTask>,
}

impl TrackedTasks {
    /// Starts to follow tasks by these rules.
    ///
    /// # Errors
    /// If the machine cannot count cycles as the file of rules says.
    pub fn start(context: &SessionContext<'_>, rules: &ResolvedRules) -> Result<Self> {
        let tracking = Tracking::open(context.gate)?;
        let khz = nominal_khz()?;
        for cpu in 0..cpus::possible() as u32 {
            tracking.record_speed(cpu, khz);
        }
        let domains =
            cpufreq::domains(Path::new("/")).context("cannot read the frequency domains")?;
        let session = context.session.index;
        let named = rules.file.cycle_counter.as_ref();
        let counter = named.map(|named| &named.value);
        let cycle_event = cycle_counter::count_cycles(context, &tracking, counter);
        let cycle_event =
            cycle_event.map_err(|error| rules.locate(named, error, cycle_counter::HELP))?;
        let tasks = Self {
            session,
            tracking,
            ended: EndedTasks::new(context.gate, session)?,
            domains,
            cycle_event,
            latest_check: Instant::now(),
            energy: EnergySensors::find(Path::new("/")),
            at_end: Vec::new(),
        };
        tasks.read_speeds();
        tasks.tracking.set_rules(session, &rules.tracking_rules);
        Ok(tasks)
    }

    /// The tasks that have ended and were not read yet.
    pub fn ended(&self) -> Vec<wire::pace_record> {
        self.ended.read()
    }

    /// The frequency domains of the machine.
    pub fn domains(&self) -> &[FrequencyDomain] {
        &self.domains
    }

    /// Sets the levels of the processors, by which the energy of tasks is modelled, and to which
    /// the speeds of late tasks are rounded.
    pub fn set_levels(&self, levels: &Levels) {
        let power = |level: &Level| LevelPower {
            khz: (level.hz / 1e3).round() as u64,
            watts: level.watts - levels.idle_watts(),
            is_worthwhile: levels.worthwhile().contains(level),
        };
        self.tracking.set_levels(&levels.all().iter().map(power).collect::<Vec<_>>());
    }

    /// The tasks no longer decide the speeds.
    pub fn stop_pacing(&self) {
        self.tracking.stop_pacing(self.session);
    }

    /// Tasks on which no thread works, and which are older than this, no longer decide the speeds.
    pub fn stop_pacing_old(&self, age: Duration) {
        let before = now_ns().saturating_sub(age.as_nanos() as u64);
        self.tracking.stop_pacing_old(self.session, before);
    }

    /// The tasks that have not ended.
    pub fn unended(&self) -> UnendedTasks {
        numbers_of(&self.all_unended())
    }

    /// Notes the tasks that have not ended, and reads the energy. Called before the threads are
    /// detached.
    pub fn before_detach(&mut self) {
        self.at_end = self.all_unended();
        self.measure();
    }

    /// The last tasks that have ended, and the numbers of those that have not. Called when the
    /// threads are detached.
    pub fn at_end(&mut self) -> (Vec<wire::pace_record>, UnendedTasks) {
        let ended = self.ended();
        let has_ended = |task: &UnendedTask| ended.iter().any(|record| task.has(record));
        self.at_end.retain(|task| !has_ended(task));
        let unended = numbers_of(&self.at_end);
        (ended, unended)
    }

    fn all_unended(&self) -> Vec<UnendedTask> {
        let abandoned = self.tracking.abandoned(self.session);
        let live = self.tracking.live(self.session).into_iter();
        live.map(|(entry, task)| UnendedTask {
            begin_ns: task.begin_ns,
            pid: task.visible_pid,
            is_abandoned: abandoned.iter().any(|(other, _)| *other == entry),
        })
        .collect()
    }

    /// Does what is due twice a second: drops abandoned tasks, and reads the speeds and the energy.
    /// Returns the number of dropped tasks. `None`: nothing is due.
    pub fn check(&mut self, gate: &Gate) -> Result<Option<usize>> {
        if self.latest_check.elapsed() < CHECK_INTERVAL {
            return Ok(None);
        }
        self.latest_check = Instant::now();
        let abandoned = self.drop_abandoned(gate)?;
        self.read_speeds();
        self.measure();
        Ok(Some(abandoned))
    }

    /// Measures energy from now on, if the machine has sensors.
    pub fn begin(&mut self) {
        if let Some(energy) = &mut self.energy {
            energy.restart();
        }
    }

    /// Reads the energy.
    pub fn measure(&mut self) {
        if let Some(energy) = &mut self.energy {
            energy.update();
        }
    }

    /// What counts cycles, and the energy as of the latest reading.
    pub fn hardware_counts(&self) -> HardwareCounts {
        HardwareCounts {
            cycle_counter: self.cycle_event.as_ref().map(|event| event.name(Path::new("/"))),
            measured_energy: self.energy.as_ref().map(MeasuredEnergy::of_sensors),
        }
    }

    /// Drops abandoned tasks: those whose programs have ended without ending them. Returns their
    /// number.
    fn drop_abandoned(&self, gate: &Gate) -> Result<usize> {
        let abandoned = self.tracking.abandoned(self.session);
        for (entry, number) in &abandoned {
            self.tracking.drop_task(gate, *entry, *number)?;
        }
        Ok(abandoned.len())
    }

    /// Records the speeds of the processors whose driver does not report changes.
    fn read_speeds(&self) {
        for domain in &self.domains {
            // A domain may be offline.
            let Ok(khz) = cpufreq::current_khz(Path::new("/"), domain.number) else { continue };
            for cpu in &domain.cpus {
                self.tracking.record_speed(*cpu, khz as u32);
            }
        }
    }
}

fn numbers_of(tasks: &[UnendedTask]) -> UnendedTasks {
    let abandoned = tasks.iter().filter(|task| task.is_abandoned).count();
    UnendedTasks { unfinished: tasks.len() - abandoned, abandoned }
}

/// The speed by which processor time is converted to cycles, where no driver reports one: that of
/// the first processor in /proc/cpuinfo.
fn nominal_khz() -> Result<u32> {
    let text = fs::read_to_string("/proc/cpuinfo").context("cannot read /proc/cpuinfo")?;
    let mhz = text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "cpu MHz").then(|| value.trim().parse::<f64>().ok())?
    });
    match mhz {
        Some(mhz) if mhz > 0.0 => Ok((mhz * 1000.0) as u32),
        _ => bail!("/proc/cpuinfo does not have the speed of the processor"),
    }
}
