//! What a hold looks like from outside, as docs/guard.md lists it: to a shell, to an event loop, to threads.

use std::io::Write as _;
use std::time::{Duration, Instant};

use crate::harness::cgroup::ControlGroup;
use crate::harness::daemon::{Daemon, Servant};
use crate::harness::guarded::{Guard, Guarded};
use crate::harness::job::{is_running, kill, state, states_of};
use crate::harness::pty::Terminal;
use crate::harness::{Job, LIMIT, eventually, words};

const ENFORCE: &str = "--guard=enforce --respond stop";

#[test]
fn an_event_loop_sees_one_interrupted_wait_a_hold() {
    let (it, group) = (Guarded::new(), ControlGroup::new());
    let daemon = Daemon::start(&it, &group, ENFORCE);
    let mut servant = Servant::start(&it, &group);
    eventually("it is guarded", || {
        servant.serve(b"u");
        daemon.program().is_some()
    });
    for _ in 0..3 {
        daemon.ask(&format!("hold {}", servant.pid()));
        eventually("the hold", || servant.is_stopped());
        servant.tell(b"u");
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert_eq!(servant.unanswered(), 1, "nobody serves while held");
        daemon.ask("release");
        eventually("its answer", || servant.unanswered() == 0);
    }
    assert!(servant.end().contains("interrupted: 3 waits, 0 naps"));
}

/// What the kernel, or an event loop, does again is the same call.
#[test]
fn threads_that_were_stopped_are_not_unusual_for_it() {
    let (it, group) = (Guarded::new(), ControlGroup::new());
    let (daemon, mut servant) = learned(&it, &group, "--delay-cap 1ms", &[b'u'; 100], 4);
    for _ in 0..20 {
        daemon.ask(&format!("hold {}", servant.pid()));
        eventually("all of them", || states_of(servant.pid()) == ['T'; 5]);
        daemon.ask("release");
        servant.serve(b"u");
    }
    assert_eq!(daemon.events(), Vec::<serde_json::Value>::new());
}

/// A daemon that has learned what a servant does when it is told this.
fn learned(
    it: &Guarded,
    group: &ControlGroup,
    options: &str,
    usual: &[u8],
    threads: u32,
) -> (Daemon, Servant) {
    let daemon = Daemon::start(it, group, &format!("--guard=enforce --anomaly-limit 1000 {options}"));
    let mut servant = Servant::with_threads(it, group, threads);
    eventually("it is guarded", || {
        servant.serve(usual);
        daemon.program().is_some_and(|program| program["calls"].as_u64() > Some(2000))
    });
    daemon.ask("normalize guarded");
    servant.serve(usual);
    assert_eq!(daemon.program().expect("it is known")["anomalies"], 0);
    (daemon, servant)
}

/// The kernel lets a BPF program send signals to others since 6.13; older ones run none of the tests
/// in this folder.
#[test]
fn who_is_continued_by_somebody_else_hardly_makes_a_call() {
    let it = Guarded::normal(&["routine 100 0", "orphaned-routine 100 0"]);
    let ways = [
        ("--respond stop", "routine"),
        ("--delay-factor 5s", "routine"),
        ("--respond stop", "orphaned-routine"),
    ];
    for (options, routine) in ways {
        let options = format!("--guard=enforce --anomaly-limit 1000 {options}");
        let running = it.job(&options, &format!("{routine} 100 900")).start();
        let guarded = running.child_running("guarded");
        let is_held = || states_of(guarded).contains(&'T');
        eventually("the hold", is_held);
        // It makes 900 unusual calls, and would be done after as many, if each let it make one.
        for _ in 0..1000 {
            kill(guarded as i32, libc::SIGCONT);
            std::thread::sleep(Duration::from_millis(1));
        }
        eventually("the hold goes on", is_held);
        kill(guarded as i32, libc::SIGKILL);
        let guard = Guard::of(&running.finish().exits_with(137));
        // Some, where the second signal came late.
        println!("{options} {routine}: {} calls", guard.number("anomalies"));
    }
}

/// systemd and timeout(1) send both.
#[test]
fn who_is_asked_to_end_and_continued_ends() {
    let it = Guarded::normal(&["routine 100 0"]);
    let running = it.job("--guard=enforce --respond stop", "routine 100 300").start();
    let guarded = running.child_running("guarded");
    eventually("the hold", || state(guarded) == Some('T'));
    kill(guarded as i32, libc::SIGTERM);
    kill(guarded as i32, libc::SIGCONT);
    running.finish().exits_with(143);
}

/// A stop against somebody else's SIGCONT may still be on its way when the hold's time is over.
#[test]
fn who_is_continued_by_somebody_else_is_let_go_in_time() {
    let it = Guarded::normal(&["routine 100 0"]);
    let running = it.job("--guard=enforce --delay-cap 2ms --anomaly-limit 1000", "routine 100 300").start();
    let guarded = running.child_running("guarded");
    let mut rounds = 0_u64;
    while state(guarded).is_some_and(|state| state != 'Z') {
        // It ends at another moment of a hold each time.
        let storm = Duration::from_micros(rounds * 370 % 5000);
        let began = Instant::now();
        while began.elapsed() < storm {
            kill(guarded as i32, libc::SIGCONT);
        }
        while state(guarded) == Some('T') {
            assert!(began.elapsed() < LIMIT, "it stays stopped");
        }
        rounds += 1;
    }
    println!("{rounds} rounds");
    let guard = Guard::of(&running.finish().success());
    assert!(guard.number("holds") >= 100, "{}", guard.0);
}

/// What it does after an EINTR would be unusual again.
#[test]
fn an_event_loop_that_is_held_for_its_calls_sees_no_interrupted_wait() {
    let (it, group) = (Guarded::new(), ControlGroup::new());
    let (daemon, mut servant) = learned(&it, &group, "--delay-cap 5ms", &[b'u'; 100], 0);
    for _ in 0..3 {
        servant.serve(b"x");
        // One by one, so that it waits for each.
        (0..10).for_each(|_| servant.serve(b"u"));
    }
    let events = daemon.events();
    assert!(
        events.iter().any(|event| event["effect"] == "next" && event["call"] == "epoll_wait"),
        "{events:?}"
    );
    let holds = daemon.program().expect("it is known")["holds"].as_u64();
    assert!(holds > Some(60), "{holds:?}");
    assert!(servant.end().contains("interrupted: 0 waits"));
}

/// signal(7), "Interruption of system calls and library functions by stop signals".
const INTERRUPTED: [&str; 18] = [
    "epoll_wait",
    "epoll_pwait",
    "epoll_pwait2",
    "semop",
    "semtimedop",
    "rt_sigtimedwait",
    "io_getevents",
    "accept --timeout 1000",
    "accept4 --timeout 1000",
    "connect --timeout 1000",
    "recvfrom --timeout 1000",
    "recvmsg --timeout 1000",
    "recvmmsg --timeout 1000",
    "read --timeout 1000",
    "sendto --timeout 1000",
    "sendmsg --timeout 1000",
    "sendmmsg --timeout 1000",
    "write --timeout 1000",
];
const RESUMED: [&str; 20] = [
    "accept",
    "accept4",
    "connect",
    "recvfrom",
    "recvmsg",
    "recvmmsg",
    "read",
    "sendto",
    "sendmsg",
    "sendmmsg",
    "write",
    "poll",
    "ppoll",
    "select",
    "pselect6",
    "nanosleep",
    "clock_nanosleep",
    "futex",
    "pause",
    "rt_sigsuspend",
];

#[test]
fn an_operators_hold_interrupts_the_calls_that_the_manual_lists_and_no_others() {
    let (it, group) = (Guarded::new(), ControlGroup::new());
    let daemon = Daemon::start(&it, &group, ENFORCE);
    let start = |call: &&str| {
        let job = Job::of([vec![it.program.clone().into()], words(&format!("waits {call}"))].concat());
        let waiting = job.in_own_session().start();
        group.add(waiting.pid());
        eventually(call, || state(waiting.pid()) == Some('S'));
        waiting
    };
    let interrupted: Vec<_> = INTERRUPTED.iter().map(start).collect();
    let resumed: Vec<_> = RESUMED.iter().map(start).collect();
    let pids: Vec<_> = interrupted.iter().chain(&resumed).map(|waiting| waiting.pid()).collect();
    for pid in &pids {
        let hold = format!("hold {pid}");
        eventually("it is guarded, and held", || daemon.ask_job(&hold).finish().status == 0);
    }
    eventually("the holds", || pids.iter().all(|pid| state(*pid) == Some('T')));
    daemon.ask("release");
    for (waiting, call) in interrupted.into_iter().zip(INTERRUPTED) {
        assert_eq!(waiting.finish().success().text(), "EINTR\n", "{call}");
    }
    eventually("the others wait again", || resumed.iter().all(|waiting| state(waiting.pid()) == Some('S')));
    // And go on waiting.
    std::thread::sleep(std::time::Duration::from_millis(100));
    for (waiting, call) in resumed.iter().zip(RESUMED) {
        assert_eq!(state(waiting.pid()), Some('S'), "{call}");
    }
}

#[test]
fn stops_are_rehearsed_while_a_program_learns() {
    let (it, group) = (Guarded::new(), ControlGroup::new());
    let daemon = Daemon::start(&it, &group, "--guard=watch --rehearse 10ms");
    let mut servant = Servant::start(&it, &group);
    for _ in 0..3 {
        eventually("a stop", || servant.is_stopped());
        eventually("its end", || !servant.is_stopped());
        servant.serve(b"u");
    }
    // Whom somebody else stopped nobody continues.
    kill(servant.pid() as i32, libc::SIGSTOP);
    for _ in 0..100 {
        std::thread::sleep(std::time::Duration::from_millis(2));
        kill(servant.pid() as i32, libc::SIGSTOP);
    }
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert!(servant.is_stopped());
    kill(servant.pid() as i32, libc::SIGCONT);
    daemon.ask("normalize guarded");
    let mut normal_and_stopped = 0;
    for _ in 0..100 {
        servant.serve(b"u");
        normal_and_stopped += u32::from(servant.is_stopped());
    }
    // One may have begun before it was normal.
    assert!(normal_and_stopped < 10, "{normal_and_stopped}");
    assert_eq!(daemon.events(), Vec::<serde_json::Value>::new());
    assert!(!servant.end().contains("interrupted: 0 waits"));
}

#[test]
fn an_execve_of_who_was_unusual_once_is_suspended() {
    let (it, group) = (Guarded::new(), ControlGroup::new());
    let usual = [[b'u'; 100], [b'e'; 100]].concat();
    let (daemon, mut servant) = learned(&it, &group, "--delay-cap 1ms --suspend-execve 1", &usual, 0);
    servant.serve(b"e");
    servant.serve(b"x");
    // The anomaly is no longer among the latest 128 calls.
    servant.serve(&[b'u'; 100]);
    let lfc = |event: &serde_json::Value| event["lfc"].as_u64();
    assert!(daemon.events().iter().all(|event| lfc(event) > Some(0)));
    servant.tell(b"e");
    let suspended = || daemon.events().into_iter().find(|event| lfc(event) == Some(0));
    eventually("the suspension", || suspended().is_some());
    let event = suspended().expect("it is there");
    assert_eq!((&event["call"], &event["mismatches"]), (&"execve".into(), &0.into()), "{event}");
    assert_eq!(event["held_ns"].as_u64(), Some(172_800_000_000_000));
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_eq!(servant.unanswered(), 1);
    assert!(daemon.ask("status").text().contains("held now: 1 process"));
    daemon.ask("release");
    eventually("its answer", || servant.unanswered() == 0);
}

#[test]
fn all_threads_stop_and_sleep_on_uninterrupted() {
    hold_with_threads(8);
}

#[test]
fn all_of_two_thousand_threads_stop() {
    hold_with_threads(2000);
}

fn hold_with_threads(threads: u32) {
    let (it, group) = (Guarded::new(), ControlGroup::new());
    let daemon = Daemon::start(&it, &group, ENFORCE);
    let mut servant = Servant::with_threads(&it, &group, threads);
    eventually("it is guarded", || {
        servant.serve(b"u");
        daemon.program().is_some() && states_of(servant.pid()).len() == threads as usize + 1
    });
    for _ in 0..3 {
        daemon.ask(&format!("hold {}", servant.pid()));
        eventually("all of them", || states_of(servant.pid()).iter().all(|state| *state == 'T'));
        daemon.ask("release");
        eventually("none of them", || !states_of(servant.pid()).contains(&'T'));
        servant.serve(b"uu");
    }
    let said = servant.end();
    assert!(said.contains("waits, 0 naps"), "{said}");
}

#[test]
fn a_shell_sees_a_stopped_job_that_runs_again() {
    let (it, group) = (Guarded::new(), ControlGroup::new());
    let daemon = Daemon::start(&it, &group, ENFORCE);
    let mut terminal = Terminal::new();
    let shell = Job::of(words("bash --norc --noprofile -i")).on(&terminal).start();
    std::fs::write(group.0.join("cgroup.procs"), shell.pid().to_string()).expect("our group");
    terminal.press(b"PS1='rea''dy> '; set +H\n");
    terminal.read_until("ready> ");
    terminal.press(format!("sleep 10000 | {} servant\n", it.program.display()).as_bytes());
    let servant = shell.child_running("guarded");
    let hold = format!("hold {servant}");
    eventually("it is guarded, and held", || daemon.ask_job(&hold).finish().status == 0);
    eventually("the hold", || state(servant) == Some('T'));
    // The pipeline's other process runs: the shell goes on waiting for it.
    let sleeper = shell.child_running("sleep");
    assert!(is_running(sleeper));
    daemon.ask("release");
    eventually("it goes on", || state(servant) != Some('T'));
    terminal.press(b"\x03");
    terminal.read_until("ready> ");

    terminal.press(format!("{} servant < <(sleep 10000)\n", it.program.display()).as_bytes());
    let servant = shell.child_running("guarded");
    eventually("it waits", || state(servant) == Some('S'));
    daemon.ask(&format!("hold {servant}"));
    // As if somebody had pressed Ctrl-Z.
    assert!(terminal.read_until("ready> ").contains("Stopped"));
    daemon.ask("release");
    eventually("it goes on", || state(servant) != Some('T'));
    terminal.press(b"jobs\n");
    assert!(terminal.read_until("ready> ").contains("Running"));
    terminal.press(b"kill %1; wait; exit\n");
    eventually("its end", || !is_running(servant));
    terminal.press(b"\n");
    let _ = std::io::stdout().flush();
}
