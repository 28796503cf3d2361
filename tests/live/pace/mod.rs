//! Tasks with deadlines: those that programs begin themselves, and those that rules infer.

mod cycle_counter;
mod host;
mod sessions;

use std::ffi::CString;
use std::fs::{self, Permissions};
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;

use ::pace::{BEGINNING_CALLS, MAX_RULES};
use serde_json::Value;

use crate::harness::job::{copy, folder};
use crate::harness::scheduling::{stolen_ns, tick_ns};
use crate::harness::{Job, NOBODY, report, tollgate, words, workload};

/// What a watch has recorded.
struct Watched {
    /// The field `pace` of the report.
    pace: Value,
    /// The tasks of the trace: the index of the type, and the cycles.
    tasks: Vec<(u64, f64)>,
    /// Their deadlines in ms, if they are not those of their types.
    deadlines_ms: Vec<Option<f64>>,
    /// What the command printed.
    out: String,
    /// The time in which the host ran something else meanwhile.
    stolen_ns: u64,
}

/// Watches a workload with these rules, or with the built-in ones.
fn watch(rules: Option<&str>, arguments: &str) -> Watched {
    watch_command(rules, workload(arguments))
}

fn watch_command(rules: Option<&str>, command: Vec<std::ffi::OsString>) -> Watched {
    let (watched, document) = watch_with_losses(rules, command);
    report::none_lost(&document);
    watched
}

/// The same, for operations that the gate denies. Also returns the whole report.
fn watch_with_losses(rules: Option<&str>, command: Vec<std::ffi::OsString>) -> (Watched, Value) {
    let inputs = folder();
    let trace = inputs.path().join("trace");
    let mut options = format!("--levels rightspeed --trace {}", trace.display());
    if let Some(text) = rules {
        let path = inputs.path().join("rules.toml");
        fs::write(&path, text).expect("the folder is ours");
        options += &format!(" --rules {}", path.display());
    }
    let stolen_before_ns = stolen_ns();
    let ran = Job::pace_watch(&options, command).finish().success();
    let stolen_ns = stolen_ns() - stolen_before_ns + tick_ns();
    let document = ran.document("report");
    let (tasks, deadlines_ms) = read_trace(&trace).into_iter().unzip();
    let pace = document["pace"].clone();
    (Watched { pace, tasks, deadlines_ms, out: ran.text(), stolen_ns }, document)
}

fn read_trace(path: &Path) -> Vec<((u64, f64), Option<f64>)> {
    let text = fs::read_to_string(path).expect("there is a trace");
    let tasks = text.lines().skip(1).map(|line| {
        let task: Value = serde_json::from_str(line).expect("JSON");
        let kind = task["type"].as_u64().expect("a type");
        ((kind, task["cycles"].as_f64().expect("cycles")), task["deadline_ms"].as_f64())
    });
    tasks.collect()
}

impl Watched {
    /// The names of the types, each with its number of tasks.
    fn types(&self) -> Vec<(&str, u64)> {
        let types = self.pace["types"].as_array().expect("an array").iter();
        let mut rows: Vec<_> = types
            .map(|one| {
                (one["name"].as_str().expect("a name"), one["tasks"].as_u64().expect("a number"))
            })
            .collect();
        rows.sort_unstable();
        rows
    }

    fn only_type(&self) -> (&str, u64) {
        let types = self.types();
        assert_eq!(types.len(), 1, "{types:?}");
        types[0]
    }

    /// The processor time of all tasks, from their cycles and the speed of /proc/cpuinfo.
    fn cpu_ns(&self, kind: Option<u64>) -> u64 {
        let own = self.tasks.iter().filter(|(of, _)| kind.is_none_or(|kind| *of == kind));
        (own.map(|(_, cycles)| cycles).sum::<f64>() / mhz() * 1e3) as u64
    }

    /// The numbers that the command printed.
    fn printed(&self) -> Vec<u64> {
        self.out.split_whitespace().map(|word| word.parse().expect("a number")).collect()
    }

    /// Checks the work of tasks against the processor time that the program itself has measured.
    /// The gate counts the time on the processor, which also has interrupts and stolen time.
    /// `rounds` is how often the program entered and left what it measured.
    #[track_caller]
    fn assert_work(&self, what: &str, ours: u64, theirs: u64, rounds: u64) {
        /// Two calls of getppid and what surrounds them.
        const ROUND_NS: u64 = 50_000;
        let slack = rounds * ROUND_NS;
        assert!(ours + slack >= theirs / 100 * 98, "{what}: {ours} ns, but used were {theirs}");
        let most = theirs * 3 / 2 + slack + self.stolen_ns;
        assert!(ours <= most, "{what}: {ours} ns, but used were only {theirs}: {}", self.stolen_ns);
    }
}

fn mhz() -> f64 {
    let text = fs::read_to_string("/proc/cpuinfo").expect("it is there");
    let line = text.lines().find(|line| line.starts_with("cpu MHz")).expect("a speed");
    line.split(':').nth(1).and_then(|value| value.trim().parse().ok()).expect("a number")
}

#[test]
fn own_tasks_have_their_processor_time() {
    let watched = watch(None, "own-tasks 40 2");
    // The sleeps between the tasks make tasks of their own by the built-in rules.
    let frames = watched.types().into_iter().find(|(name, _)| *name == "workloads: frame");
    assert_eq!(frames, Some(("workloads: frame", 40)));
    // The first task of all is the first frame, so that its type has the number 0.
    watched.assert_work("work", watched.cpu_ns(Some(0)), watched.printed()[0], 40);
}

#[test]
fn chained_tasks_are_all_there() {
    let watched = watch(Some(NO_RULE), "chained-tasks 1000");
    assert_eq!(watched.only_type(), ("workloads: frame", 1000));
    assert_eq!(watched.pace["types"][0]["deadline_ms"], 7.0);
}

/// A rule for a program that does not run, and the goal of the program's own type.
const NO_RULE: &str = "\
[[rule]]
name = \"none\"
program = \"no-such-program\"
calls = [\"read\"]
[[type]]
name = \"frame\"
program = \"workloads\"
deadline-ms = 7
";

#[test]
fn exempt_program_has_no_task() {
    let exempt = format!("exempt = [\"other\", \"workloads\"]\n{NO_RULE}");
    assert_eq!(watch(Some(&exempt), "chained-tasks 10").types(), []);
    let other = format!("exempt = [\"other\"]\n{NO_RULE}");
    assert_eq!(watch(Some(&other), "chained-tasks 10").only_type().1, 10);
}

#[test]
fn a_thousand_tasks_at_once_end_by_another_thread() {
    let watched = watch(Some(NO_RULE), "tasks-at-once 1000");
    assert_eq!(watched.only_type(), ("workloads: frame", 999));
    // The last one is left, and the program has ended.
    let pace = &watched.pace;
    let left = (pace["abandoned"].as_u64(), pace["unfinished"].as_u64());
    assert_eq!(left, (Some(1), Some(0)));
}

#[test]
fn work_of_an_inner_task_is_work_of_the_outer_one() {
    let watched = watch(Some(NO_RULE), "nested-tasks 20");
    let names: Vec<_> = watched.types().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["workloads: inner", "workloads: outer"]);
    let printed = watched.printed();
    let [mut shorter, mut longer] = [0, 1].map(|index| watched.tasks[index].1);
    if shorter > longer {
        std::mem::swap(&mut shorter, &mut longer);
    }
    let ns = |cycles: f64| (cycles / mhz() * 1e3) as u64;
    watched.assert_work("outer", ns(longer), printed[0], 4);
    watched.assert_work("inner", ns(shorter), printed[1], 4);
}

#[test]
fn work_follows_over_threads_that_are_woken() {
    let watched = watch(Some(NO_RULE), "handed-tasks 20 3");
    assert_eq!(watched.only_type(), ("workloads: frame", 20));
    watched.assert_work("work", watched.cpu_ns(None), watched.printed()[0], 20);
}

#[test]
fn work_follows_over_threads_that_are_created() {
    let watched = watch(Some(NO_RULE), "created-tasks 20 3");
    assert_eq!(watched.only_type(), ("workloads: frame", 20));
    watched.assert_work("work", watched.cpu_ns(None), watched.printed()[0], 20);
    // The program has changed them.
    assert_eq!(watched.deadlines_ms, [Some(20.0); 20]);
}

#[test]
fn tasks_begin_by_descriptors_of_each_kind() {
    for (kind, call) in
        [("epoll", "epoll_wait"), ("terminal", "read"), ("event", "read"), ("timer", "read")]
    {
        let rule = format!(
            "[[rule]]\nname = \"input\"\nprogram = \"workloads\"\ncalls = \"{call}\"\n\
            descriptor = \"{kind}\"\n"
        );
        let watched = watch(Some(&rule), &format!("wake-ups {kind} 12"));
        let name = format!("workloads: input ({kind})");
        assert_eq!(watched.only_type(), (name.as_str(), 12));
    }
}

#[test]
fn each_beginning_call_begins_tasks() {
    const TASKS: u64 = 3;
    for calls in BEGINNING_CALLS.chunks(MAX_RULES) {
        let rule = |(call, _): &(&str, _)| {
            // At its start, the program reads files.
            let descriptor = if *call == "read" { "descriptor = \"socket\"\n" } else { "" };
            format!(
                "[[rule]]\nname = \"{call}\"\nprogram = \"workloads\"\ncalls = \"{call}\"\n\
                {descriptor}"
            )
        };
        let rules: String = calls.iter().map(rule).collect();
        let watched = watch(Some(&rules), &format!("beginning-calls {TASKS}"));
        // A name is followed by the kind of the descriptor.
        let call = |name: &str| name.split(' ').nth(1).map(str::to_owned);
        let mut found: Vec<_> =
            watched.types().into_iter().map(|(name, tasks)| (call(name), tasks)).collect();
        found.sort_unstable();
        let expected: Vec<_> =
            calls.iter().map(|(call, _)| (Some((*call).to_owned()), TASKS)).collect();
        assert_eq!(found, expected);
    }
}

#[test]
fn tasks_have_the_work_of_threads_that_still_run() {
    let watched = watch(Some(NO_RULE), "running-tasks 20 3");
    assert_eq!(watched.only_type(), ("workloads: frame", 20));
    watched.assert_work("work", watched.cpu_ns(None), watched.printed()[0], 20);
}

const TIMER: &str = "\
[[rule]]
name = \"tick\"
calls = [\"nanosleep\"]
deadline-ms = 1000
";

#[test]
fn timer_begins_a_task_and_the_next_sleep_ends_it() {
    let watched = watch(Some(TIMER), "ticks 30 2");
    // After the last sleep, the program prints and ends: that is a task, too.
    assert_eq!(watched.only_type(), ("workloads: tick", 31));
    assert_eq!(watched.pace["types"][0]["missed"], 0);
    watched.assert_work("work", watched.cpu_ns(None), watched.printed()[0], 31);
    let policies = &watched.pace["simulation"]["sets"][0]["types"][0]["policies"];
    assert_eq!(policies.as_array().map(Vec::len), Some(8));
}

#[test]
fn wait_for_a_thread_ends_a_task_unless_the_rule_includes_waits() {
    let ended = watch(Some(TIMER), "ticks-with-replies 20 2");
    assert_eq!(ended.only_type(), ("workloads: tick", 21));
    // Half of the work comes after the wait.
    let (ours, all) = (ended.cpu_ns(None), ended.printed()[0]);
    assert!(ours < all / 4 * 3 + ended.stolen_ns, "{ours} ns of {all}");
    let rules = format!("{TIMER}includes-waits = true\n");
    let continued = watch(Some(&rules), "ticks-with-replies 20 2");
    assert_eq!(continued.only_type(), ("workloads: tick", 21));
    continued.assert_work("work", continued.cpu_ns(None), continued.printed()[0], 21);
}

#[test]
fn task_ends_when_all_its_threads_sleep() {
    let watched = watch(Some(TIMER), "ticks-with-help 20 2");
    assert_eq!(watched.only_type(), ("workloads: tick", 21));
    watched.assert_work("work", watched.cpu_ns(None), watched.printed()[0], 21);
}

/// Reads that do not sleep: each ends a task and begins the next one.
#[test]
fn next_event_ends_a_task() {
    const RULE: &str = "[[rule]]\nname = \"byte\"\nprogram = \"dd\"\ncalls = \"read\"\n\
        descriptor = \"pipe\"\n";
    let mut command = words("sh -c");
    command.push("printf 123456789012 | { sleep 0.1; dd bs=1 count=12 of=/dev/null; }".into());
    assert_eq!(watch_command(Some(RULE), command).only_type(), ("dd: byte (pipe)", 12));
}

/// Whether a folder is in memory, so that nothing waits for a disk.
fn is_in_memory(path: &Path) -> bool {
    let path = CString::new(path.as_os_str().as_bytes()).expect("it has no NUL");
    // SAFETY: a string, and room for the result, whose members are numbers.
    let kind = unsafe {
        let mut about = std::mem::zeroed::<libc::statfs>();
        assert_eq!(libc::statfs(path.as_ptr(), &mut about), 0);
        about.f_type
    };
    // include/uapi/linux/magic.h
    const RAMFS_MAGIC: i64 = 0x8584_58f6;
    [libc::TMPFS_MAGIC, RAMFS_MAGIC].contains(&kind)
}

#[test]
fn wait_for_a_disk_is_part_of_a_task() {
    let files = folder();
    let path = files.path().join("cold");
    let written = fs::File::create(&path).and_then(|mut file| {
        file.write_all(&vec![1; 20 << 18])?;
        file.sync_all()
    });
    written.expect("there is room");
    let watched = watch(Some(TIMER), &format!("ticks-with-reads 20 2 {}", path.display()));
    assert_eq!(watched.only_type(), ("workloads: tick", 21));
    let [ns, waits] = watched.printed()[..] else { panic!("{:?}", watched.out) };
    assert!(waits > 0 || is_in_memory(files.path()), "nothing waited for a disk");
    watched.assert_work("work", watched.cpu_ns(None), ns, 21);
}

#[test]
fn wait_that_times_out_begins_a_task() {
    let rules = TIMER.replace("nanosleep", "poll");
    // A poll that does not wait neither ends a task nor begins one.
    assert_eq!(watch(Some(&rules), "timeouts 30 1").only_type(), ("workloads: tick", 30));
}

#[test]
fn connections_of_a_client_are_one_type() {
    let watched = watch(Some(MESSAGES), "replies 12");
    let port = watched.printed()[0];
    let of_server = format!("workloads: message (socket, port {port})");
    let expected = [("workloads: message (socket)", 12), (of_server.as_str(), 12)];
    assert_eq!(watched.types(), expected);
}

/// A child of the command begins and ends tasks while the session ends.
#[test]
fn tasks_that_end_with_the_session_are_not_lost() {
    for _ in 0..5 {
        watch(Some(NO_RULE), "orphaned-tasks 200");
    }
}

#[test]
fn executed_program_does_not_continue_tasks() {
    let watched = watch(Some(NO_RULE), "exec-in-task 5");
    let (abandoned, unfinished) = (&watched.pace["abandoned"], &watched.pace["unfinished"]);
    assert_eq!((abandoned.as_u64(), unfinished.as_u64()), (Some(1), Some(0)));
    let tasks: Vec<_> = watched.types().into_iter().map(|(_, tasks)| tasks).collect();
    assert_eq!(tasks, [5]);
}

const MESSAGES: &str = "\
[[rule]]
name = \"message\"
program = \"workloads\"
calls = [\"read\", \"recvfrom\"]
descriptor = \"socket\"
";

#[test]
fn type_has_the_port_of_the_receiver() {
    let watched = watch(Some(MESSAGES), "worked-messages 12 1");
    let port = watched.printed()[0];
    assert_eq!(
        watched.only_type(),
        (format!("workloads: message (socket, port {port})").as_str(), 12)
    );
}

#[test]
fn rule_for_a_port_has_its_messages() {
    let free = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    let port = free.expect("an address").port();
    let rules = format!("{MESSAGES}port = {port}\n");
    let watched = watch(Some(&rules), &format!("worked-messages 12 1 --port {port}"));
    let name = format!("workloads: message (socket, port {port})");
    assert_eq!(watched.only_type(), (name.as_str(), 12));
}

/// The deadline is shorter than the work.
#[test]
fn table_shows_times_and_missed_deadlines() {
    let inputs = folder();
    let path = inputs.path().join("rules.toml");
    let rules = "[[type]]\nname = \"frame\"\ndeadline-ms = 1\ntarget = 0.5\n";
    fs::write(&path, rules).expect("the folder is ours");
    let mut job = Job::from_command_line("pace watch --rules");
    job.command.arg(&path).arg("--").args(workload("own-tasks 25 3"));
    let text = job.finish().success().err;
    let row = text.lines().find(|line| line.ends_with("  workloads: frame"));
    let words: Vec<_> = row.unwrap_or_else(|| panic!("{text}")).split_whitespace().collect();
    // 25 of 25 missed, with the interval of Clopper and Pearson (86.3 % to 100 %).
    assert_eq!([words[0], words[1]], ["25", "1"], "{text}");
    assert_eq!(words[6..9], ["100.0", "[86.3,", "100.0]"], "{text}");
    let times: Vec<f64> = words[2..6].iter().map(|word| word.parse().expect("ms")).collect();
    let [median, p95, maximum, cpu] = times[..] else { panic!("{text}") };
    assert!(2.9 <= cpu && cpu <= median && median <= p95 && p95 <= maximum, "{text}");
}

#[test]
fn rule_for_another_port_or_program_begins_nothing() {
    let rules =
        format!("{MESSAGES}port = 1\n{}", TIMER.replace("[[rule]]", "[[rule]]\nprogram = \"x\""));
    let watched = watch(Some(&rules), "worked-messages 3 0");
    assert_eq!(watched.types(), []);
    assert_eq!(watched.pace["simulation"], Value::Null);
}

/// The goldens of the command line run it without capabilities, but as the user of the tests.
#[test]
fn traces_are_simulated_by_any_user() {
    let inputs = folder();
    let [program, trace] = ["tollgate", "trace.jsonl"].map(|name| inputs.path().join(name));
    copy(&tollgate(), &program);
    const HEADER: &str = concat!(
        r#"{"schema":"tollgate.pace.trace/1","#,
        r#""types":[{"name":"frame","deadline_ms":28.6,"target":0.95}]}"#,
    );
    let task = |index| {
        let (begin, cycles) = (index as f64 * 0.03, 5_000_000 + index % 7 * 500_000);
        format!("{{\"type\":0,\"begin_s\":{begin},\"cycles\":{cycles}}}\n")
    };
    let tasks: String = (0..40).map(task).collect();
    fs::write(&trace, format!("{HEADER}\n{tasks}")).expect("it is ours");
    fs::set_permissions(&trace, Permissions::from_mode(0o644)).expect("it is ours");
    let mut job = Job::of(vec![program.into(), "pace".into(), "simulate".into(), trace.into()]);
    job.command.args(["--levels", "rk3399-a72"]).uid(NOBODY).gid(NOBODY);
    let text = job.finish().success().text();
    assert!(text.contains("frame (deadline 28.6 ms") && text.contains("20 to judge"), "{text}");
}
