//! How well targets are met, and how soon speeds are restored, by a clock that counts instructions
//! (`scripts/vm -i`): nothing depends on how busy the host is. The work of a task takes as long as
//! it would at the speed in the register of the emulated processor.

use std::fs;
use std::process;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::super::emulated::{
    DEADLINE_MS, TARGET, domain_of, is_slowed, load_drivers, paced_by, paced_command,
    paced_with_seed, paced_with_store, policy, set_governor, slowed_domains, state, state_of,
    stop_while_slowed, wait_until_paced, wait_until_slowed,
};
use crate::harness::job::{folder, kill};
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

/// Checks the mean speed and the modelled energy of a type against the time that the workload has
/// seen at each speed.
#[track_caller]
fn check_means(kind: &Value, at_speed: &[u64]) {
    /// The speeds of vm/pstates.asl, and their power in W.
    const LEVELS: [(f64, f64); 5] =
        [(3000.0, 30.0), (2400.0, 20.0), (1800.0, 12.0), (1200.0, 7.0), (800.0, 4.0)];
    let ns: f64 = at_speed.iter().map(|ns| *ns as f64).sum();
    let mean = |value: fn((f64, f64)) -> f64| {
        let parts = LEVELS.iter().zip(at_speed).map(|(level, ns)| value(*level) * *ns as f64);
        parts.sum::<f64>() / ns
    };
    let number = |key: &str| kind[key].as_f64().expect("a number");
    let mhz = number("mean_mhz") / mean(|(mhz, _)| mhz);
    let watts = number("modelled_joules") / number("cpu_s") / mean(|(_, watts)| watts);
    assert!((0.97..1.03).contains(&mhz) && (0.97..1.03).contains(&watts), "{at_speed:?}: {kind}");
}

/// Paces tasks in one run after the other, which continue with the stored samples of other tasks.
/// Checks how many met the deadline.
fn check_targets(actuator: &str, runs: u64, tasks: u64) {
    stay_on_one_processor();
    load_drivers();
    let before = state();
    let (store, mut missed) = (folder(), 0);
    for seed in 1..=runs {
        let ran = paced_with_seed(actuator, tasks, seed, store.path()).finish().success();
        assert_eq!(state(), before);
        let document = ran.document("report");
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
        check_means(kind, &at_speed);
        assert!(pacing["latency_us"]["p99"].as_f64().expect("a latency") > 0.0, "{pacing}");
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
    check_targets("setspeed", 1, 150);
}

/// Work without a task is found, however often its threads switch.
#[test]
fn frequent_switches_do_not_hide_other_work() {
    load_drivers();
    stay_on_one_processor();
    let others = Job::of(workload("busy-pairs 3600000")).start();
    for actuator in ["setspeed", "bounds"] {
        let ran = paced_with_store(actuator, 20, folder().path()).finish().success();
        let (_, at_speed) = printed(&ran);
        let all: u64 = at_speed.iter().sum();
        let pacing = &ran.document("report")["pacing"];
        assert!(at_speed[0] > all / 3 * 2, "{actuator}: {at_speed:?}: {pacing}");
    }
    drop(others);
}

/// The numbers that the workload has printed.
fn numbers(ran: &Finished) -> Vec<f64> {
    let said = ran.text();
    said.split_whitespace().map(|word| word.parse().expect("a number")).collect()
}

/// Tasks that are not like those before. The workload prints the speed during most of the first
/// third of the work and the speed at the end, in MHz, and the time as a part of the deadline.
#[test]
fn odd_tasks_become_faster() {
    stay_on_one_processor();
    load_drivers();
    for (workload, limit) in [
        // More work than ever seen.
        ("long-task", None),
        // A sleep in the middle.
        ("waiting-task", Some(1.0)),
        // The program moves the deadline forwards.
        ("urgent-task", Some(1.0)),
    ] {
        let ran = paced_command(&format!("{workload} 20 {DEADLINE_MS}")).finish().success();
        let [before, after, time] = numbers(&ran)[..] else { panic!("{}", ran.text()) };
        let pacing = &ran.document("report")["pacing"];
        assert!(before < after, "{workload}: {before} MHz, then {after} MHz: {pacing}");
        match limit {
            Some(limit) => assert!(time <= limit, "{workload}: {time}: {pacing}"),
            None => assert_eq!(after, 3000.0, "{workload}: {pacing}"),
        }
    }
}

/// Two tasks on two processors: with one domain for both, they have the fastest speed; otherwise,
/// each has its own.
#[test]
fn tasks_of_two_processors_have_the_speeds_of_their_domains() {
    stay_on_one_processor();
    load_drivers();
    let ran = paced_command(&format!("tasks-beside 20 {DEADLINE_MS}")).finish().success();
    let [first, second] = numbers(&ran)[..] else { panic!("{}", ran.text()) };
    let pacing = &ran.document("report")["pacing"];
    match state().len() {
        1 => assert_eq!((first, second), (3000.0, 3000.0), "{pacing}"),
        // The second one has less time.
        _ => assert!(first < second && second < 3000.0, "{first} and {second} MHz: {pacing}"),
    }
}

/// The first tasks of a type run at the fastest speed only if nothing is stored of it.
#[test]
fn stored_samples_make_the_first_schedule() {
    /// Fewer than a schedule needs.
    const FEW: u64 = 5;
    stay_on_one_processor();
    load_drivers();
    let store = folder();
    let at_speeds = |tasks| {
        let ran = paced_with_store("setspeed", tasks, store.path()).finish().success();
        printed(&ran).1
    };
    let [first, _, last] = [FEW, 20, FEW].map(at_speeds);
    let fast_part = |at_speed: &[u64]| at_speed[0] as f64 / at_speed.iter().sum::<u64>() as f64;
    // The first task may begin before the speed can be set.
    assert!(fast_part(&first) > 0.7 && fast_part(&last) < 0.3, "{first:?}, then {last:?}");
}

/// `scripts/vm -i` runs it only with -a.
#[test]
fn long_run_meets_the_target() {
    check_targets("setspeed", 10, 1000);
}

/// The governor applies bounds at its next tick, so the schedules end earlier.
#[test]
fn long_run_with_bounds_meets_the_target() {
    check_targets("bounds", 2, 500);
}

/// Whose death ends the pacing.
#[derive(Debug, Clone, Copy)]
enum Killed {
    Tollgate,
    /// Then the next command restores the speeds.
    TollgateAndWatchdog,
    /// First the watchdog. When it has been replaced, Tollgate.
    WatchdogThenTollgate,
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
        ("setspeed", Killed::WatchdogThenTollgate),
        ("bounds", Killed::WatchdogThenTollgate),
    ] {
        let running = paced_by(actuator, 10_000).start();
        wait_until_slowed(&running, actuator, &before);
        if let Killed::WatchdogThenTollgate = victim {
            let first = running.child_running("tollgate-wdog");
            kill(first as i32, libc::SIGKILL);
            eventually("another watchdog", || running.child_running("tollgate-wdog") != first);
        }
        stop_while_slowed(&running, actuator, &before);
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

/// A second task begins while the first one is slowed down.
#[test]
fn two_tasks_at_once_run_at_the_fastest_speed() {
    stay_on_one_processor();
    load_drivers();
    let before = state();
    let ran = paced_command("tasks-overlap 30").finish().success();
    assert_eq!(state(), before);
    // In MHz: one task; two; the second one is over.
    let speeds = numbers(&ran);
    assert!(speeds[0] < 3000.0, "{speeds:?}");
    assert_eq!(speeds[1..], [3000.0; 2], "{speeds:?}: {}", ran.document("report")["pacing"]);
}

/// A task that no thread works on does not decide speeds any more after 10 s.
#[test]
fn forgotten_task_is_given_up() {
    stay_on_one_processor();
    load_drivers();
    let before = state();
    let running = paced_command("forgotten-task 3600000").start();
    wait_until_paced(&running);
    let paced = Instant::now();
    // At the beginning, Tollgate measures how long a change of the speed takes.
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(policy("scaling_governor"), "userspace");
    eventually("the speeds of before", || {
        assert!(!running.is_over(), "{}", running.read("err"));
        state() == before
    });
    assert!(paced.elapsed() > Duration::from_secs(9), "after {:?}", paced.elapsed());
    running.signal(libc::SIGTERM);
    running.finish();
}

#[test]
fn governor_of_another_process_is_kept() {
    load_drivers();
    let before = state();
    for actuator in ["setspeed", "bounds"] {
        let running = paced_by(actuator, 10_000).start();
        // Tollgate may be about to write a governor itself, which it cannot notice.
        let domain = stop_while_slowed(&running, actuator, &before);
        set_governor("performance");
        running.signal(libc::SIGCONT);
        let changed = Instant::now();
        let [_, min, max] = before[domain as usize].clone();
        let expected = ["performance".to_owned(), min, max];
        eventually("the bounds of before", || state_of(domain) == expected);
        let took = changed.elapsed();
        assert!(took < Duration::from_secs(1), "{actuator}: {took:?}");
        let message = format!("policy{domain} is not paced any more");
        eventually("a message", || running.read("err").contains(&message));
        running.signal(libc::SIGTERM);
        running.finish();
        assert_eq!(state_of(domain), expected, "{actuator}");
        set_governor(&before[0][0]);
        assert_eq!(state(), before);
    }
}

#[test]
fn ten_thousand_types_are_paced() {
    const TYPES: u64 = 10_000;
    load_drivers();
    let before = state();
    let ran = paced_command(&format!("tasks-of-types {TYPES}")).finish().success();
    assert_eq!(state(), before);
    let document = ran.document("report");
    let pacing = &document["pacing"];
    let types = pacing["types"].as_array().expect("an array");
    let tasks: u64 = types.iter().map(|one| one["tasks"].as_u64().expect("a number")).sum();
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let (replaced, replaced_tasks) =
        (number(&pacing["replaced_types"]), number(&pacing["replaced_tasks"]));
    let lost = number(&document["losses"]["tasks with deadlines not reported (buffer full)"]);
    assert_eq!(tasks + replaced_tasks + lost, 2 * TYPES, "{lost} lost, {replaced} replaced");
    assert!(replaced > 0 && types.len() as u64 + replaced >= TYPES - lost, "{replaced} replaced");
    // The type that has had tasks between those of the others has a schedule.
    let often = types.iter().find(|one| one["name"] == "workloads: often").expect("it is there");
    assert!(number(&often["tasks"]) >= TYPES - lost, "{often}");
    assert!(often["schedule"].is_array(), "{often}");
}

/// The last one of these tests by its name: afterwards, changes of the speed take longer in the
/// emulator.
#[test]
fn work_goes_on_when_a_processor_goes_offline() {
    const CPU: usize = 1;
    load_drivers();
    let before = state();
    let online = format!("/sys/devices/system/cpu/cpu{CPU}/online");
    let domain = domain_of(CPU);
    for actuator in ["setspeed", "bounds"] {
        let running = paced_by(actuator, 10_000).start();
        pin(running.child_running("workloads"), CPU);
        eventually("a slower speed", || slowed_domains(actuator, &before) == [domain]);
        fs::write(&online, "0").expect("the processor can be removed");
        // The tasks go on, on the other processor.
        eventually("the next speeds", || {
            assert!(!running.is_over(), "{}", running.read("err"));
            is_slowed(domain_of(0), actuator, &before)
        });
        fs::write(&online, "1").expect("the processor can return");
        let returned = Instant::now();
        if domain != domain_of(0) {
            eventually("the speed of before", || state_of(domain) == before[domain as usize]);
            let took = returned.elapsed();
            assert!(took < Duration::from_secs(1), "{actuator}: {took:?}");
        }
        running.signal(libc::SIGTERM);
        running.finish();
        assert_eq!(state(), before, "{actuator}");
    }
}
