//! Where threads spend their lives, compared with what programs know of themselves.

use std::fs::{self, File};
use std::io::Write as _;
use std::time::Duration;

use serde_json::Value;

use super::subject::Subject;
use crate::harness::cgroup::TestCgroup;
use crate::harness::job::{folder, is_in_call, kill, state};
use crate::harness::report::ThreadAccount;
use crate::harness::{Finished, Job, eventually, words, workload};

const MS: u64 = 1_000_000;
/// The largest part of a lifetime that may be unaccounted.
const UNACCOUNTED: f64 = 0.01;

/// The time so far, in ns, in which the host ran something else than this virtual machine. The
/// kernel shows it in ticks.
fn stolen_ns() -> u64 {
    /// The index in the first line of /proc/stat: proc(5)
    const STEAL: usize = 8;
    let stat = fs::read_to_string("/proc/stat").expect("/proc is mounted");
    let ticks = stat.split_whitespace().nth(STEAL).and_then(|ticks| ticks.parse::<u64>().ok());
    ticks.expect("a number") * tick_ns()
}

fn tick_ns() -> u64 {
    // SAFETY: takes a number.
    1_000_000_000 / unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as u64
}

/// The account of a run. The scheduler does not count stolen time as that of a thread.
#[track_caller]
fn account_of(ran: &Finished, stolen_before_ns: u64) -> ThreadAccount {
    let account = ran.report().complete().account.expect("threads have lived");
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
    fn ready_threads_wait_for_a_processor() {
        let stolen = stolen_ns();
        let account =
            account_of(&Job::run("", workload("compute-beside 400 0")).finish().success(), stolen);
        // The program and the three that it shares the processor with.
        assert_eq!(account.threads, 4);
        assert!(account.runqueue_ns > account.lifetime_ns / 2, "{account:?}");
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
        let outside = account.asleep_ns + account.cpu_ns + account.runqueue_ns;
        assert!(outside as f64 >= ns.as_f64().expect("a number") * 0.95, "{account:?} {ns}");
        // A folder in memory has no faults that wait.
        assert_eq!(account.asleep_ns > 0, account.major_faults > 0, "{account:?}");
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

    /// Since Linux 6.18, a throttled thread does not count as ready.
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
