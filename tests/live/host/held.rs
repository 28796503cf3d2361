//! What a hold looks like from outside, as docs/guard.md lists it: to a shell, to an event loop, to threads.

use std::io::Write as _;

use crate::harness::cgroup::ControlGroup;
use crate::harness::daemon::{Daemon, Servant};
use crate::harness::guarded::Guarded;
use crate::harness::job::{is_running, state};
use crate::harness::pty::Terminal;
use crate::harness::{Job, eventually, words};

const ENFORCE: &str = "--guard=enforce --respond stop";

fn states(pid: u32) -> Vec<char> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").flatten();
    tasks.filter_map(|task| state(task.file_name().to_str()?.parse().ok()?)).collect()
}

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

#[test]
fn all_threads_stop_and_sleep_on_uninterrupted() {
    let (it, group) = (Guarded::new(), ControlGroup::new());
    let daemon = Daemon::start(&it, &group, ENFORCE);
    let mut servant = Servant::with_threads(&it, &group, 8);
    eventually("it is guarded", || {
        servant.serve(b"u");
        daemon.program().is_some() && states(servant.pid()).len() == 9
    });
    for _ in 0..3 {
        daemon.ask(&format!("hold {}", servant.pid()));
        eventually("all of them", || states(servant.pid()) == ['T'; 9]);
        daemon.ask("release");
        eventually("none of them", || !states(servant.pid()).contains(&'T'));
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
