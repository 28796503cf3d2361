//! The speeds that the kernel side of pace computes for a task that is on time, that has waited, or
//! whose deadline was changed.

use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pace::{Goal, Level, Levels, Schedule, WorkCurve, lambda_rule};
use proptest::prelude::*;

use crate::pace_moments::PaceMoments;

/// How much earlier than the deadline a schedule ends.
const MARGIN: Duration = Duration::from_millis(1);
/// The kernel side counts in microseconds, so each speed may take one more.
const ROUNDING: Duration = Duration::from_micros(1);
/// It counts in kHz, which are a hundred-thousandth of the slowest level here.
const ROUNDED_PART: f64 = 1e-5;

fn kernel_side() -> MutexGuard<'static, PaceMoments> {
    static LOADED: LazyLock<Mutex<PaceMoments>> = LazyLock::new(|| {
        kernel::quiet();
        Mutex::new(PaceMoments::new().expect("it loads as root"))
    });
    LOADED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A processor, and a schedule for it.
#[derive(Debug)]
struct Planned {
    levels: Levels,
    goal: Goal,
    schedule: Schedule,
}

/// Generates schedules that do their pre-deadline cycles exactly by the end.
fn planned() -> impl Strategy<Value = Planned> {
    let levels = prop::collection::btree_map(100_u32..5000, 1_u32..100_000, 1..8);
    let samples = prop::collection::vec((1e6..1e9, 0.1..10.0), 1..8);
    (levels, samples, 0.5..1.0, 0.0..1.0).prop_map(|(levels, samples, share, part)| {
        let level = |(mhz, milliwatts): (u32, u32)| Level {
            hz: f64::from(mhz) * 1e6,
            watts: f64::from(milliwatts) / 1e3,
        };
        let levels = Levels::new(levels.into_iter().map(level).collect(), 0.0).expect("sensible");
        let curve = WorkCurve::of_samples(samples).expect("there are samples");
        let cycles = curve.quantile(share);
        let all = levels.worthwhile();
        let (shortest, longest) = (cycles / all[all.len() - 1].hz, cycles / all[0].hz);
        let goal = Goal::new(shortest + part * (longest - shortest), cycles).expect("sensible");
        let schedule = lambda_rule(&levels, &curve, goal);
        Planned { levels, goal, schedule }
    })
}

impl Planned {
    fn hz(&self, khz: u64) -> f64 {
        match khz {
            0 => self.levels.worthwhile()[self.levels.worthwhile().len() - 1].hz,
            khz => khz as f64 * 1e3,
        }
    }

    /// When the task has done its pre-deadline cycles, if it has done `done` of them at `time`, and
    /// does not wait any more. The second value is how often its speed was computed.
    fn end(&self, at: (Duration, u64), deadline: Option<Duration>) -> (Duration, u32) {
        let kernel_side = kernel_side();
        let planned = Duration::from_secs_f64(self.goal.deadline());
        kernel_side.start(&self.levels, &self.schedule, planned, MARGIN);
        let (mut time, mut done) = at;
        let all = self.goal.cycles() as u64;
        let mut computed = 0;
        while done < all {
            let (khz, next) = kernel_side.at(time, done, deadline);
            assert!(next == 0 || next > done, "step {next} after {done} cycles");
            let hz = self.hz(khz);
            assert!(self.levels.worthwhile().iter().any(|level| level.hz == hz), "{khz} kHz");
            let until = if next == 0 { all } else { next.min(all) };
            time += Duration::from_secs_f64((until - done) as f64 / hz);
            done = until;
            computed += 1;
        }
        (time, computed)
    }

    /// When the schedule has done these cycles.
    fn planned_time(&self, done: u64) -> Duration {
        Duration::from_secs_f64(self.schedule.time(&self.levels, done as f64))
    }

    /// The factor with which the rest after `done` takes `left` seconds, if no speed exceeds the
    /// fastest one. It is at least 1, and infinite if there is none.
    fn factor(&self, done: u64, left: f64) -> f64 {
        let steps = self.schedule.steps();
        let ends = steps.iter().skip(1).map(|step| step.from).chain([self.goal.cycles()]);
        let rest = |factor: f64| -> f64 {
            let of_step = steps.iter().zip(ends.clone()).map(|(step, end)| {
                let hz = self.levels.worthwhile()[step.level].hz * factor;
                (end.min(self.goal.cycles()) - step.from.max(done as f64)).max(0.0)
                    / hz.min(self.hz(0))
            });
            of_step.sum()
        };
        let (mut low, mut high) = (1.0, self.hz(0) / self.levels.worthwhile()[0].hz);
        if rest(low) <= left {
            return low;
        }
        if rest(high) > left {
            return f64::INFINITY;
        }
        for _ in 0..60 {
            let factor = f64::midpoint(low, high);
            if rest(factor) > left { low = factor } else { high = factor }
        }
        high
    }

    /// The shortest time for the rest of the pre-deadline cycles.
    fn shortest(&self, done: u64) -> Duration {
        Duration::from_secs_f64((self.goal.cycles() - done as f64) / self.hz(0))
    }
}

/// The index of the step of a schedule after these cycles.
fn step_at(schedule: &Schedule, done: u64) -> usize {
    schedule.steps().iter().rposition(|step| step.from as u64 <= done).expect("the first")
}

/// What nobody can shorten: the time at which the work of `at` is done at the fastest speed.
fn earliest(planned: &Planned, at: (Duration, u64)) -> Duration {
    at.0 + planned.shortest(at.1)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn task_on_time_has_the_speeds_of_its_schedule(planned in planned(), part in 0.0..1.0) {
        let done = (part * planned.goal.cycles()) as u64;
        let (khz, next) = {
            let kernel_side = kernel_side();
            let end = Duration::from_secs_f64(planned.goal.deadline());
            kernel_side.start(&planned.levels, &planned.schedule, end, MARGIN);
            kernel_side.at(planned.planned_time(done), done, None)
        };
        let steps = planned.schedule.steps();
        let now = step_at(&planned.schedule, done);
        let hz = planned.levels.worthwhile()[steps[now].level].hz;
        prop_assert_eq!(planned.hz(khz), hz);
        prop_assert_eq!(next, steps.get(now + 1).map_or(0, |step| step.from as u64));
        let (end, computed) = planned.end((Duration::ZERO, 0), None);
        let expected = Duration::from_secs_f64(planned.goal.deadline());
        prop_assert!(end.abs_diff(expected) <= computed * ROUNDING, "{:?}", end);
    }

    /// The speed is the slowest level that is at least the planned speed times the factor. The
    /// reference has the smallest factor that suffices if all remaining speeds are rounded up. The
    /// kernel side does not search for it, so it is no slower.
    #[test]
    fn rest_after_a_wait_ends_by_the_deadline(
        planned in planned(), part in 0.0..1.0, wait in 0.0..1.2,
    ) {
        let done = (part * planned.goal.cycles()) as u64;
        let end_of_plan = Duration::from_secs_f64(planned.goal.deadline());
        let deadline = end_of_plan + MARGIN;
        let on_time = planned.planned_time(done);
        let time = on_time + (deadline.saturating_sub(on_time)).mul_f64(wait);
        let rest = planned.goal.deadline() - on_time.as_secs_f64();
        // If it would miss the deadline, it is to end before it by the margin.
        let is_late = rest > deadline.saturating_sub(time).as_secs_f64();
        let aim = if is_late { end_of_plan } else { deadline };
        let left = aim.saturating_sub(time).as_secs_f64();
        let (end, computed) = planned.end((time, done), None);
        let latest = aim.max(earliest(&planned, (time, done)));
        let rounding = computed * ROUNDING + latest.mul_f64(ROUNDED_PART);
        prop_assert!(end <= latest + rounding, "{:?} of {:?}", end, latest);

        // Both times are rounded down to microseconds.
        let rounding = 2.0 * ROUNDING.as_secs_f64();
        let (goal, time_left) = (planned.goal, left + rounding);
        let reference = planned.schedule.after_wait(&planned.levels, goal, done as f64, time_left);
        let level = reference.steps()[step_at(&reference, done)].level;
        let kernel_side = kernel_side();
        kernel_side.start(&planned.levels, &planned.schedule, end_of_plan, MARGIN);
        let (khz, _) = kernel_side.at(time, done, None);
        let hz = planned.levels.worthwhile()[level].hz;
        prop_assert!(planned.hz(khz) >= hz, "{} kHz, not {} Hz", khz, hz);

        let level = planned.schedule.steps()[step_at(&planned.schedule, done)].level;
        let all = planned.levels.worthwhile();
        let wanted = all[level].hz * planned.factor(done, left);
        let rounding = rounding / left.min(rest);
        let found = all.iter().position(|level| level.hz == planned.hz(khz)).expect("a level");
        if rounding < 0.1 {
            prop_assert!(all[found].hz >= wanted * (1.0 - rounding) || found == all.len() - 1);
            let is_needed = found == 0 || all[found - 1].hz < wanted * (1.0 + rounding);
            prop_assert!(is_needed, "{} kHz, wanted {} Hz", khz, wanted);
        }
    }

    #[test]
    fn work_beyond_the_pre_deadline_cycles_runs_at_the_fastest_speed(
        planned in planned(), part in 1.0..9.0_f64, time in 0.0..9.0,
    ) {
        let kernel_side = kernel_side();
        let end = Duration::from_secs_f64(planned.goal.deadline());
        kernel_side.start(&planned.levels, &planned.schedule, end, MARGIN);
        let done = (part * planned.goal.cycles()).ceil() as u64;
        let (khz, next) = kernel_side.at(end.mul_f64(time), done, None);
        prop_assert_eq!((planned.hz(khz), next), (planned.hz(0), 0));
    }

    #[test]
    fn changed_deadline_is_met(
        planned in planned(), part in 0.0..1.0, wait in 0.0..1.0, factor in 0.1..10.0,
    ) {
        let done = (part * planned.goal.cycles()) as u64;
        let on_time = planned.planned_time(done);
        let end_of_plan = Duration::from_secs_f64(planned.goal.deadline());
        let deadline = MARGIN + end_of_plan.mul_f64(factor);
        let time = on_time + (deadline.saturating_sub(on_time)).mul_f64(wait);
        let (end, computed) = planned.end((time, done), Some(deadline));
        let latest = (deadline - MARGIN).max(earliest(&planned, (time, done)));
        let rounding = computed * ROUNDING + latest.mul_f64(ROUNDED_PART);
        prop_assert!(end <= latest + rounding, "{:?} of {:?}", end, latest);
    }
}
