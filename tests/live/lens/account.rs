//! Where threads spend their lives, compared with what programs know of themselves.

use std::fs::{self, File};
use std::io::Write as _;
use std::time::Duration;

use serde_json::Value;

use super::subject::Subject;
use crate::harness::cgroup::TestCgroup;
use crate::harness::job::{folder, is_in_call, kill, state, states_of, stop, threads_of, watches};
use crate::harness::report::ThreadAccount;
use crate::harness::scheduling::{stolen_ns, tick_ns};
use crate::harness::{Finished, Job, Report, Running, eventually, words, workload};

const MS: u64 = 1_000_000;
/// The largest part of a lifetime that may be unaccounted.
const UNACCOUNTED: f64 = 0.01;

/// The account of a report, whose parts add up to the lifetime.
#[track_caller]
fn whole_account_of(report: &Report) -> ThreadAccount {
    let account = report.account.clone().expect("threads have lived");
    let asleep = account.faulting_ns + account.asleep_ns;
    let outside = account.runqueue_ns + asleep + account.stopped_ns;
    let limits = account.held_ns + account.throttled_ns;
    let sum = account.calls_ns + account.cpu_ns + outside + limits + account.unaccounted_ns;
    assert_eq!(sum, account.lifetime_ns, "{account:?}");
    account
}

#[track_caller]
fn interrupted(lens: Running) -> Report {
    lens.signal(libc::SIGINT);
    lens.finish().success().report().complete()
}

/// The account of a run. The scheduler does not count stolen time as that of a thread.
#[track_caller]
fn account_of(ran: &Finished, stolen_before_ns: u64) -> ThreadAccount {
    let account = whole_account_of(&ran.report().complete());
    let stolen = stolen_ns() - stolen_before_ns + tick_ns();
    let allowed = account.lifetime_ns as f64 * UNACCOUNTED + stolen as f64;
    assert!(account.unaccounted_ns as f64 <= allowed, "{account:?}, stolen {stolen} ns");
    account
}

/// A change of the gate's generation by another session loses switches.
mod alone {
    use super::*;

    #[test]
    fn computing_is_time_on_cpu_or_waiting_for_one() {
        let stolen = stolen_ns();
        const COMPUTING: u64 = 1500;
        let account = account_of(
            &Job::run("", workload(&format!("compute {COMPUTING}"))).finish().success(),
            stolen,
        );
        assert_eq!(account.threads, 1);
        let outside = account.cpu_ns + account.runqueue_ns + account.unaccounted_ns;
        assert!(outside >= COMPUTING * MS * 99 / 100, "{account:?}");
    }

    #[test]
    fn time_in_user_mode_is_known() {
        let stolen = stolen_ns();
        let of = |program: &str| {
            let account = account_of(&Job::run("", workload(program)).finish().success(), stolen);
            let user = account.user.clone().expect("ticks have met it");
            assert!(user.low_ns <= user.ns && user.ns <= user.high_ns, "{account:?}");
            (account.cpu_ns, user)
        };
        let (cpu_ns, computing) = of("compute 800");
        assert!(computing.ns >= cpu_ns * 3 / 4, "{computing:?} of {cpu_ns} ns");
        let (cpu_ns, faulting) = of("touch-fresh 800");
        assert!(faulting.ns < cpu_ns * 3 / 4, "{faulting:?} of {cpu_ns} ns");
    }

    #[test]
    fn time_in_user_mode_is_that_of_the_watch() {
        let stolen = stolen_ns();
        let subject = Job::of(workload("compute 60000")).start();
        let pid = subject.pid();
        std::thread::sleep(Duration::from_secs(1));
        let lens = Job::lens(&format!("-p {pid} --for 200ms")).finish().success();
        kill(pid as i32, libc::SIGKILL);
        let account = account_of(&lens, stolen);
        let user = account.user.clone().expect("ticks have met it");
        assert!(user.ns >= account.cpu_ns * 3 / 4, "{account:?}");
        // At most 1,000 ticks a second (CONFIG_HZ), and one at each end.
        let ticks = account.user_ticks + account.system_ticks;
        assert!(ticks <= account.lifetime_ns / MS + 2, "{account:?}");
    }

    #[test]
    fn ready_threads_wait_for_a_processor() {
        let stolen = stolen_ns();
        let account =
            account_of(&Job::run("", workload("compute-beside 400 0")).finish().success(), stolen);
        // The program and the three that it shares the processor with.
        assert_eq!(account.threads, 4);
        assert!(account.runqueue_ns > account.lifetime_ns / 2, "{account:?}");
    }

    /// A life begins within fork or clone, but a thread that has not run yet is in no call.
    #[test]
    fn new_threads_wait_for_a_processor() {
        let stolen = stolen_ns();
        const COMPUTING: u64 = 300;
        let program = format!("compute-before-thread {COMPUTING}");
        let account = account_of(&Job::run("", workload(&program)).finish().success(), stolen);
        assert_eq!(account.threads, 2);
        assert!(account.runqueue_ns >= COMPUTING * MS * 9 / 10, "{account:?}");
        assert!(account.calls_ns < account.runqueue_ns / 2, "{account:?}");
    }

    #[test]
    fn page_faults_wait_for_a_file() {
        let stolen = stolen_ns();
        let files = folder();
        let path = files.path().join("cold");
        let mut file = File::create(&path).expect("room");
        file.write_all(&vec![1; 16 << 20]).and_then(|()| file.sync_all()).expect("room");
        let command = workload(&format!("map-cold {}", path.display()));
        let ran = Job::run("", command).finish().success();
        let account = account_of(&ran, stolen);
        let known: Value = ran.json();
        let (ns, faults) = (&known["ns"], &known["major_faults"]);
        assert!(account.major_faults >= faults.as_u64().expect("a number"), "{account:?}");
        let outside = account.faulting_ns + account.cpu_ns + account.runqueue_ns;
        // The program's clock goes on in stolen time.
        let least = ns.as_f64().expect("a number") * 0.95 - (stolen_ns() - stolen) as f64;
        assert!(outside as f64 >= least, "{account:?} {ns}, at least {least}");
        // A folder in memory has no faults that wait.
        assert_eq!(account.faulting_ns > 0, account.major_faults > 0, "{account:?}");
        assert!(account.asleep_ns < account.faulting_ns.max(MS), "{account:?}");
    }

    #[test]
    fn stopped_time_is_known() {
        let stolen = stolen_ns();
        const STOPPED: Duration = Duration::from_millis(300);
        let mut command = words("sh -c");
        command.push("kill -STOP $$; :".into());
        let run = Job::run("", command).start();
        let shell = run.child_running("sh");
        eventually("its stop", || state(shell) == Some('T'));
        std::thread::sleep(STOPPED);
        kill(shell as i32, libc::SIGCONT);
        let account = account_of(&run.finish().success(), stolen);
        // A thread that is about to stop may have to wait for a processor first.
        let waited = u128::from(account.stopped_ns + account.runqueue_ns);
        assert!(waited >= STOPPED.as_nanos(), "{account:?}");
        assert!(account.stopped_ns > account.lifetime_ns / 2, "{account:?}");
    }

    /// No tick of the scheduler and no switch need come in such a short life.
    #[test]
    fn short_life_has_time_on_cpu() {
        let stolen = stolen_ns();
        let (mut lifetime_ns, mut unaccounted_ns, mut cpu_ns) = (0, 0, 0);
        for _ in 0..10 {
            let account =
                whole_account_of(&Job::run("", words("true")).finish().success().report());
            // Time that the host steals in calls is unaccounted, and may be as long as the time on
            // the CPU.
            assert!(account.cpu_ns + account.unaccounted_ns > 0, "{account:?}");
            cpu_ns += account.cpu_ns;
            lifetime_ns += account.lifetime_ns;
            unaccounted_ns += account.unaccounted_ns;
        }
        let stolen = stolen_ns() - stolen;
        // The loader alone takes some 100 us outside of calls.
        assert!(cpu_ns + stolen > 10 * 10_000, "{cpu_ns} and {stolen} ns");
        let allowed = lifetime_ns / 4 + stolen;
        assert!(unaccounted_ns <= allowed, "{unaccounted_ns} of {lifetime_ns} ns");
    }

    /// Since Linux 6.18, the scheduler notes which threads are throttled.
    #[test]
    fn throttled_time_is_known() {
        let stolen = stolen_ns();
        let cgroup = TestCgroup::of("cpu");
        if fs::write(cgroup.0.join("cpu.max"), "20000 100000").is_err() {
            fs::write(cgroup.0.join("cpu.cfs_quota_us"), "20000")
                .expect("a controller of processors");
        }
        let mut command = words("sh -c");
        let enter = format!("echo $$ > {}; exec \"$@\"", cgroup.0.join("cgroup.procs").display());
        command.extend([enter.into(), "sh".into()]);
        command.extend(workload("compute 500"));
        let account = account_of(&Job::run("", command).finish().success(), stolen);
        let waited = account.throttled_ns + account.runqueue_ns;
        assert!(waited > account.lifetime_ns / 2, "{account:?}");
        let types = fs::read("/sys/kernel/btf/vmlinux").expect("the gate needs it");
        const NOTES: &[u8] = b"throttled_limbo_list";
        if types.windows(NOTES.len()).any(|name| name == NOTES) {
            assert!(account.throttled_ns > account.lifetime_ns / 2, "{account:?}");
        }
    }

    #[test]
    fn wait_that_began_before_the_watch_is_known() {
        let subject = Job::of(workload("compute 60000")).start();
        let pid = subject.pid();
        stop(pid);
        let whole = Job::lens(&format!("-p {pid} --for 100ms")).finish().success();
        let lens = Job::lens(&format!("-p {pid}")).start();
        watches(&lens);
        std::thread::sleep(Duration::from_millis(100));
        kill(pid as i32, libc::SIGCONT);
        eventually("its end of the stop", || state(pid) != Some('T'));
        let ended = interrupted(lens);
        kill(pid as i32, libc::SIGKILL);
        let report = whole.report().complete();
        assert!(report.in_progress.is_empty(), "{:?}", report.in_progress);
        let account = whole_account_of(&report);
        assert!(account.stopped_ns > account.lifetime_ns * 98 / 100, "{account:?}");
        let account = whole_account_of(&ended);
        assert!(account.stopped_ns > account.unaccounted_ns, "{account:?}");
    }

    #[test]
    fn thread_in_a_frozen_group_is_stopped() {
        let cgroup = TestCgroup::new();
        let freeze = cgroup.0.join("cgroup.freeze");
        if !freeze.exists() {
            return;
        }
        let subject = Job::of(workload("compute 60000")).start();
        cgroup.add(subject.pid());
        fs::write(&freeze, "1").expect("root may freeze it");
        let events = cgroup.0.join("cgroup.events");
        let is_frozen = || fs::read_to_string(&events).expect("it is there").contains("frozen 1");
        eventually("it is frozen", is_frozen);
        let lens = Job::lens(&format!("-p {} --for 100ms", subject.pid())).finish().success();
        kill(subject.pid() as i32, libc::SIGKILL);
        fs::write(&freeze, "0").expect("root may thaw it");
        drop(subject);
        let account = whole_account_of(&lens.report().complete());
        assert!(account.stopped_ns > account.lifetime_ns * 98 / 100, "{account:?}");
    }

    #[test]
    fn page_faults_are_those_of_the_watch() {
        let subject = Job::of(workload("hang --threads 3")).start();
        let pid = subject.pid();
        let sleep =
            || threads_of(pid).len() > 3 && states_of(pid).iter().all(|state| *state == 'S');
        eventually("its threads sleep", sleep);
        let lens = Job::lens(&format!("-p {pid} --for 100ms")).finish().success();
        kill(pid as i32, libc::SIGKILL);
        let account = whole_account_of(&lens.report().complete());
        assert_eq!((account.minor_faults, account.major_faults), (0, 0), "{account:?}");
    }

    #[test]
    fn watch_that_ends_before_an_inner_one_has_its_whole_time() {
        let subject = Subject::new();
        let outer = subject.watch();
        let inner = subject.watch();
        std::thread::sleep(Duration::from_millis(200));
        let reports = [interrupted(outer), interrupted(inner)];
        subject.end();
        for report in reports {
            let account = whole_account_of(&report);
            assert_eq!(account.threads, 1);
            assert!(account.lifetime_ns > report.elapsed_ns * 9 / 10, "{account:?}");
            assert!(account.calls_ns > account.lifetime_ns * 98 / 100, "{account:?}");
        }
    }

    #[test]
    fn watch_that_begins_in_a_call_leaves_the_outer_account_right() {
        let stolen = stolen_ns();
        const MILLISECONDS: u64 = 400;
        let run = Job::run("", workload(&format!("compute-then-sleep {MILLISECONDS}"))).start();
        let pid = run.child_running("workloads");
        eventually("its sleep", || is_in_call(pid, libc::SYS_nanosleep));
        let inner = Job::lens(&format!("-p {pid}")).start();
        let outer = account_of(&run.finish().success(), stolen);
        let inner = whole_account_of(&inner.finish().success().report().complete());
        assert_eq!((outer.threads, inner.threads), (1, 1));
        let computed = outer.cpu_ns + outer.runqueue_ns + outer.unaccounted_ns;
        assert!(computed >= MILLISECONDS * MS * 99 / 100, "{outer:?}");
        assert!(inner.calls_ns > inner.lifetime_ns * 9 / 10, "{inner:?}");
    }

    #[test]
    fn threads_of_the_kernel_are_in_no_call() {
        let subject = Job::of(workload("polled-ring")).start();
        let pid = subject.pid();
        eventually("its ring", || subject.is_over() || is_in_call(pid, libc::SYS_pause));
        if subject.is_over() {
            // io_uring is not compiled in, or switched off.
            return;
        }
        assert_eq!(threads_of(pid).len(), 2);
        let lens = Job::lens(&format!("-p {pid} --for 100ms")).finish().success();
        kill(pid as i32, libc::SIGKILL);
        let report = lens.report().complete();
        let calls: Vec<_> = report.in_progress.iter().map(|call| call.name.as_str()).collect();
        assert_eq!(calls, ["pause"]);
        assert_eq!(whole_account_of(&report).threads, 1);
    }

    #[test]
    fn sleeping_thread_is_in_a_call() {
        let stolen = stolen_ns();
        let subject = Job::of(workload("hang")).start();
        eventually("its sleep", || is_in_call(subject.pid(), libc::SYS_pause));
        let lens = Job::lens(&format!("-p {} --for 300ms", subject.pid())).finish().success();
        let account = account_of(&lens, stolen);
        assert_eq!(account.threads, 1);
        assert!(account.calls_ns > account.lifetime_ns * 99 / 100, "{account:?}");
        assert!(account.processor_ns < account.lifetime_ns / 10, "{account:?}");
    }

    #[test]
    fn thread_that_is_attached_in_a_call_has_its_whole_time() {
        let stolen = stolen_ns();
        let subject = Subject::new();
        let lens = subject.watch();
        std::thread::sleep(Duration::from_millis(300));
        subject.end();
        let account = account_of(&lens.finish().success(), stolen);
        assert!(account.calls_ns > account.lifetime_ns * 98 / 100, "{account:?}");
    }
}
