//! Runs pace's kernel side at invented moments of a task (bpf/pace/moments.bpf.c).

use std::mem::MaybeUninit;
use std::time::Duration;

use kernel::Result;
use kernel::mapped_array::MappedArray;
use kernel::wire;
use libbpf_rs::ProgramInput;
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use pace::{Level, Levels, Schedule};
use skeleton::{PaceMomentsSkel, PaceMomentsSkelBuilder};

#[allow(clippy::all, clippy::undocumented_unsafe_blocks, dead_code, unused)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/pace_moments.skel.rs"));
}

/// A task with a schedule.
pub struct PaceMoments {
    skeleton: PaceMomentsSkel<'static>,
    control: MappedArray<wire::pace_control>,
    schedules: MappedArray<wire::pace_schedule>,
    moment: MappedArray<wire::pace_moment>,
}

impl PaceMoments {
    pub fn new() -> Result<Self> {
        let object = Box::leak(Box::new(MaybeUninit::uninit()));
        let skeleton =
            PaceMomentsSkelBuilder::default().open(object).expect("the object can be read");
        let skeleton = skeleton.load().expect("it loads as root");
        let maps = &skeleton.maps;
        Ok(Self {
            control: MappedArray::new(&maps.bss_pace_ctl, 1)?,
            schedules: MappedArray::new(&maps.bss_pace_sched, wire::PACE_SCHEDULES)?,
            moment: MappedArray::new(&maps.bss_moment, 1)?,
            skeleton,
        })
    }

    /// The next moments are those of a task with this schedule, which ends by `planned`.
    pub fn start(&self, levels: &Levels, schedule: &Schedule, planned: Duration, margin: Duration) {
        let khz = |level: &Level| (level.hz / 1e3) as u64;
        let all = levels.all();
        let mut control = wire::pace_control {
            powers: all.len() as u32,
            fastest_khz: khz(&all[all.len() - 1]) as u32,
            ..Default::default()
        };
        for (index, level) in all.iter().enumerate() {
            control.power[index].khz = khz(level) as u32;
            control.worthwhile |= u64::from(levels.worthwhile().contains(level)) << index;
        }
        self.control.write(0, control);
        let mut of_type = wire::pace_schedule::default();
        of_type.steps[0] = schedule.steps().len() as u32;
        of_type.planned_ns[0] = planned.as_nanos() as u64;
        of_type.deadline_ns[0] = (planned + margin).as_nanos() as u64;
        for (to, step) in of_type.step.iter_mut().zip(schedule.steps()) {
            let after = Duration::from_secs_f64(schedule.time(levels, step.from));
            *to = wire::pace_step {
                cycles: step.from as u64,
                ns: after.as_nanos() as u64,
                khz: khz(&levels.worthwhile()[step.level]),
            };
        }
        // The task of bpf/pace/moments.bpf.c has this entry.
        self.schedules.write(1, of_type);
        self.moment.write(0, wire::pace_moment::default());
    }

    /// The speed of the task in kHz (0: the fastest), and the cycles at which its next step begins
    /// (0: there is none), after this time and work. `deadline` is the one that its program has
    /// set.
    pub fn at(&self, time: Duration, cycles: u64, deadline: Option<Duration>) -> (u64, u64) {
        let nanos = |time: Duration| time.as_nanos() as u64;
        let moment = wire::pace_moment {
            cycles,
            ns: nanos(time),
            deadline_ns: deadline.map_or(0, nanos),
            is_late: self.moment.read(0).is_late,
            ..Default::default()
        };
        self.moment.write(0, moment);
        self.skeleton.progs.pace_moments.test_run(ProgramInput::default()).expect("it runs");
        let moment = self.moment.read(0);
        (moment.khz, moment.next)
    }
}
