//! The hardware counters by which the gate counts the cycles of tasks
//! (bpf/pace/cycle_counter.bpf.h).

use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::{fs, io};

use libbpf_rs::{MapCore as _, MapFlags};

use super::sysfs::number;
use super::tracking::Tracking;
use crate::cpus;
use crate::error::{ErrorContext as _, Result};
use crate::gate::{Gate, Lock};
use crate::mapped_array::field;
use crate::perf_event::{PERF_COUNT_HW_CPU_CYCLES, PERF_TYPE_HARDWARE, PINNED, PerfEvent};
use crate::wire;

const PMUS: &str = "sys/bus/event_source/devices";

/// An event of perf that counts cycles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CycleEvent {
    /// The type, as the kernel numbers it.
    kind: u32,
    config: u64,
}

impl CycleEvent {
    /// The event `cpu-cycles` of perf.
    pub const CPU_CYCLES: Self =
        Self { kind: PERF_TYPE_HARDWARE, config: PERF_COUNT_HW_CPU_CYCLES };

    /// An event of a PMU. `root` is `/` except in tests.
    ///
    /// # Errors
    /// If the machine does not have the PMU.
    pub fn of_pmu(root: &Path, pmu: &str, config: u64) -> io::Result<Self> {
        Ok(Self { kind: number(&root.join(PMUS).join(pmu).join("type"))?, config })
    }

    /// Its name, as files of rules have it. `root` is `/` except in tests.
    pub fn name(&self, root: &Path) -> String {
        if *self == Self::CPU_CYCLES {
            return "cpu-cycles".into();
        }
        let pmus = fs::read_dir(root.join(PMUS)).into_iter().flatten().flatten();
        let mut own = pmus.filter(|pmu| {
            number::<u32>(&pmu.path().join("type")).is_ok_and(|kind| kind == self.kind)
        });
        let pmu = own.next().map_or_else(
            || self.kind.to_string(),
            |pmu| pmu.file_name().to_string_lossy().into_owned(),
        );
        format!("{pmu}/config={:#x}/", self.config)
    }

    /// Whether a processor that is online has such a counter.
    pub fn is_available(&self) -> bool {
        cpus::online().into_iter().any(|cpu| self.event().open(cpu as u32).is_ok())
    }

    /// It always counts, so that the difference of two readings is the cycles between them. If the
    /// processor has no free counter, or went offline, it cannot be read.
    fn event(&self) -> PerfEvent {
        PerfEvent { kind: self.kind, config: self.config, sample_period: 0, flags: PINNED }
    }
}

/// What `open` opens on the processors that have it, with their numbers.
fn open_each<T>(
    cpus: impl IntoIterator<Item = usize>,
    open: impl Fn(u32) -> io::Result<T>,
) -> io::Result<Vec<(u32, T)>> {
    let mut opened = Vec::new();
    for cpu in cpus {
        let cpu = cpu as u32;
        match open(cpu) {
            Ok(counter) => opened.push((cpu, counter)),
            // The processor does not have the event, or went offline.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)) => {}
            Err(error) => return Err(error),
        }
    }
    if opened.is_empty() {
        return Err(io::Error::other("no processor of this machine has this event"));
    }
    Ok(opened)
}

impl Tracking {
    /// Has the gate count cycles by an event from now on, or without one. The first session decides
    /// for all until none is left. Returns what counts. `None`: the gate multiplies time by the
    /// speed. So it does on a processor that does not have the event.
    ///
    /// # Errors
    /// If no processor has the event.
    pub fn count_cycles(
        &self,
        gate: &Gate,
        session: u32,
        event: Option<CycleEvent>,
    ) -> Result<Option<CycleEvent>> {
        let _lock = Lock::take()?;
        let counting = field!(self.control, 0, counting_sessions);
        let others = self.other_counting_sessions(gate, session);
        if others == 0 {
            self.close_counters(gate);
            if let Some(event) = event {
                self.open_counters(gate, event).inspect_err(|_| self.close_counters(gate))?;
            }
        }
        counting.write(others | 1 << session);
        let control = self.control.read(0);
        let (kind, config) = (control.counter_type, control.counter_config);
        Ok((control.counters > 0).then_some(CycleEvent { kind, config }))
    }

    /// Closes the counters, unless another session uses them. The caller has the lock.
    pub(super) fn stop_counting(&self, gate: &Gate, session: u32) {
        let others = self.other_counting_sessions(gate, session);
        field!(self.control, 0, counting_sessions).write(others);
        if others == 0 {
            self.close_counters(gate);
        }
    }

    fn other_counting_sessions(&self, gate: &Gate, session: u32) -> u64 {
        let counting = field!(self.control, 0, counting_sessions).read();
        (1..wire::SESSIONS)
            .filter(|other| *other != session && counting >> other & 1 != 0 && gate.is_open(*other))
            .fold(0, |sessions, other| sessions | 1 << other)
    }

    fn open_counters(&self, gate: &Gate, event: CycleEvent) -> Result<()> {
        let counters = open_each(cpus::online(), |cpu| event.event().open(cpu))
            .doing(format!("open the counter {}", event.name(Path::new("/"))))?;
        field!(self.control, 0, counter_type).write(event.kind);
        field!(self.control, 0, counter_config).write(event.config);
        // From now on, close_counters() finds those that are in the map.
        field!(self.control, 0, counters).write(counters.len() as u32);
        let map = gate.maps.get("pace_counters");
        for (cpu, counter) in &counters {
            let fd = counter.as_raw_fd().to_ne_bytes();
            map.update(&cpu.to_ne_bytes(), &fd, MapFlags::ANY)
                .doing("passing a counter to pace")?;
            // What a counter of an earlier session has counted.
            field!(self.cpus, *cpu, counted_slot).write(0);
            field!(self.cpus, *cpu, estimated).write(0);
            field!(self.cpus, *cpu, has_counter).write(1);
        }
        Ok(())
    }

    fn close_counters(&self, gate: &Gate) {
        let counters = field!(self.control, 0, counters);
        if counters.read() == 0 {
            return;
        }
        for cpu in 0..cpus::possible() as u32 {
            field!(self.cpus, cpu, has_counter).write(0);
            // There is none for a processor that was offline, or does not have the event.
            let _ = gate.maps.get("pace_counters").delete(&cpu.to_ne_bytes());
        }
        counters.write(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_named_by_their_pmu() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        for (pmu, kind) in [("software", "1"), ("msr", "22")] {
            fs::create_dir_all(root.join(PMUS).join(pmu)).unwrap();
            fs::write(root.join(PMUS).join(pmu).join("type"), format!("{kind}\n")).unwrap();
        }
        let event = CycleEvent::of_pmu(root, "msr", 1).unwrap();
        assert_eq!(event, CycleEvent { kind: 22, config: 1 });
        assert_eq!(event.name(root), "msr/config=0x1/");
        assert_eq!(CycleEvent::CPU_CYCLES.name(root), "cpu-cycles");
        assert!(CycleEvent::of_pmu(root, "cpu", 0).is_err());
        // A PMU that is gone.
        assert_eq!(CycleEvent { kind: 7, config: 16 }.name(root), "7/config=0x10/");
    }

    #[test]
    fn processors_without_the_event_are_left_out() {
        let open = |failing: &[usize], errno| {
            let failing = failing.to_vec();
            open_each(0..3, move |cpu| match failing.contains(&(cpu as usize)) {
                true => Err(io::Error::from_raw_os_error(errno)),
                false => Ok(()),
            })
        };
        for errno in [libc::ENOENT, libc::ENODEV] {
            assert_eq!(open(&[1], errno).unwrap(), [(0, ()), (2, ())]);
            assert!(open(&[0, 1, 2], errno).is_err());
        }
        assert_eq!(open(&[2], libc::EMFILE).unwrap_err().raw_os_error(), Some(libc::EMFILE));
    }
}
