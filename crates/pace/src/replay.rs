//! What a policy would have met and used: tasks of a trace, replayed on one processor.

use std::collections::VecDeque;

use crate::levels::{Level, Levels};

/// A task of a trace.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Task {
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
    fn begin(&mut self, task: &Task, waiting: usize);

    /// The current task ends. `waiting` is the number of tasks that are left.
    fn end(&mut self, task: &Task, waiting: usize);

    /// The level while a task runs that has done this many cycles, and the number of cycles at
    /// which the level has to be asked for again.
    fn level(&self, done: f64) -> (Level, f64);

    /// The next time at which the level changes without a task's doing.
    fn next_tick(&self) -> f64 {
        f64::INFINITY
    }

    /// The time is `now`. Since the previous call, the processor was busy for the whole time, or
    /// not at all. A tick is due if `now` is that of [`SpeedPolicy::next_tick`].
    fn pass(&mut self, _now: f64, _is_busy: bool) {}
}

/// The result of a replay.
#[derive(Debug, Clone, PartialEq)]
pub struct Replay {
    /// The energy of all tasks beyond that of a processor without a task, in joules.
    pub energy: f64,
    /// How long each task took from its beginning, with waiting, in seconds.
    pub times: Vec<f64>,
}

impl Replay {
    /// The number of tasks that met their deadlines.
    pub fn met(&self, tasks: &[Task]) -> usize {
        // Times are sums of many small numbers.
        let is_met = |(time, task): (&f64, &Task)| *time <= task.deadline * (1.0 + 1e-9);
        self.times.iter().zip(tasks).filter(|pair| is_met((pair.0, pair.1))).count()
    }
}

/// Replays tasks, which are in the order of their beginnings.
pub fn replay(levels: &Levels, tasks: &[Task], policy: &mut dyn SpeedPolicy) -> Replay {
    let mut result = Replay { energy: 0.0, times: vec![0.0; tasks.len()] };
    let mut waiting: VecDeque<usize> = VecDeque::new();
    let (mut now, mut done, mut next) = (0.0_f64, 0.0, 0);
    while next < tasks.len() || !waiting.is_empty() {
        let begins = tasks.get(next).map_or(f64::INFINITY, |task| task.begin);
        let until = begins.min(policy.next_tick());
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
        let (then, is_end) = if reaches <= until { (reaches, true) } else { (until, false) };
        let seconds = (then - now).max(0.0);
        result.energy += seconds * (level.watts - levels.idle_watts());
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
            waiting.push_back(next);
            policy.begin(&tasks[next], waiting.len());
            next += 1;
        }
    }
    result
}
