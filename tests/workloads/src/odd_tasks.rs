//! Tasks on an emulated processor (`emulated_speed`) that are not like the others of their type.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use tollgate::pace::{Task, TaskType};

use crate::arguments::{Arguments, HOUR_MS};
use crate::clock::nap;
use crate::cpu_time::work_for;
use crate::emulated_speed::{MHZ, Registers, failed, work};
use crate::failure::{Failure, Outcome};
use crate::output::print_line;
use crate::reading::pin_to;

const MAX_TASKS: u64 = 1000;
/// The time of each task before at the fastest speed, as a part of the deadline.
const WORK: f64 = 0.45;

/// The tasks before the odd one, and what it needs.
struct OddTask {
    registers: Registers,
    kind: TaskType,
    deadline: Duration,
    /// The work of the other tasks.
    cycles: u64,
}

impl OddTask {
    /// Runs tasks that are alike, so that a schedule is known. `part` is their time at the fastest
    /// speed, as a part of the deadline.
    fn after_others(mut arguments: Arguments, part: f64) -> Result<Self, Failure> {
        let tasks = arguments.number("N", 1..=MAX_TASKS)?;
        let deadline = Duration::from_millis(arguments.number("DEADLINE_MS", 1..=HOUR_MS)?);
        arguments.end()?;
        let cycles = (deadline.as_secs_f64() * 1e6 * part) as u64 * MHZ[0];
        let kind = TaskType::new(c"frame");
        let odd = Self { registers: Registers::open().map_err(failed)?, kind, deadline, cycles };
        for _ in 0..tasks {
            let task = kind.begin();
            odd.work(1.0)?;
            task.end();
            nap(10)?;
        }
        Ok(odd)
    }

    /// Does this part of the work of the other tasks. Returns the speed during most of the time, in
    /// MHz. A speed at one moment may be the fastest one, which other work has.
    fn work(&self, part: f64) -> Result<u64, Failure> {
        let cycles = (self.cycles as f64 * part) as u64;
        let mut at_speed = [0; MHZ.len()];
        work(&self.registers, cycles, &mut at_speed).map_err(failed)?;
        let most = at_speed.iter().zip(MHZ).max_by_key(|(ns, _)| **ns);
        Ok(most.expect("there are speeds").1)
    }

    fn mhz(&self) -> Result<u64, Failure> {
        self.registers.mhz().map_err(failed)
    }

    /// Runs the task: a third of the work of the others, then `odd`, then `rest` times their work.
    /// Prints the speed before `odd` and the one at the end, in MHz, and the quotient of the time
    /// that the task took and of `deadline`.
    fn run(&self, odd: impl FnOnce(&Task) -> Outcome, rest: f64, deadline: Duration) -> Outcome {
        let began = Instant::now();
        let task = self.kind.begin();
        let before = self.work(1.0 / 3.0)?;
        odd(&task)?;
        self.work(rest)?;
        let after = self.mhz()?;
        let took = began.elapsed();
        task.end();
        print_line(&format!("{before} {after} {}", took.as_secs_f64() / deadline.as_secs_f64()))
    }
}

/// A task with three times the work.
pub fn long_task(arguments: Arguments) -> Outcome {
    let odd = OddTask::after_others(arguments, WORK)?;
    odd.run(|_| Ok(()), 8.0 / 3.0, odd.deadline)
}

/// A task that sleeps for a quarter of the deadline.
pub fn waiting_task(arguments: Arguments) -> Outcome {
    let odd = OddTask::after_others(arguments, WORK)?;
    odd.run(|_| nap(odd.deadline.as_millis() as u64 / 4), 2.0 / 3.0, odd.deadline)
}

/// A task whose deadline is moved forwards.
pub fn urgent_task(arguments: Arguments) -> Outcome {
    let odd = OddTask::after_others(arguments, WORK)?;
    let deadline = odd.deadline.mul_f64(0.8);
    let move_deadline = |task: &Task| {
        task.set_deadline(deadline);
        Ok(())
    };
    odd.run(move_deadline, 2.0 / 3.0, deadline)
}

/// Runs tasks one after the other until a schedule is known, and then two that overlap.
/// Prints the speed at three moments, in MHz: during the first one of both, during both, and when
/// the second one is over.
pub fn tasks_overlap(mut arguments: Arguments) -> Outcome {
    /// Enough time for a speed to be set.
    const MS: u64 = 10;
    let tasks = arguments.number("N", 1..=MAX_TASKS)?;
    arguments.end()?;
    let registers = Registers::open().map_err(failed)?;
    let kind = TaskType::new(c"frame");
    for _ in 0..tasks {
        let task = kind.begin();
        work_for(MS);
        task.end();
        nap(MS)?;
    }
    let mhz = || registers.mhz().map_err(failed);
    let first = kind.begin();
    work_for(MS / 2);
    let alone = mhz()?;
    let second = kind.begin();
    work_for(MS);
    let both = mhz()?;
    second.end();
    work_for(MS);
    let after_second = mhz()?;
    first.end();
    print_line(&format!("{alone} {both} {after_second}"))
}

/// Runs tasks one after the other until a schedule is known, and then two at the same time, one on
/// each of the first two processors: one without haste, and one with twice the deadline of the
/// others. Prints the speeds of both processors meanwhile, in MHz.
pub fn tasks_beside(arguments: Arguments) -> Outcome {
    const PART: f64 = 0.95;
    /// Less than the work of the tasks before, beyond which a task has the fastest speed.
    const WORK_PERCENT: u64 = 80;
    let odd = OddTask::after_others(arguments, PART)?;
    let ms = odd.deadline.as_millis() as u64 * WORK_PERCENT / 100;
    let both = Barrier::new(2);
    let run = |cpu: u64, deadline| {
        let pinned = pin_to(cpu);
        let task = odd.kind.begin();
        task.set_deadline(deadline);
        both.wait();
        work_for(ms);
        let mhz = odd.mhz();
        both.wait();
        task.end();
        pinned.and(mhz)
    };
    let (first, second) = thread::scope(|scope| {
        let second = scope.spawn(|| run(1, 2 * odd.deadline));
        (run(0, Duration::from_millis(HOUR_MS)), second.join().expect("it does not panic"))
    });
    print_line(&format!("{} {}", first?, second?))
}
