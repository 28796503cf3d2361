//! How well targets are met, and how soon speeds are restored, by a clock that counts instructions
//! (`scripts/vm -i`): nothing depends on how busy the host is. The work of a task takes as long as
//! it would at the speed in the register of the emulated processor.

use std::process;
use std::time::{Duration, Instant};

use super::super::emulated::{
    TARGET, load_drivers, paced_by, paced_with_store, report, state, wait_until_slowed,
};
use crate::harness::job::{folder, kill, stop};
use crate::harness::scheduling::pin;
use crate::harness::{Finished, Job, eventually, workload};

/// A target is met if no more tasks miss the deadline than it allows, plus RightSpeed's precision,
/// or plus what chance explains if there are few tasks.
const PRECISION: f64 = 0.015;

/// Keeps all processes of the test on one processor. Otherwise a change of the speed waits up to 30
/// ms until the emulator executes the other processor, and much depends on where the scheduler puts
/// the threads.
fn stay_on_one_processor() {
    pin(process::id(), 0);
}

/// What the workload has printed: how many tasks met the deadline, and the nanoseconds at each
/// speed, the fastest first.
fn printed(ran: &Finished) -> (u64, Vec<u64>) {
    let said = ran.text();
    let mut numbers = said.split_whitespace().map(|word| word.parse().expect("a number"));
    (numbers.next().expect("a number"), numbers.collect())
}

/// Paces tasks in one run after the other, which continue with the stored samples. Checks how many
/// met the deadline.
fn check_targets(runs: u64, tasks: u64) {
    stay_on_one_processor();
    load_drivers();
    let before = state();
    let (store, mut missed) = (folder(), 0);
    for _ in 0..runs {
        let ran = paced_with_store(tasks, store.path()).finish().success();
        assert_eq!(state(), before);
        let document = report(&ran);
        let pacing = &document["pacing"];
        let kind = &pacing["types"][0];
        assert_eq!(kind["tasks"].as_u64(), Some(tasks));
        // The workload has seen the same.
        let (met, at_speed) = printed(&ran);
        let found = kind["missed"].as_u64().expect("a number");
        // The two clocks are read some calls apart, so a task that ends just at the deadline may be
        // late by one of them only. In 900 tasks there was none.
        let late = tasks - met;
        println!("{found} of {tasks} missed, {late} late, at speeds {at_speed:?}: {pacing}");
        assert!(found.abs_diff(late) <= 1 + tasks / 1000, "{met} met, {found} missed");
        // Much of the work was done at lower speeds, as the register showed.
        assert!(at_speed[0] < at_speed.iter().sum::<u64>() / 4 * 3, "{at_speed:?}: {pacing}");
        let mhz = kind["mean_mhz"].as_f64().expect("a speed");
        assert!(mhz < 2700.0, "{pacing}");
        missed += found;
    }
    let all = (runs * tasks) as f64;
    // Three standard deviations of the share of misses, if each task has the target's chance.
    let chance = 3.0 * ((1.0 - TARGET) * TARGET / all).sqrt();
    let allowed = 1.0 - TARGET + PRECISION.max(chance);
    assert!(missed as f64 <= allowed * all, "{missed} of {all} missed, allowed {allowed}");
}

#[test]
fn targets_are_met_at_lower_speeds() {
    check_targets(1, 150);
}

/// Work without a task is found, however often its threads switch.
#[test]
fn frequent_switches_do_not_hide_other_work() {
    load_drivers();
    stay_on_one_processor();
    let others = Job::of(workload("busy-pairs 3600000")).start();
    let ran = paced_with_store(40, folder().path()).finish().success();
    let (_, at_speed) = printed(&ran);
    let all: u64 = at_speed.iter().sum();
    assert!(at_speed[0] > all / 3 * 2, "{at_speed:?}: {}", report(&ran)["pacing"]);
    drop(others);
}

/// `scripts/vm -i` runs it only with -a.
#[test]
fn long_run_meets_the_target() {
    check_targets(10, 1000);
}

/// Whose death ends the pacing.
#[derive(Debug, Clone, Copy)]
enum Killed {
    Tollgate,
    /// Then the next command restores the speeds.
    TollgateAndWatchdog,
}

#[test]
fn speeds_are_restored_within_a_second() {
    load_drivers();
    let before = state();
    for (actuator, victim) in [
        ("setspeed", Killed::Tollgate),
        ("bounds", Killed::Tollgate),
        ("setspeed", Killed::TollgateAndWatchdog),
        ("bounds", Killed::TollgateAndWatchdog),
    ] {
        let running = paced_by(actuator, 10_000).start();
        wait_until_slowed(&running, actuator, &before);
        stop(running.pid());
        if let Killed::TollgateAndWatchdog = victim {
            kill(running.child_running("tollgate-wdog") as i32, libc::SIGKILL);
        }
        running.signal(libc::SIGKILL);
        let killed = Instant::now();
        if let Killed::TollgateAndWatchdog = victim {
            eventually("the end", || running.is_over());
            Job::from_command_line("pace restore").finish().success();
        }
        eventually("the speeds of before", || state() == before);
        let took = killed.elapsed();
        assert!(took < Duration::from_secs(1), "{actuator}, {victim:?}: {took:?}");
    }
}
