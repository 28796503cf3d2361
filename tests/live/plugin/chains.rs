//! Plugins at the gate's hooks.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::harness::guarded_program::{GuardSection, Guarded};
use crate::harness::job::{folder, is_in_read};
use crate::harness::network::OwnNetwork;
use crate::harness::plugins::{PluginDaemon, entries, number, plugins, report};
use crate::harness::report::X86_64;
use crate::harness::services::Consumer;
use crate::harness::table_locks::HookSlots;
use crate::harness::{Finished, Job, eventually, tollgate, workload};

/// Counts calls by number and ABI.
const COUNTS: &str = "
struct which { u32 call; u32 abi; };
map<u32, u64> begun[600]; map<u32, u64> ended[600]; map<u32, u64> i386[600]; map<u32, u64> x32[600];
on enter { if (abi == 0) begun[call]++; else if (abi == 1) i386[call]++; else x32[call]++; }
on exit { if (abi == 0) ended[call]++; }
";

/// A `tollgate run` with plugins.
fn ran(texts: &[&str], options: &str, arguments: &str) -> Finished {
    let folder = folder();
    let mut options = options.to_owned();
    for (number, text) in texts.iter().enumerate() {
        let file = folder.path().join(format!("plugin-{number}.ec"));
        fs::write(&file, text).expect("a file can be written");
        options += &format!(" --plugin {}", file.display());
    }
    Job::run(&options, workload(arguments)).finish()
}

#[track_caller]
fn run(texts: &[&str], arguments: &str) -> Vec<Value> {
    plugins(&ran(texts, "", arguments).success())
}

#[test]
fn plugin_and_lens_count_the_same_calls() {
    for arguments in
        ["calls 1000 --threads 3", "short-processes 60", "fork-exec 10", "errors 7", "signals 20"]
    {
        let ran = ran(&[COUNTS], "--lens", arguments).success();
        let state = &plugins(&ran)[0];
        let mut ours: BTreeMap<String, u64> = BTreeMap::new();
        for (call, times) in entries(state, "begun") {
            let name = calls_name(call as u32);
            ours.insert(name, times);
        }
        let theirs: BTreeMap<_, _> = ran
            .report()
            .calls
            .iter()
            .filter(|call| call.abi == X86_64)
            .map(|call| (call.name.clone(), call.count + call.unfinished))
            .collect();
        assert_eq!(ours, theirs, "{arguments}");
        let ended: u64 = entries(state, "ended").iter().map(|(_, times)| times).sum();
        let theirs: u64 = ran.report().calls.iter().map(|call| call.count).sum();
        assert_eq!(ended, theirs, "{arguments}");
    }
}

/// The lens reads the clock after the plugins at `enter`, and before those at `exit`.
#[test]
fn time_of_plugins_is_not_the_calls() {
    const SLOW: &str = "
        u64 runs; u64 spent; u64 sum;
        void work() {
            u64 began = now();
            for (u64 n = 0; n < 20000; n++)
                sum += n;
            runs++;
            spent += now() - began;
        }
    ";
    for hook in ["enter", "exit"] {
        let slow = format!("{SLOW} on {hook}(getppid) {{ work(); }}");
        let ran = ran(&[&slow], "--lens --no-toll", "calls 200").success();
        let state = &plugins(&ran)[0];
        let (runs, spent) = (number(state, "runs"), number(state, "spent"));
        assert!(runs >= 200, "{hook}: {runs} runs");
        assert!(spent > runs * 5_000, "the plugin is not slow: {spent} ns in {runs} runs");
        let call = ran.report().call("getppid").clone();
        // The median: a call may have been interrupted.
        assert!(call.p50_ns < spent / runs / 4, "{hook}: {call:?}, {spent} ns in {runs} runs");
    }
}

fn calls_name(number: u32) -> String {
    calls::name(calls::Abi::X86_64, number).expect("a call").into()
}

#[test]
fn calls_are_named_in_every_abi() {
    let text = "u64 all, of_i386, of_x86_64; on enter(getpid) { all++; if (abi == 1) of_i386++; \
        if (abi == 0) of_x86_64++; }";
    let state = &run(&[text, COUNTS], "int80 40")[0];
    assert_eq!(number(state, "of_i386"), 40);
    assert_eq!(number(state, "all"), 40 + number(state, "of_x86_64"));
    let states = run(&[text, COUNTS], "x32 30");
    assert_eq!(number(&states[0], "all") - number(&states[0], "of_x86_64"), 30);
    assert_eq!(entries(&states[1], "x32"), [(39, 30)]);
}

#[test]
fn arguments_by_name_and_results() {
    let text = r#"
        u64 enoent, ebadf, eagain, named;
        on exit(openat) { if (result == -2) enoent++; }
        on exit(close) { if (result == -9) ebadf++; }
        on exit(read) { if (result == -11) eagain++; }
        on enter(openat) {
            char path[32];
            read_user(path, filename, 12);
            if (strncmp(path, "/nonexistent", 12) == 0) named++;
        }
    "#;
    let state = &run(&[text], "errors 12")[0];
    assert_eq!(["ebadf", "eagain"].map(|name| number(state, name)), [12, 12], "{state}");
    assert!(number(state, "enoent") >= 12 && number(state, "named") == 12, "{state}");
}

#[test]
fn fork_exec_and_end_hooks() {
    let text = "
        u64 forks, execs, ends, children; i32 code;
        on fork { forks++; if (child_pid != pid()) children++; }
        on exec { execs++; }
        on end { ends++; if (exit_code) code = exit_code; }
    ";
    let state = &run(&[text], "fork-exec 15")[0];
    assert_eq!(
        ["forks", "children", "execs", "ends"].map(|name| number(state, name)),
        [15, 15, 16, 16],
        "{state}"
    );
    let ran = ran(&[text], "", "exit 3").exits_with(3);
    assert_eq!(number(&plugins(&ran)[0], "code"), 3 << 8);
}

#[test]
fn output_keeps_its_order() {
    let text = "u64 n; on enter(getppid) { n++; print(\"call %u of %s\", n, \"it\"); }";
    let ran = ran(&[text], "", "calls 50").success();
    let lines: Vec<_> =
        ran.err.lines().filter_map(|line| line.strip_prefix("plugin-0: ")).collect();
    assert_eq!(lines, (1..=50).map(|n| format!("call {n} of it")).collect::<Vec<_>>());
}

#[test]
fn output_cannot_forge_lines() {
    let text = "on enter(getppid) { char path[12] = \"a\\nb: \\x1b\\xe2\\x80\\xae\"; \
        print(\"%s\", path); }";
    let ran = ran(&[text], "", "calls 1").success();
    assert!(ran.err.lines().any(|line| line == r"plugin-0: a\nb: \x1b\u202e"), "{}", ran.err);
}

#[test]
fn same_file_name_twice() {
    let folder = folder();
    let mut options = String::new();
    for name in ["a", "b", "c"] {
        fs::create_dir(folder.path().join(name)).expect("a folder");
        let file = folder.path().join(name).join("x.ec");
        fs::write(&file, COUNT).expect("a file can be written");
        options += &format!(" --plugin {}", file.display());
    }
    let ran = Job::run(&options, workload("calls 5")).finish().success();
    let states = plugins(&ran);
    assert_eq!([0, 1, 2].map(|at| states[at]["name"].clone()), ["x", "x-2", "x-3"]);
    assert!(states.iter().all(|state| number(state, "n") == 5), "{states:?}");
}

#[test]
fn lost_output_is_reported() {
    let text =
        "char line[64]; on enter(getppid) { for (int i = 0; i < 8192; i++) print(\"%s\", line); }";
    let ran = ran(&[text], "", "calls 1").success();
    let lost = plugins(&ran)[0]["lost"].as_u64().expect("a number");
    assert!(lost > 0);
    assert!(
        ran.err.contains("tollgate: plugin plugin-0: "),
        "{}",
        ran.err.lines().last().unwrap_or_default()
    );
    assert!(ran.err.contains(" records lost, because the buffer was full"), "{lost}");
    assert_eq!(ran.report().losses["plugin records lost (buffer full)"], lost);
}

#[test]
fn chain_runs_in_order() {
    let _slots = HookSlots::exclusive();
    let texts = ["u64 n; on enter(getppid) { n++; }"; 8];
    for state in run(&texts, "calls 500 --threads 2") {
        assert!((500..=500 + MAX_AMBIGUOUS).contains(&number(&state, "n")), "{state}");
    }
    let many = [texts[0]; 9];
    ran(&many, "", "calls 1")
        .exits_with(125)
        .says("`on enter(getppid)` already has 8 linked plugin handlers (1 of plugin-0, 1 of ")
        .says("): load fewer of them (--plugin)");
}

#[test]
fn plugin_that_never_runs_is_named() {
    let note = "plugin-0.ec has only `on call`, which never runs here";
    ran(&["on call {}"], "", "calls 1").success().says(note);
    let both = ran(&["on call {} on fork {}"], "", "calls 1").success();
    assert!(!both.err.contains("never runs"), "{}", both.err);
}

/// The map is read after the variable, and a large map between them.
#[test]
fn variables_and_maps_of_a_report_are_one_snapshot() {
    let text = "u64 n; map<u32, u64> large[4096]; map<u32, u64> last[1];
        on timer(\"100us\") {
            for (int i = 0; i < 50; i++) large[n * 50 + i & 4095] = n;
            last[0] = ++n;
        }";
    let state = &run(&[text], "calls 1000000")[0];
    assert_eq!(entries(state, "last"), [(0, number(state, "n"))]);
    assert_eq!(state["is_linked"], true);
}

#[test]
fn packet_hooks_need_a_daemon() {
    ran(&["on xdp(\"lo\") { return 1; }"], "", "calls 1")
        .exits_with(125)
        .says("`on xdp` can drop packets of the whole machine");
}

#[test]
fn commands_plugins_deny_to_the_command_alone() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let folder = folder();
    let file = folder.path().join("refuses.ec");
    fs::write(&file, "u64 n; on connect { n++; return -13; }").expect("a file can be written");
    let mut job = Job::run(&format!("--plugin {}", file.display()), workload("consumer"));
    job.command.stdin(Stdio::piped());
    let mut inside = Consumer(job.start());
    assert_eq!(inside.request(&format!("connect {port} 1")), "0 13");
    TcpStream::connect(("127.0.0.1", port)).expect("this process is not the command");
    drop(inside.0.stdin());
    assert_eq!(number(&plugins(&inside.0.finish().success())[0], "n"), 1);
}

/// Calls in progress while another test changes the gate's programs may be counted twice.
const MAX_AMBIGUOUS: u64 = 5;

/// This counter must not miss a call while plugins before and after it are loaded, swapped and
/// unloaded.
const COUNT: &str = "u64 n; on enter(getppid) { n++; }";

#[test]
fn changing_the_chain_loses_no_call() {
    let _slots = HookSlots::exclusive();
    const PER_BYTE: u64 = 50_000;
    let at_work = PluginDaemon::start("first", COUNT);
    at_work.load("last", COUNT, "--priority 9");
    at_work.load("middle", COUNT, "--priority 5");
    let mut load = at_work.workload(&format!("calls-on-input {PER_BYTE}"));
    eventually("the workload is gated", || {
        load.input().write_all(b"x").expect("it reads");
        at_work.number("first", "n") > 0
    });
    // Only the calls from here on are known exactly.
    eventually("it has read all", || is_in_read(load.pid()));
    let counts = || ["first", "last", "middle"].map(|name| at_work.number(name, "n"));
    let before = counts();
    let mut bytes = 0;
    for round in 0..12 {
        load.input().write_all(b"xx").expect("it reads");
        bytes += 2;
        let other = format!("u64 n; u64 unused_{round}; on enter(getppid) {{ n += 1; }}");
        let swapped = at_work.swap(
            "middle",
            if round % 2 == 0 { COUNT } else { "u64 n; on enter(getppid) { n += 1; }" },
        );
        assert_eq!(swapped["not_kept"], serde_json::json!([]), "{swapped}");
        at_work.load("passing", &other, &format!("--priority {}", round - 6));
        at_work.request("unload passing").success();
    }
    let all = |before: u64| before + bytes * PER_BYTE;
    eventually("it has read all", || is_in_read(load.pid()));
    let more = counts()[0].saturating_sub(all(before[0]));
    assert!(more <= MAX_AMBIGUOUS, "{more}");
    assert_eq!(counts(), before.map(|before| all(before) + more));
    drop(load.stdin());
    load.finish().success();
}

#[test]
fn failed_swap_changes_nothing() {
    let _slots = HookSlots::exclusive();
    let at_work = PluginDaemon::start("counts", COUNT);
    for number in 1..8 {
        at_work.load(&format!("other-{number}"), "on enter(getppid) {}", "");
    }
    let more =
        at_work.file("more", "u64 n; on enter(getppid) { n++; } on enter(getppid, getpid) {}");
    let swapped = at_work.request(&format!("swap counts {}", more.display()));
    swapped.exits_with(125).says("already has 8 linked plugin handlers (");
    assert_eq!(at_work.show("counts")["is_linked"], true);
    let mut load = at_work.workload("calls-on-input 1");
    at_work.wait_until_counted("counts", &mut load);
    drop(load.stdin());
    load.finish().success();
}

#[test]
fn failed_load_leaves_nothing() {
    let _slots = HookSlots::exclusive();
    let at_work = PluginDaemon::start("counts", COUNT);
    let half = at_work.file("half", "u64 n; on enter(getppid) { n++; } on xdp(\"nowhere0\") {}");
    for _ in 0..8 {
        let failed =
            at_work.request(&format!("load --machine-wide {}", half.display())).exits_with(125);
        failed.says("cannot find the network device nowhere0");
    }
    assert_eq!(at_work.request("list").success().text().lines().count(), 1);
    // All slots but the first plugin's are free.
    for number in 1..8 {
        at_work.load(&format!("other-{number}"), COUNT, "");
    }
}

#[test]
fn hooks_that_never_run_are_reported() {
    let at_work = PluginDaemon::start("counts", COUNT);
    let file = at_work.file("policy", "on guard { return 0; }");
    at_work
        .request(&format!("load {}", file.display()))
        .success()
        .says("policy has handlers for the guard");
}

#[test]
fn oversized_maps_are_refused() {
    let maps: String = (0..50).map(|map| format!("map<u64, char_256> m{map}[16777216];")).collect();
    let text = format!(
        "struct s {{ char a[256]; }}; {} on call {{}}",
        maps.replace("char_256", "struct s")
    );
    let at_work = PluginDaemon::start("counts", COUNT);
    let file = at_work.file("large", &text);
    at_work
        .request(&format!("load {}", file.display()))
        .exits_with(125)
        .says("the plugin's maps need ");
}

/// The swaps are requested together, and need more slots than exist unless each waits for the
/// retired plugins of the one before.
#[test]
fn consecutive_swaps_find_slots() {
    let _slots = HookSlots::exclusive();
    let text = format!("u64 n; {}", "on enter(getppid) { n++; }\n".repeat(7));
    let at_work = PluginDaemon::start("first", COUNT);
    at_work.load("many", &text, "");
    let file = at_work.file("many", &text);
    let swaps = [(); 16].map(|()| at_work.start_request(&format!("swap many {}", file.display())));
    for swap in swaps {
        swap.finish().success();
    }
    at_work.request("unload many").success();
    at_work.load("many", &text, "");
    assert_eq!(at_work.request("list").success().text().lines().count(), 2);
}

#[test]
fn system_wide_daemon_runs_plugins_for_all() {
    let text = "map<u32, u64> by[8192]; on enter(getppid) { by[pid()]++; }";
    let at_work = PluginDaemon::start_for_all("by", text);
    let mut job = Job::of(workload("calls-on-input 100"));
    job.command.stdin(Stdio::piped());
    // A new task, one that another session counts as well, and one with plugins of its own.
    let mut load = job.start();
    load.input().write_all(b"xyz").expect("it reads");
    let counted = Job::run("", workload("calls-on-input 100"));
    let with_own = Job::run(
        &format!("--plugin {}", at_work.file("own", "u64 n; on enter(getppid) { n++; }").display()),
        workload("calls-on-input 100"),
    );
    let mut runs = [counted, with_own].map(|mut job| {
        job.command.stdin(Stdio::piped());
        job.start()
    });
    let mut pids = vec![load.pid()];
    for run in &mut runs {
        run.input().write_all(b"xyz").expect("it reads");
        pids.push(run.child_running("workloads"));
    }
    for pid in pids {
        eventually("all its calls", || {
            let by = entries(&at_work.show("by"), "by");
            by.iter().any(|(of, calls)| *of == u64::from(pid) && *calls == 300)
        });
    }
    for mut run in runs.into_iter().chain([load]) {
        drop(run.stdin());
        run.finish().success();
    }
}

#[test]
fn killed_owner_leaves_other_plugins_linked() {
    let outer = PluginDaemon::start("outer", COUNT);
    let mut load = outer.workload("calls-on-input 1");
    outer.wait_until_counted("outer", &mut load);
    let inner = PluginDaemon::start_beside(&outer, "inner", COUNT);
    inner.wait_until_counted("inner", &mut load);
    inner.daemon.signal(libc::SIGKILL);
    inner.daemon.finish();
    outer.wait_until_counted("outer", &mut load);
}

/// Waits until the daemon has attached the tasks that are now in its cgroup: it polls for new tasks
/// twice a second, so when a new task is counted, the earlier ones are attached.
fn has_polled(at_work: &PluginDaemon, name: &str) {
    let mut sentinel = at_work.workload("calls-on-input 1");
    at_work.wait_until_counted(name, &mut sentinel);
    drop(sentinel.stdin());
    sentinel.finish().success();
}

#[test]
fn commands_plugins_stay_inside_a_daemons_cgroup() {
    let outer = PluginDaemon::start("outer", COUNT);
    let own = outer.file("own", COUNT);
    let mut job = Job::run(&format!("--plugin {}", own.display()), workload("calls-on-input 100"));
    job.command.stdin(Stdio::piped());
    let mut load = job.start();
    outer.cgroup.add(load.child_running("workloads"));
    has_polled(&outer, "outer");
    let before = outer.number("outer", "n");
    load.input().write_all(b"xyz").expect("it reads");
    drop(load.stdin());
    assert_eq!(number(&plugins(&load.finish().success())[0], "n"), 300);
    assert_eq!(outer.number("outer", "n"), before);
}

/// A task has the plugins of the daemon that attached it last, until that daemon has no plugin any
/// more. This includes tasks that ran before.
#[test]
fn later_daemons_plugins_replace_until_unloaded() {
    let earlier = PluginDaemon::start("earlier", COUNT);
    let later = PluginDaemon::start_beside(&earlier, "nothing", "on call {}");
    let mut tasks = [(); 4].map(|()| earlier.workload("calls-on-input 1"));
    let mut all_are_counted = |at_work: &PluginDaemon, name: &str| {
        tasks.iter_mut().for_each(|task| at_work.wait_until_counted(name, task));
    };
    later.request("unload nothing").success();
    all_are_counted(&earlier, "earlier");
    later.load("later", COUNT, "");
    all_are_counted(&later, "later");
    let before = earlier.number("earlier", "n");
    all_are_counted(&later, "later");
    assert_eq!(earlier.number("earlier", "n"), before);
    later.request("unload later").success();
    all_are_counted(&earlier, "earlier");
    for mut task in tasks {
        drop(task.stdin());
        task.finish().success();
    }
}

#[test]
fn later_of_two_daemons_owns_its_tasks() {
    let (earlier, later) =
        (PluginDaemon::start("earlier", COUNT), PluginDaemon::start("later", COUNT));
    let mut load = earlier.workload("calls-on-input 1");
    let pid = load.pid();
    earlier.wait_until_counted("earlier", &mut load);
    later.cgroup.add(pid);
    later.wait_until_counted("later", &mut load);
    earlier.cgroup.add(pid);
    has_polled(&earlier, "earlier");
    let before = earlier.number("earlier", "n");
    later.wait_until_counted("later", &mut load);
    assert_eq!(earlier.number("earlier", "n"), before);
    later.daemon.signal(libc::SIGTERM);
    later.daemon.finish();
    earlier.wait_until_counted("earlier", &mut load);
    drop(load.stdin());
    load.finish().success();
}

#[test]
fn command_survives_a_closed_plugin_reader() {
    let text = "on enter(getppid) { print(\"called\"); }";
    let folder = folder();
    let file = folder.path().join("prints.ec");
    fs::write(&file, text).expect("a file can be written");
    let mut job = Job::run(&format!("--plugin {}", file.display()), Vec::new());
    job.command
        .args(workload("calls 100"))
        .stderr(File::options().write(true).open("/dev/full").unwrap());
    job.finish().success();
}

#[test]
fn priority_orders_the_chain() {
    let text = "u64 when; on enter(getppid) { when = now(); }";
    let at_work = PluginDaemon::start("middle", text);
    at_work.load("late", text, "--priority 1");
    at_work.load("early", text, "--priority -1");
    let mut load = at_work.workload("calls-on-input 10");
    eventually("the workload is gated", || {
        load.input().write_all(b"x").expect("it reads");
        at_work.number("late", "when") > 0
    });
    eventually("it has read all", || is_in_read(load.pid()));
    let [early, middle, late] =
        ["early", "middle", "late"].map(|name| at_work.number(name, "when"));
    assert!(0 < early && early <= middle && middle <= late, "{early} {middle} {late}");
}

#[test]
fn plugin_hitting_limits_is_unlinked() {
    let at_work = PluginDaemon::start("good", COUNT);
    at_work.load("endless", "u64 n; on enter(getppid) { while (1) n++; }", "");
    let mut load = at_work.workload("calls-on-input 1");
    eventually("it is taken out", || {
        load.input().write_all(b"x").expect("it reads");
        at_work.show("endless")["is_linked"] == false
    });
    let state = at_work.show("endless");
    assert!(state["taken_out"].as_str().expect("why").contains("cut short"), "{state}");
    assert!(
        at_work.daemon.read("err").contains("plugin endless: disabled"),
        "{}",
        at_work.daemon.read("err")
    );
    // The other plugin continues to run.
    at_work.wait_until_counted("good", &mut load);
    at_work.request("swap endless no-such-file.ec").exits_with(125);
    at_work.swap("endless", COUNT);
    assert_eq!(at_work.show("endless")["is_linked"], true);
}

#[test]
fn call_show_set_unload() {
    let text = "
        u64 limit = 3; u8 small; u8 large[5000]; const int fixed = 4; \
        char name[8] = \"abc\"; map<u32, u64> m[4];
        on call(int a) { m[(u32)a]++; print(\"called with %d\", a); return a * (int)limit; }
    ";
    let at_work = PluginDaemon::start("first", COUNT);
    let loaded = at_work.load("called", text, "");
    for key in ["parse_us", "codegen_us", "verify_us", "link_us", "instructions"] {
        assert!(loaded[key].is_number(), "{key} of {loaded}");
    }
    let called = at_work.request("call called --arg 5").success();
    assert_eq!((called.text(), called.err.as_str()), ("15\n".into(), "called with 5\n"));
    at_work.request("set called limit=7 small=200").success();
    let called = at_work.request("call --json called --arg -2").success().json();
    assert_eq!(
        (&called["result"], &called["told"]),
        (&(-14).into(), &json!([{"printed": "called with -2"}]))
    );
    at_work.request("call called").exits_with(125).says("takes 1 number");
    at_work.request("set called limit=9 small=256").exits_with(125).says("too large for `small`");
    at_work.request("set called limit=-1").exits_with(125).says("-1 is too small for `limit`");
    at_work.request("set called fixed=1").exits_with(125).says("`fixed` is a constant");
    at_work.request("set called nothing=1").exits_with(125).says("no global variable `nothing`");
    at_work.request("call other").exits_with(125).says("there is no plugin other");
    let state = at_work.show("called");
    assert_eq!((number(&state, "limit"), number(&state, "small")), (7, 200));
    assert_eq!(state["variables"][2], json!({"name": "large", "value": null, "bytes": 5000}));
    let shown = at_work.request("show called").success().text();
    assert!(shown.contains("large: 5,000 bytes, too large to be shown"), "{shown}");
    assert_eq!(entries(&state, "m"), [(5, 1), (u64::from(-2_i32 as u32), 1)]);
    assert_eq!(at_work.request("log called").success().text(), "called with 5\ncalled with -2\n");
    let log = at_work.request("log --json").success().text();
    let lines: Vec<Value> =
        log.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(
        (&lines[1]["plugin"], &lines[1]["printed"]),
        (&json!("called"), &json!("called with -2"))
    );
    let times = [0, 1].map(|line| lines[line]["time"].as_str().expect("a time"));
    assert!(times[0] < times[1], "{log}");
    let list = at_work.request("list --json").success().json();
    assert_eq!(
        (&list["plugins"][1]["name"], list["plugins"][1].get("variables")),
        (&json!("called"), None)
    );
    at_work.request("load --name called first.ec").exits_with(125);
    let swapped = at_work.swap("called", &text.replace("u64 limit = 3", "u32 limit = 9"));
    assert_eq!(swapped["not_kept"].as_array().expect("a list").len(), 1, "{swapped}");
    assert_eq!(number(&at_work.show("called"), "small"), 200);
    assert_eq!(entries(&at_work.show("called"), "m").len(), 2);
    assert_eq!(at_work.request("call called --arg 2").success().text(), "18\n");
    let (reader, mut log) = {
        let mut log = Command::new(tollgate());
        let (reader, writer) = io::pipe().expect("a pipe");
        log.args(["plugin", "log", "--follow", "called"]).stdout(writer);
        let started = log.env("TOLLGATE_SOCKET", at_work.path("socket")).spawn();
        (reader, started.expect("it starts"))
    };
    // It ends with its reader, also if nothing is printed any more.
    assert_eq!(BufReader::new(reader).lines().take(3).count(), 3);
    assert!(log.wait().expect("it ends").success());
    let following = at_work.start_request("log --follow called");
    eventually("it follows", || following.read("out").lines().count() == 3);
    at_work.request("unload called").success();
    let followed = following.finish().success();
    assert_eq!(followed.err, "tollgate: plugin called: unloaded\n");
    assert_eq!(at_work.request("log --follow called").success().err, followed.err);
    at_work.request("show called").exits_with(125).says("there is no plugin called");
}

#[test]
fn call_reads_stdin_and_writes_stdout() {
    let folder = folder();
    let file = folder.path().join("same.ec");
    let text = "
        u8 input[16], output[16]; u64 input_length, output_length;
        on call { memcpy(output, input, 16); output_length = input_length; return 7; }
    ";
    fs::write(&file, text).expect("a file can be written");
    let mut job = Job::of(vec![tollgate().into(), "plugin".into(), "call".into(), file.into()]);
    job.command.args(["--input", "-", "--output-data", "-"]).stdin(Stdio::piped());
    let mut call = job.start();
    call.input().write_all(b"some bytes").expect("it reads");
    drop(call.stdin());
    let called = call.finish().success();
    assert_eq!((called.text().as_str(), called.err.as_str()), ("some bytes", "7\n"));
}

#[test]
fn swap_takes_new_constants() {
    let text = |table: &str, more: &str| {
        format!(
            "const u32 table[2] = {table}; {more} u64 n; on call(int i) {{ n++; return table[i]; }}"
        )
    };
    let at_work = PluginDaemon::start("it", &text("{1, 2}", ""));
    assert_eq!(at_work.request("call it --arg 1").success().text(), "2\n");
    assert_eq!(at_work.swap("it", &text("{3, 4}", ""))["copied"], json!(["n"]));
    assert_eq!(at_work.request("call it --arg 1").success().text(), "4\n");
    let file = at_work.file("third", &text("{5, 6}", "u8 first;"));
    at_work
        .request(&format!("swap it {}", file.display()))
        .success()
        .says("copied, without changes made during the copy: n");
    assert_eq!(at_work.request("call it --arg 1").success().text(), "6\n");
    assert_eq!(at_work.swap("it", &text("{5, 6}", "u8 first;"))["copied"], json!([]));
    assert_eq!(at_work.number("it", "n"), 3);
}

#[test]
fn killed_daemons_slots_are_reused() {
    let _slots = HookSlots::exclusive();
    let texts = |at_work: &PluginDaemon| {
        for number in 1..8 {
            at_work.load(&format!("p{number}"), COUNT, "");
        }
        let file = at_work.file("p8", COUNT);
        at_work
            .request(&format!("load {}", file.display()))
            .exits_with(125)
            .says("already has 8 linked plugin handlers (");
    };
    let killed = PluginDaemon::start("p0", COUNT);
    texts(&killed);
    killed.daemon.signal(libc::SIGKILL);
    eventually("it is killed", || killed.daemon.is_over());
    texts(&PluginDaemon::start("p0", COUNT));
}

/// Denounces calls in the guard hook, and reads the guard's result in the verdict hook.
const DENOUNCES: &str = "
u64 seen, most;
on guard(getppid) { return 1; }
on verdict(getppid) { if (denounced && !mismatches) { seen++; if (lfc > most) most = lfc; } }
";

#[test]
fn guard_and_verdict_hooks() {
    let it = Guarded::new();
    let folder = folder();
    let file = folder.path().join("denounces.ec");
    fs::write(&file, DENOUNCES).expect("a file can be written");
    let plugin = format!("--plugin {}", file.display());
    let ran = it.job(&format!("--guard=watch {plugin}"), "calls 60").finish().success();
    let document = report(&ran);
    let state = &document["plugins"][0];
    assert_eq!((number(state, "seen"), number(state, "most")), (60, 60), "{document}");
    let events = document["guard"]["events"].as_array().expect("events");
    let of_plugin =
        events.iter().filter(|event| event["is_denounced"] == true && event["call"] == "getppid");
    assert_eq!(of_plugin.count(), 60, "{document}");
    it.job(&format!("--guard=enforce --respond kill {plugin}"), "calls 5")
        .finish()
        .exits_with(128 + libc::SIGKILL);
    // A denounced call is reported whatever the guard's own result is.
    let ran = it.job(&format!("--guard=learn {plugin}"), "calls 60").finish().success();
    let document = report(&ran);
    let events = document["guard"]["events"].as_array().expect("events");
    assert!(
        events.len() == 60 && events.iter().all(|event| event["is_denounced"] == true),
        "{document}"
    );
    // The guard learns nevertheless.
    assert_eq!(it.stored().len(), 1);
    // Without the guard, the verdict handler does not run.
    let ran = it.job(&plugin, "calls 5").finish().success();
    assert_eq!(number(&plugins(&ran)[0], "seen"), 0);
}

/// The kernel restarts an interrupted call with the arguments that a handler has left.
#[test]
fn restarted_calls_are_denounced_once() {
    let it = Guarded::new();
    let folder = folder();
    let run = |options: &str, lengths: &str| {
        let file = folder.path().join("lengths.ec");
        fs::write(&file, format!("on guard(read) {{ return {lengths}; }}\n")).expect("a file");
        it.job(&format!("{options} --plugin {}", file.display()), "changed-restart").finish()
    };
    for lengths in ["count == 2", "count == 1 || count == 2"] {
        let ran = run("--guard=watch", lengths).success();
        assert_eq!(GuardSection::of(&ran).denounced_calls(), ["read"], "{lengths}");
    }
    run("--guard=enforce --delay-factor 1ms", "count == 2").success();
    run("--guard=enforce --respond kill", "count == 2").exits_with(128 + libc::SIGKILL);
}

/// If the body of a loop is a function of its own, it gets the packet from the handler.
#[test]
fn packets_are_read_in_loops() {
    const HEADERS: usize = 14 + 20 + 8;
    let _network = OwnNetwork::enter();
    let at_work = PluginDaemon::start_idle();
    let (from, to) =
        (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let port = to.local_addr().unwrap().port();
    // The headers of Ethernet, IPv4 without options, and UDP.
    let text = format!(
        "u64 bytes, halves, words, dropped;
        on xdp(\"lo\") {{
            if (length < {HEADERS} || packet16(12) != 0x800 || packet8(23) != 17 ||
                packet16(36) != {port}) return 0;
            for (int at = {HEADERS}; at < length; at++)
                if (packet8(at) == 'x') {{
                    dropped++;
                    return 1;
                }}
            for (int row = {HEADERS}; row < length; row += 4) {{
                words = words * 3 + packet32(row);
                for (int at = row; at < row + 4; at += 2) {{
                    halves = halves * 3 + packet16(at);
                    for (int each = at; each < at + 2; each++) bytes = bytes * 3 + packet8(each);
                }}
            }}
        }}"
    );
    at_work.load("reads", &text, "--machine-wide");
    let passed = [&b"abcdefgh"[..], b"\xff\0\x80\x7f", b"no word"];
    for message in [passed[0], b"1234x678", passed[1], passed[2]] {
        from.send_to(message, ("127.0.0.1", port)).expect("it is sent");
    }
    let mut buffer = [0; 16];
    for message in passed {
        let length = to.recv(&mut buffer).expect("it comes");
        assert_eq!(&buffer[..length], message);
    }
    let state = at_work.show("reads");
    let sum = |width: usize| -> u64 {
        let read = |message: &[u8], at: usize| {
            let bytes = message.get(at..at + width).unwrap_or_default();
            bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
        };
        let offsets = |message: &[u8]| (0..message.len().next_multiple_of(4)).step_by(width);
        let of_message =
            |sum, message| offsets(message).fold(sum, |sum, at| sum * 3 + read(message, at));
        passed.into_iter().fold(0, of_message)
    };
    assert_eq!(
        ["bytes", "halves", "words"].map(|name| number(&state, name)),
        [1, 2, 4].map(sum),
        "{state}"
    );
    // The last message is one byte too short for each of the three reads.
    assert_eq!((number(&state, "dropped"), &state["outside_packet"]), (1, &3.into()), "{state}");
}
