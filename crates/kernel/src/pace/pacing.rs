//! The kernel side of pacing: the schedules by which it computes the speed that each frequency
//! domain should have.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use zerocopy::IntoBytes as _;

use super::cpufreq::FrequencyDomain;
use super::schedule_entries::ScheduleEntries;
use super::type_key::TypeKey;
use crate::cpus;
use crate::error::{ErrorContext as _, Result};
use crate::gate::Gate;
use crate::mapped_array::{MappedArray, atomic_field, field};
use crate::ring::RingReader;
use crate::wire;

/// The schedule of a type's tasks, as the gate needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateSchedule {
    /// The time from the beginning of a task to its deadline.
    pub deadline: Duration,
    /// The time from the beginning of a task to the end of the schedule: the deadline less the
    /// margin.
    pub planned: Duration,
    /// At most [`wire::PACE_STEPS`] steps, in the order of their beginnings.
    pub steps: Vec<GateStep>,
}

/// The speed of a task from some amount of work on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GateStep {
    /// The cycles that the task has done when the step begins.
    pub cycles: u64,
    /// The time from the beginning of the task to the step.
    pub after: Duration,
    /// The speed.
    pub khz: u64,
}

/// The speed that a domain should have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// No task is unfinished.
    Released {
        /// Other work is ready to run.
        is_busy: bool,
    },
    /// This speed, in kHz; `None`: the fastest one.
    At(Option<u64>),
    /// This speed or the faster one that the system's governor chooses, because other work is
    /// ready to run.
    AtLeast(Option<u64>),
}

impl Wanted {
    fn of_wire(wanted: u64) -> Self {
        let khz = u64::from(wanted as u32);
        let khz = (khz != 0).then_some(khz);
        match (wanted >> wire::PACE_MODE_SHIFT) as u32 {
            wire::PACE_AT => Self::At(khz),
            wire::PACE_AT_LEAST => Self::AtLeast(khz),
            wire::PACE_RELEASED_BUSY => Self::Released { is_busy: true },
            _ => Self::Released { is_busy: false },
        }
    }
}

/// The schedules of a session in the gate.
pub struct Pacing {
    schedules: MappedArray<wire::pace_schedule>,
    types: MapHandle,
    entries: ScheduleEntries,
}

impl Pacing {
    /// Lets the tasks of a session decide the speeds of these domains. `search_interval` is how
    /// often the gate searches for other work that is ready to run, while a task runs below the
    /// fastest speed. `release_delay` is how long it continues to do so after the last task. Only
    /// one session may do this at a time.
    pub fn start(
        gate: &Gate,
        session: u32,
        domains: &[FrequencyDomain],
        search_interval: Duration,
        release_delay: Duration,
    ) -> Result<Self> {
        let map = |name: &str| {
            let id = gate.maps.id(name)?;
            MapHandle::from_map_id(id).doing("opening the maps of pace")
        };
        let control = MappedArray::<wire::pace_control>::new(gate.maps.get(".bss.pace_ctl"), 1)?;
        let cpus = MappedArray::<wire::pace_cpu>::new(gate.maps.get(".bss.pace_cpus"), wire::CPUS)?;
        let in_domains =
            MappedArray::<wire::pace_domain>::new(gate.maps.get(".bss.pace_dom"), wire::CPUS)?;
        // Tasks on other processors are counted in a domain of their own, which has no speed.
        for cpu in 0..cpus.entries() {
            field!(cpus, cpu, domain).write(domains.len() as u32);
        }
        in_domains.write(domains.len() as u32, wire::pace_domain::default());
        for (index, domain) in domains.iter().enumerate() {
            for (cpu, next) in domain.cpus.iter().zip(domain.cpus.iter().cycle().skip(1)) {
                field!(cpus, *cpu, domain).write(index as u32);
                field!(cpus, *cpu, next).write(*next);
            }
            let empty = wire::pace_domain {
                first: domain.cpus.first().copied().unwrap_or(0),
                cpus: domain.cpus.len() as u32,
                ..wire::pace_domain::default()
            };
            in_domains.write(index as u32, empty);
        }
        let pacing = Self {
            schedules: MappedArray::new(gate.maps.get(".bss.pace_sched"), wire::PACE_SCHEDULES)?,
            types: map("pace_types")?,
            entries: ScheduleEntries::default(),
        };
        let old: Vec<_> = pacing.types.keys().collect();
        for key in old {
            // It was left by a session that has ended.
            pacing.types.delete(&key).doing("deleting types of tasks")?;
        }
        field!(control, 0, search_interval_ns).write(search_interval.as_nanos() as u64);
        field!(control, 0, release_delay_ns).write(release_delay.as_nanos() as u64);
        field!(control, 0, timers).write(cpus::possible() as u32);
        let fastest = domains.iter().map(|domain| domain.range.1).max().unwrap_or(0);
        field!(control, 0, fastest_khz).write(fastest as u32);
        atomic_field!(control, 0, session).store(session, Ordering::SeqCst);
        Ok(pacing)
    }

    /// Removes the schedule of a type, if it has one. Its tasks run at the fastest speed from now
    /// on.
    pub fn remove_schedule(&mut self, key: &TypeKey) -> Result<()> {
        let Some(entry) = self.entries.of(key) else { return Ok(()) };
        let half = field!(self.schedules, entry, half).read() & 1;
        field!(self.schedules, entry, steps[half as usize]).write(0);
        self.types.delete(key.wire().as_bytes()).doing("deleting a type of tasks")?;
        self.entries.release(key);
        Ok(())
    }

    /// Sets the schedule of a type.
    ///
    /// # Panics
    /// If the schedule has more than [`wire::PACE_STEPS`] steps, or if more than
    /// [`super::MAX_TYPES`] types have one.
    pub fn set_schedule(&mut self, key: &TypeKey, schedule: &GateSchedule) -> Result<()> {
        let known = self.entries.of(key);
        let entry = known.unwrap_or_else(|| self.entries.next());
        let unused = 1 - (field!(self.schedules, entry, half).read() & 1);
        let half = unused as usize;
        let nanos = |time: Duration| time.as_nanos() as u64;
        field!(self.schedules, entry, steps[half]).write(schedule.steps.len() as u32);
        field!(self.schedules, entry, deadline_ns[half]).write(nanos(schedule.deadline));
        field!(self.schedules, entry, planned_ns[half]).write(nanos(schedule.planned));
        for (index, step) in schedule.steps.iter().enumerate() {
            let to = wire::pace_step { cycles: step.cycles, ns: nanos(step.after), khz: step.khz };
            field!(self.schedules, entry, step[half * wire::PACE_STEPS as usize + index]).write(to);
        }
        atomic_field!(self.schedules, entry, half).store(unused, Ordering::SeqCst);
        if known.is_none() {
            let doing = "adding a type of tasks";
            self.types
                .update(key.wire().as_bytes(), &entry.to_ne_bytes(), MapFlags::ANY)
                .doing(doing)?;
            self.entries.take_next(key.clone());
        }
        Ok(())
    }
}

/// The speeds that the domains should have, for the thread that sets them.
pub struct WantedSpeeds {
    domains: MappedArray<wire::pace_domain>,
    changes: RingReader,
}

impl WantedSpeeds {
    /// Opens the wanted speeds in the thread that calls this. `ids` are those of
    /// [`WantedSpeeds::ids`].
    pub fn open(ids: (u32, u32)) -> Result<Self> {
        let map = |id| MapHandle::from_map_id(id).doing("opening the maps of pace");
        Ok(Self {
            domains: MappedArray::new(&map(ids.0)?, wire::CPUS)?,
            changes: RingReader::new(&map(ids.1)?, "opening the ring buffer of pace")?,
        })
    }

    /// The IDs of the maps.
    pub fn ids(gate: &Gate) -> Result<(u32, u32)> {
        Ok((gate.maps.id(".bss.pace_dom")?, gate.maps.id("pace_speed_changes")?))
    }

    /// A descriptor that is readable when a wanted speed has changed.
    pub fn descriptor(&self) -> RawFd {
        self.changes.descriptor()
    }

    /// The times of the changes that were not read yet, on CLOCK_MONOTONIC, with the indices of
    /// their domains.
    pub fn changes(&self) -> Result<Vec<(usize, u64)>> {
        let records = self.changes.read()?;
        let change = |bytes: &Vec<u8>| {
            let (change, _) =
                <wire::pace_speed_change as zerocopy::FromBytes>::read_from_prefix(bytes).ok()?;
            Some((change.domain as usize, change.ns))
        };
        Ok(records.iter().filter_map(change).collect())
    }

    /// The speed that a domain should have now.
    pub fn wanted(&self, domain: usize) -> Wanted {
        // User space has dropped the last task.
        if atomic_field!(self.domains, domain as u32, tasks).load(Ordering::SeqCst) == 0 {
            let has_others = field!(self.domains, domain as u32, has_others).read();
            return Wanted::Released { is_busy: has_others != 0 };
        }
        Wanted::of_wire(atomic_field!(self.domains, domain as u32, wanted).load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wanted_speeds_are_a_mode_and_a_speed() {
        let mode = |mode: u32| u64::from(mode) << wire::PACE_MODE_SHIFT;
        assert_eq!(Wanted::of_wire(0), Wanted::Released { is_busy: false });
        assert_eq!(Wanted::of_wire(mode(wire::PACE_AT) | 800_000), Wanted::At(Some(800_000)));
        assert_eq!(Wanted::of_wire(mode(wire::PACE_AT_LEAST)), Wanted::AtLeast(None));
    }
}
