//! The effects of a hold on a shell, an event loop and threads, as docs/guard.md lists them.

use std::io::Write as _;
use std::time::{Duration, Instant};

use crate::harness::cgroup::TestCgroup;
use crate::harness::daemon::{CommandServer, GuardDaemon};
use crate::harness::guarded_program::{GuardSection, Guarded};
use crate::harness::job::{is_running, kill, state, states_of};
use crate::harness::pty::Terminal;
use crate::harness::{Job, LIMIT, eventually, words};

const ENFORCE: &str = "--guard=enforce --respond stop";

#[test]
fn event_loop_sees_one_eintr_per_hold() {
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let daemon = GuardDaemon::start(&it, &cgroup, ENFORCE);
    let mut server = CommandServer::start(&it, &cgroup);
    eventually("it is guarded", || {
        server.send_and_wait(b"u");
        daemon.program().is_some()
    });
    for _ in 0..3 {
        daemon.request(&format!("hold {}", server.pid()));
        eventually("the hold", || server.is_stopped());
        server.send(b"u");
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert_eq!(server.pending_replies(), 1, "nobody serves while held");
        daemon.request("release");
        eventually("its reply", || server.pending_replies() == 0);
    }
    assert!(server.end().contains("interrupted: 3 waits, 0 naps"));
}

/// A call that the kernel or an event loop restarts is the same call.
#[test]
fn being_stopped_causes_no_anomalies() {
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let (daemon, mut server) = learned(&it, &cgroup, "--delay-cap 1ms", &[b'u'; 100], 4);
    for _ in 0..20 {
        daemon.request(&format!("hold {}", server.pid()));
        eventually("all of them", || states_of(server.pid()) == ['T'; 5]);
        daemon.request("release");
        server.send_and_wait(b"u");
    }
    assert_eq!(daemon.events(), Vec::<serde_json::Value>::new());
}

/// Starts a daemon that has learned what a command server does for these commands.
fn learned(
    it: &Guarded,
    cgroup: &TestCgroup,
    options: &str,
    normal: &[u8],
    threads: u32,
) -> (GuardDaemon, CommandServer) {
    let daemon =
        GuardDaemon::start(it, cgroup, &format!("--guard=enforce --anomaly-limit 1000 {options}"));
    let mut server = CommandServer::with_threads(it, cgroup, threads);
    eventually("it is guarded", || {
        server.send_and_wait(normal);
        daemon.program().is_some_and(|program| program["calls"].as_u64() > Some(2000))
    });
    // The daemon may have attached the server in the middle of the commands.
    server.send_and_wait(normal);
    daemon.request("normalize guarded");
    server.send_and_wait(normal);
    assert_eq!(daemon.program().expect("it is known")["anomalies"], 0);
    (daemon, server)
}

#[test]
fn holds_end_in_time_while_the_daemon_hangs() {
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let (daemon, mut server) = learned(&it, &cgroup, "--delay-cap 1ms", &[b'u'; 100], 0);
    daemon.running.signal(libc::SIGSTOP);
    // Each is held for a millisecond. A watchdog that only searches for forgotten holds every
    // 400 ms needs longer than LIMIT for them.
    server.send(&[b'x'; 500]);
    eventually("its replies", || server.pending_replies() == 0);
    daemon.running.signal(libc::SIGCONT);
    assert_ne!(daemon.program().expect("it is known")["holds"], 0);
}

/// A BPF program can signal other processes since Linux 6.13; older kernels run none of the tests
/// in this folder.
#[test]
fn foreign_sigcont_lets_hardly_any_call_through() {
    let it = Guarded::normal(&["routine 100 0", "orphaned-routine 100 0"]);
    let variants = [
        ("--respond stop", "routine"),
        ("--delay-factor 5s", "routine"),
        ("--respond stop", "orphaned-routine"),
    ];
    for (options, routine) in variants {
        let options = format!("--guard=enforce --anomaly-limit 1000 {options}");
        let running = it.job(&options, &format!("{routine} 100 900")).start();
        let guarded = running.child_running("guarded");
        let is_held = || states_of(guarded).contains(&'T');
        eventually("the hold", is_held);
        // The process makes 900 anomalous calls. If each SIGCONT let one through, it would finish.
        for _ in 0..1000 {
            kill(guarded as i32, libc::SIGCONT);
            std::thread::sleep(Duration::from_millis(1));
        }
        eventually("the hold goes on", is_held);
        kill(guarded as i32, libc::SIGKILL);
        let guard = GuardSection::of(&running.finish().exits_with(137));
        // A few calls get through where the second signal came late.
        println!("{options} {routine}: {} calls", guard.number("anomalies"));
    }
}

/// systemd and timeout(1) send both signals.
#[test]
fn sigterm_and_sigcont_end_a_held_process() {
    let it = Guarded::normal(&["routine 100 0"]);
    let running = it.job("--guard=enforce --respond stop", "routine 100 300").start();
    let guarded = running.child_running("guarded");
    eventually("the hold", || state(guarded) == Some('T'));
    kill(guarded as i32, libc::SIGTERM);
    kill(guarded as i32, libc::SIGCONT);
    running.finish().exits_with(143);
}

/// A stop that is the response to a foreign SIGCONT may still be pending when the hold ends.
#[test]
fn foreign_sigcont_does_not_delay_release() {
    let it = Guarded::normal(&["routine 100 0"]);
    let running =
        it.job("--guard=enforce --delay-cap 2ms --anomaly-limit 1000", "routine 100 300").start();
    let guarded = running.child_running("guarded");
    let mut rounds = 0_u64;
    while state(guarded).is_some_and(|state| state != 'Z') {
        // The storm of signals ends at a different moment of a hold each time.
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
    let guard = GuardSection::of(&running.finish().success());
    assert!(guard.number("holds") >= 100, "{}", guard.0);
}

/// The calls after an EINTR would be anomalous again.
#[test]
fn hold_of_a_call_interrupts_no_epoll_wait() {
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let (daemon, mut server) = learned(&it, &cgroup, "--delay-cap 5ms", &[b'u'; 100], 0);
    for _ in 0..3 {
        server.send_and_wait(b"x");
        // One by one, so that the server waits in epoll_wait for each.
        (0..10).for_each(|_| server.send_and_wait(b"u"));
    }
    let events = daemon.events();
    assert!(
        events.iter().any(|event| event["effect"] == "next" && event["call"] == "epoll_wait"),
        "{events:?}"
    );
    let holds = daemon.program().expect("it is known")["holds"].as_u64();
    assert!(holds > Some(60), "{holds:?}");
    assert!(server.end().contains("interrupted: 0 waits"));
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
fn operator_hold_interrupts_only_documented_calls() {
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let daemon = GuardDaemon::start(&it, &cgroup, ENFORCE);
    let start = |call: &&str| {
        let job =
            Job::of([vec![it.program.clone().into()], words(&format!("waits {call}"))].concat());
        let waiting = job.in_own_session().start();
        cgroup.add(waiting.pid());
        eventually(call, || state(waiting.pid()) == Some('S'));
        waiting
    };
    let interrupted: Vec<_> = INTERRUPTED.iter().map(start).collect();
    let resumed: Vec<_> = RESUMED.iter().map(start).collect();
    let pids: Vec<_> = interrupted.iter().chain(&resumed).map(|waiting| waiting.pid()).collect();
    for pid in &pids {
        let hold = format!("hold {pid}");
        eventually("it is guarded, and held", || daemon.client_job(&hold).finish().status == 0);
    }
    eventually("the holds", || pids.iter().all(|pid| state(*pid) == Some('T')));
    daemon.request("release");
    for (waiting, call) in interrupted.into_iter().zip(INTERRUPTED) {
        assert_eq!(waiting.finish().success().text(), "EINTR\n", "{call}");
    }
    eventually("the others wait again", || {
        resumed.iter().all(|waiting| state(waiting.pid()) == Some('S'))
    });
    // They continue to wait.
    std::thread::sleep(std::time::Duration::from_millis(100));
    for (waiting, call) in resumed.iter().zip(RESUMED) {
        assert_eq!(state(waiting.pid()), Some('S'), "{call}");
    }
}

#[test]
fn training_stops_are_learned() {
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let daemon = GuardDaemon::start(&it, &cgroup, "--guard=watch --train-on-stops 10ms");
    let mut server = CommandServer::start(&it, &cgroup);
    for _ in 0..3 {
        eventually("a stop", || server.is_stopped());
        eventually("its end", || !server.is_stopped());
        server.send_and_wait(b"u");
    }
    // The guard does not continue a process that was stopped by another process.
    kill(server.pid() as i32, libc::SIGSTOP);
    for _ in 0..100 {
        std::thread::sleep(std::time::Duration::from_millis(2));
        kill(server.pid() as i32, libc::SIGSTOP);
    }
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert!(server.is_stopped());
    kill(server.pid() as i32, libc::SIGCONT);
    // All rounds above may have been interrupted; most of these are not.
    server.send_and_wait(&[b'u'; 200]);
    daemon.request("normalize guarded");
    let mut normal_and_stopped = 0;
    for _ in 0..100 {
        server.send_and_wait(b"u");
        normal_and_stopped += u32::from(server.is_stopped());
    }
    // A hold may have begun before the baseline was normal.
    assert!(normal_and_stopped < 10, "{normal_and_stopped}");
    assert_eq!(daemon.events().first(), None);
    assert!(!server.end().contains("interrupted: 0 waits"));
}

#[test]
fn execve_after_an_anomaly_is_suspended() {
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let normal = [[b'u'; 100], [b'e'; 100]].concat();
    let (daemon, mut server) =
        learned(&it, &cgroup, "--delay-cap 1ms --suspend-execve 1", &normal, 0);
    server.send_and_wait(b"e");
    server.send_and_wait(b"x");
    // Pushes the anomaly out of the latest 128 calls.
    server.send_and_wait(&[b'u'; 100]);
    let lfc = |event: &serde_json::Value| event["lfc"].as_u64();
    assert!(daemon.events().iter().all(|event| lfc(event) > Some(0)));
    server.send(b"e");
    let suspended = || daemon.events().into_iter().find(|event| lfc(event) == Some(0));
    eventually("the suspension", || suspended().is_some());
    let event = suspended().expect("it is there");
    assert_eq!((&event["call"], &event["mismatches"]), (&"execve".into(), &0.into()), "{event}");
    assert_eq!(event["held_ns"].as_u64(), Some(172_800_000_000_000));
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_eq!(server.pending_replies(), 1);
    assert!(daemon.request("status").text().contains("held now: 1 process"));
    daemon.request("release");
    eventually("its reply", || server.pending_replies() == 0);
}

#[test]
fn hold_stops_all_threads_without_interrupting_sleeps() {
    hold_with_threads(8);
}

#[test]
fn hold_stops_two_thousand_threads() {
    hold_with_threads(2000);
}

fn hold_with_threads(threads: u32) {
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let daemon = GuardDaemon::start(&it, &cgroup, ENFORCE);
    let mut server = CommandServer::with_threads(&it, &cgroup, threads);
    eventually("it is guarded", || {
        server.send_and_wait(b"u");
        daemon.program().is_some() && states_of(server.pid()).len() == threads as usize + 1
    });
    for _ in 0..3 {
        daemon.request(&format!("hold {}", server.pid()));
        eventually("all of them", || states_of(server.pid()).iter().all(|state| *state == 'T'));
        daemon.request("release");
        eventually("none of them", || !states_of(server.pid()).contains(&'T'));
        server.send_and_wait(b"uu");
    }
    let said = server.end();
    assert!(said.contains("waits, 0 naps"), "{said}");
}

#[test]
fn shell_sees_stopped_then_continued_job() {
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let daemon = GuardDaemon::start(&it, &cgroup, ENFORCE);
    let mut terminal = Terminal::new();
    let shell = Job::of(words("bash --norc --noprofile -i")).on(&terminal).start();
    std::fs::write(cgroup.0.join("cgroup.procs"), shell.pid().to_string()).expect("our cgroup");
    terminal.press(b"PS1='rea''dy> '; set +H\n");
    terminal.read_until("ready> ");
    terminal.press(format!("sleep 10000 | {} command-server\n", it.program.display()).as_bytes());
    let server = shell.child_running("guarded");
    let hold = format!("hold {server}");
    eventually("it is guarded, and held", || daemon.client_job(&hold).finish().status == 0);
    eventually("the hold", || state(server) == Some('T'));
    // The other process of the pipeline runs, so the shell still waits for it.
    let sleeper = shell.child_running("sleep");
    assert!(is_running(sleeper));
    daemon.request("release");
    eventually("it goes on", || state(server) != Some('T'));
    terminal.press(b"\x03");
    terminal.read_until("ready> ");

    terminal
        .press(format!("{} command-server < <(sleep 10000)\n", it.program.display()).as_bytes());
    let server = shell.child_running("guarded");
    eventually("it waits", || state(server) == Some('S'));
    daemon.request(&format!("hold {server}"));
    // The shell reports it as after Ctrl-Z.
    assert!(terminal.read_until("ready> ").contains("Stopped"));
    daemon.request("release");
    eventually("it goes on", || state(server) != Some('T'));
    terminal.press(b"jobs\n");
    assert!(terminal.read_until("ready> ").contains("Running"));
    terminal.press(b"kill %1; wait; exit\n");
    eventually("its end", || !is_running(server));
    terminal.press(b"\n");
    let _ = std::io::stdout().flush();
}
