//! Replays the tasks of a trace on one processor, to find the deadlines that a policy would have
//! met and the energy that it would have used.

use std::collections::VecDeque;

use crate::levels::{Level, Levels};

/// Times that differ by less are the same, in seconds. Recorded times are whole nanoseconds. The
/// rounding errors of times up to a week, the longest trace, are smaller: 64-bit numbers of that
/// size are 0.12 ns apart.
const RESOLUTION: f64 = 1e-9;

/// A task of a trace.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TraceTask {
    /// The type of the task: an index.
    pub kind: usize,
    /// When it began, in seconds.
    pub begin: f64,
    /// Its work, in cycles.
    pub cycles: f64,
    /// Seconds from its beginning to its deadline.
    pub deadline: f64,
}

/// Chooses the speed of a processor that executes tasks one after the other, in the order of their
/// beginnings.
pub trait SpeedPolicy {
    /// A task begins. `waiting` is the number of tasks that have begun and not ended, this one
    /// included.
    fn begin(&mut self, task: &TraceTask, waiting: usize);

    /// The current task ends. `waiting` is the number of tasks that are left.
    fn end(&mut self, task: &TraceTask, waiting: usize);

    /// The level of a task that has done this many cycles, and the number of cycles up to which
    /// this level holds.
    fn level(&self, done: f64) -> (Level, f64);

    /// The next time at which the policy may change the level by itself, if the processor is busy,
    /// or idle, until then.
    fn next_tick(&self, _is_busy: bool) -> f64 {
        f64::INFINITY
    }

    /// Tells the policy that the time is `now`, and whether the processor was busy since the
    /// previous call. It was busy for the whole time or not at all. At the time of
    /// [`SpeedPolicy::next_tick`], the policy may change the level.
    fn pass(&mut self, _now: f64, _is_busy: bool) {}
}

/// The result of a replay.
#[derive(Debug, Clone, PartialEq)]
pub struct Replay {
    /// The energy of each task beyond that of an idle processor, in joules.
    pub energies: Vec<f64>,
    /// The seconds from the beginning of each task to its end, including the time that it waited.
    pub times: Vec<f64>,
    /// Whether another task was unfinished at some time of each task.
    pub overlapped: Vec<bool>,
}

impl Replay {
    /// The energy of all tasks together, in joules.
    pub fn energy(&self) -> f64 {
        self.energies.iter().sum()
    }

    /// Whether each task met its deadline.
    pub fn met(&self, tasks: &[TraceTask]) -> Vec<bool> {
        let is_met = |(time, task): (&f64, &TraceTask)| *time <= task.deadline + RESOLUTION;
        self.times.iter().zip(tasks).map(is_met).collect()
    }
}

/// Replays tasks. They must be in the order of their beginnings.
pub fn replay(levels: &Levels, tasks: &[TraceTask], policy: &mut dyn SpeedPolicy) -> Replay {
    let mut result = Replay {
        energies: vec![0.0; tasks.len()],
        times: vec![0.0; tasks.len()],
        overlapped: vec![false; tasks.len()],
    };
    let mut waiting: VecDeque<usize> = VecDeque::new();
    let (mut now, mut done, mut next) = (0.0_f64, 0.0, 0);
    while next < tasks.len() || !waiting.is_empty() {
        let begins = tasks.get(next).map_or(f64::INFINITY, |task| task.begin);
        let until = begins.min(policy.next_tick(!waiting.is_empty()));
        let Some(current) = waiting.front().copied() else {
            now = now.max(until);
            policy.pass(now, false);
            if begins <= now {
                waiting.push_back(next);
                policy.begin(&tasks[next], waiting.len());
                next += 1;
            }
            continue;
        };
        let (level, change) = policy.level(done);
        let end = change.min(tasks[current].cycles);
        let reaches = now + (end - done).max(0.0) / level.hz;
        // A task that takes exactly the time until the next one begins has ended then. It does not
        // end later than that, because the difference would add up in a loop of frames.
        let (then, is_end) = (reaches.min(until), reaches <= until + RESOLUTION);
        let seconds = (then - now).max(0.0);
        result.energies[current] += seconds * (level.watts - levels.idle_watts());
        done = if is_end { end } else { done + seconds * level.hz };
        now = now.max(then);
        policy.pass(now, true);
        if done >= tasks[current].cycles {
            result.times[current] = now - tasks[current].begin;
            waiting.pop_front();
            done = 0.0;
            policy.end(&tasks[current], waiting.len());
        }
        if begins <= now {
            if let Some(current) = waiting.front() {
                result.overlapped[*current] = true;
                result.overlapped[next] = true;
            }
            waiting.push_back(next);
            policy.begin(&tasks[next], waiting.len());
            next += 1;
        }
    }
    result
}
