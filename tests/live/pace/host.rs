//! Tasks of programs in other languages.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;

use super::{NO_RULE, watch_command, watch_with_losses};
use crate::harness::job::folder;
use crate::harness::{Job, NOBODY, library, project, words};

/// A script in Python that can use the library.
fn python(script: &str) -> Vec<OsString> {
    let library = project().join("crates/libtollgate/python");
    let script = format!(
        "import os, subprocess, sys, time; sys.path.insert(0, {library:?})\n\
         import tollgate_pace\n{script}"
    );
    let mut command: Vec<OsString> = words("python3 -c");
    command.push(script.into());
    command
}

#[test]
fn programs_in_c_and_python_begin_tasks() {
    let built = folder();
    let program = library::example("tasks", built.path());
    let watched = watch_command(Some(NO_RULE), vec![program.into(), "30".into()]);
    assert_eq!(watched.types(), [("tasks: frame", 30), ("tasks: sound", 30)]);
    // Every tenth frame may take longer.
    let changed = watched.deadlines_ms.iter().filter(|deadline| **deadline == Some(32.0));
    assert_eq!(changed.count(), 3);

    let script = "kind = tollgate_pace.TaskType('reply')\n\
         task = kind.begin()\n\
         for _ in range(9): task = task.end_and_begin(kind)\n\
         task.end(); task.end()\n\
         with kind.begin() as other: other.set_deadline(0.001)\n";
    let command = python(script);
    let watched = watch_command(Some(NO_RULE), command.clone());
    let types = watched.types();
    assert!(types.len() == 1 && types[0].0.ends_with(": reply"), "{types:?}");
    assert_eq!(types[0].1, 11);
    let changed: Vec<_> = watched.deadlines_ms.iter().flatten().collect();
    assert_eq!(changed, [&1.0]);
    // Each operation is one call, as is the name of the type. `python3` may be a shell script,
    // which makes such calls, too.
    let calls = |command| Job::run("", command).finish().success().report().count("getppid");
    assert_eq!(calls(command) - calls(python("")), 16);
}

#[test]
fn python_refuses_names_and_deadlines() {
    let script = "task = tollgate_pace.TaskType('reply').begin()\n\
         def is_refused(operation, value):\n\
         \x20   try: operation(value)\n\
         \x20   except ValueError: return True\n\
         names = [name for name in ('', 'a\\0b') if is_refused(tollgate_pace.TaskType, name)]\n\
         values = (-1, float('nan'), float('inf'), 1e30, 0, 1.5)\n\
         deadlines = [value for value in values if is_refused(task.set_deadline, value)]\n\
         print(names, deadlines)\n";
    let command = python(script);
    let output = Command::new(&command[0]).args(&command[1..]).output().expect("Python");
    let text = String::from_utf8_lossy(&output.stdout);
    let expected = "['', 'a\\x00b'] [-1, nan, inf, 1e+30]\n";
    assert_eq!(text, expected, "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn only_named_users_begin_tasks() {
    let script = format!(
        "os.setuid({NOBODY})\n\
         with tollgate_pace.TaskType('reply').begin(): pass\n"
    );
    let command = python(&script);
    let named = format!("users = [\"{NOBODY}\"]\n{NO_RULE}");
    let watched = watch_command(Some(&named), command.clone());
    assert_eq!(watched.only_type().1, 1);
    let others = format!("users = []\n{NO_RULE}");
    let (watched, document) = watch_with_losses(Some(&others), command);
    assert_eq!(watched.types(), []);
    // To name the type, to begin the task, and to end it.
    assert_eq!(document["losses"]["operations on tasks denied (user not in the rules)"], 3);
}

/// A task of a user, during which a process of root is woken, which then works.
#[test]
fn threads_of_other_users_do_not_work_on_a_users_task() {
    let cpu_ns_of = |user: u32| {
        let script = format!(
            "ask, asked = os.pipe()\n\
             reply, replied = os.pipe()\n\
             if os.fork() == 0:\n\
             \x20   os.setuid({user})\n\
             \x20   time.sleep(0.1)\n\
             \x20   with tollgate_pace.TaskType('reply').begin():\n\
             \x20       os.write(asked, b'.')\n\
             \x20       os.read(reply, 1)\n\
             \x20   os._exit(0)\n\
             os.read(ask, 1)\n\
             end = time.thread_time() + 0.05\n\
             while time.thread_time() < end: pass\n\
             os.write(replied, b'.')\n\
             os.wait()\n"
        );
        let command = python(&script);
        let watched = watch_command(Some(NO_RULE), command);
        assert_eq!(watched.only_type().1, 1);
        watched.cpu_ns(None)
    };
    let (of_root, of_user) = (cpu_ns_of(0), cpu_ns_of(NOBODY));
    assert!(of_root > 45_000_000 && of_user < 25_000_000, "{of_root} and {of_user} ns");
}

/// A program that a task wakes, and that the rules exempt or not.
#[test]
fn woken_exempt_program_does_not_work_on_a_task() {
    let script = "pipe = subprocess.PIPE\n\
         child = subprocess.Popen(['sha512sum'], stdin=pipe, stdout=subprocess.DEVNULL)\n\
         data = bytes(40 << 20)\n\
         time.sleep(0.1)\n\
         with tollgate_pace.TaskType('reply').begin():\n\
         \x20   child.stdin.write(data)\n\
         \x20   child.stdin.close()\n\
         \x20   child.wait()\n";
    let command = python(script);
    let work = |keys: &str| {
        let watched = watch_command(Some(&format!("{keys}{NO_RULE}")), command.clone());
        assert_eq!(watched.only_type().1, 1);
        watched.cpu_ns(None)
    };
    let (alone, all) = (work("exempt = [\"sha512sum\"]\n"), work(""));
    assert!(alone < all / 2, "{alone} and {all} ns");
}

/// The child of a fork works on the task of its parent.
#[test]
fn work_follows_over_processes_that_are_forked() {
    let script = "with tollgate_pace.TaskType('reply').begin():\n\
         \x20   if os.fork() == 0:\n\
         \x20       while time.process_time() < 0.05: pass\n\
         \x20       os._exit(0)\n\
         \x20   os.wait()\n";
    let watched = watch_command(Some(NO_RULE), python(script));
    assert_eq!(watched.only_type().1, 1);
    watched.assert_work("work", watched.cpu_ns(None), 50_000_000, 1);
}

/// Each tick works before and after it waits for the reply of another process.
#[test]
fn wait_for_a_socket_ends_a_task_unless_the_rule_includes_waits() {
    const TICK: &str = "[[rule]]\nname = \"tick\"\ncalls = [\"nanosleep\", \"clock_nanosleep\"]\n\
        deadline-ms = 1000\n";
    const TICKS: usize = 10;
    let script = format!(
        "import select, socket\n\
         ours, theirs = socket.socketpair()\n\
         parent = f'/proc/{{os.getpid()}}/stat'\n\
         if os.fork() == 0:\n\
         \x20   for _ in range({TICKS} + 1):\n\
         \x20       theirs.recv(1)\n\
         \x20       while open(parent).read().split(') ')[-1][0] != 'S':\n\
         \x20           select.select([], [], [], 0.001)\n\
         \x20       select.select([], [], [], 0.002)\n\
         \x20       theirs.send(b'.')\n\
         \x20   os._exit(0)\n\
         def work():\n\
         \x20   end = time.thread_time() + 0.004\n\
         \x20   while time.thread_time() < end: pass\n\
         for _ in range({TICKS}):\n\
         \x20   time.sleep(0.003)\n\
         \x20   work()\n\
         \x20   ours.send(b'.')\n\
         \x20   ours.recv(1)\n\
         \x20   work()\n\
         time.sleep(0.003)\n\
         ours.send(b'.')\n\
         ours.recv(1)\n"
    );
    let watched = |rules: &str| watch_command(Some(rules), python(&script));
    let all = TICKS as u64 * 8_000_000;
    let ended = watched(TICK);
    // Half of the work comes after the wait. The last task has no work. The child, which the task
    // has woken, sleeps while its parent does: a task ends when all of its threads wait.
    assert_eq!(ended.only_type().1, TICKS as u64 + 1);
    assert!(ended.cpu_ns(None) < all / 4 * 3 + ended.stolen_ns, "{}", ended.pace);
    let continued = watched(&format!("{TICK}includes-waits = true\n"));
    assert_eq!(continued.only_type().1, TICKS as u64 + 1);
    assert!(continued.cpu_ns(None) >= all / 100 * 98, "{}", continued.pace);
}

#[test]
fn process_does_not_end_tasks_of_another_one() {
    // The child has a copy of the parent's task, and tries to end it.
    let script = "task = tollgate_pace.TaskType('reply').begin()\n\
         child = os.fork()\n\
         if child == 0: task.end(); os._exit(0)\n\
         os.waitpid(child, 0)\n\
         time.sleep(0.05)\n\
         task.end()\n";
    let command = python(script);
    let watched = watch_command(Some(NO_RULE), command);
    assert_eq!(watched.only_type().1, 1);
    let took_ms = watched.pace["types"][0]["took_ms"]["median"].as_f64().expect("a time");
    assert!(took_ms >= 50.0, "{}", watched.pace);
}

#[test]
fn speeds_cannot_be_set_without_a_driver() {
    if Path::new("/sys/devices/system/cpu/cpufreq/policy0").exists() {
        return;
    }
    let inputs = folder();
    let rules = inputs.path().join("rules.toml");
    fs::write(&rules, NO_RULE).expect("the folder is ours");
    let job = Job::run(&format!("--pace {}", rules.display()), words("true"));
    job.finish().exits_with(125).says("this machine has no cpufreq driver");
}

/// The VM tests have a machine with speeds.
#[test]
fn first_line_of_a_watch_says_that_no_speed_can_be_chosen() {
    if Path::new("/sys/devices/system/cpu/cpufreq/policy0").exists() {
        return;
    }
    let text = Job::from_command_line("pace watch -- true").finish().success().err;
    let first = text.lines().next().expect("a line");
    assert!(first.starts_with("pace: this machine has no cpufreq driver"), "{text}");
}
