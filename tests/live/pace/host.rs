//! Tasks of programs in other languages.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;

use super::{NO_RULE, watch_command, watch_with_losses};
use crate::harness::job::folder;
use crate::harness::{Job, NOBODY, library, project, words};

#[test]
fn programs_in_c_and_python_begin_tasks() {
    let built = folder();
    let program = library::example("tasks", built.path());
    let watched = watch_command(Some(NO_RULE), vec![program.into(), "30".into()]);
    assert_eq!(watched.only_type(), ("tasks: frame", 30));

    let script = format!(
        "import sys; sys.path.insert(0, {:?})\n\
         import tollgate_pace\n\
         kind = tollgate_pace.TaskType('reply')\n\
         task = kind.begin()\n\
         for _ in range(9): task = task.end_and_begin(kind)\n\
         task.end(); task.end()\n\
         with kind.begin() as other: other.set_deadline(0.001)\n",
        project().join("crates/libtollgate/python")
    );
    let mut command: Vec<OsString> = words("python3 -c");
    command.push(script.into());
    let watched = watch_command(Some(NO_RULE), command);
    let types = watched.types();
    assert!(types.len() == 1 && types[0].0.ends_with(": reply"), "{types:?}");
    assert_eq!(types[0].1, 11);
}

#[test]
fn python_refuses_names_and_deadlines() {
    let script = format!(
        "import sys; sys.path.insert(0, {:?})\n\
         import tollgate_pace\n\
         task = tollgate_pace.TaskType('reply').begin()\n\
         def is_refused(operation, value):\n\
         \x20   try: operation(value)\n\
         \x20   except ValueError: return True\n\
         names = [name for name in ('', 'a\\0b') if is_refused(tollgate_pace.TaskType, name)]\n\
         values = (-1, float('nan'), float('inf'), 1e30, 0, 1.5)\n\
         deadlines = [value for value in values if is_refused(task.set_deadline, value)]\n\
         print(names, deadlines)\n",
        project().join("crates/libtollgate/python")
    );
    let output = Command::new("python3").arg("-c").arg(script).output().expect("Python");
    let text = String::from_utf8_lossy(&output.stdout);
    let expected = "['', 'a\\x00b'] [-1, nan, inf, 1e+30]\n";
    assert_eq!(text, expected, "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn only_named_users_begin_tasks() {
    let script = format!(
        "import os, sys; sys.path.insert(0, {:?})\n\
         import tollgate_pace\n\
         os.setuid({NOBODY})\n\
         with tollgate_pace.TaskType('reply').begin(): pass\n",
        project().join("crates/libtollgate/python")
    );
    let mut command: Vec<OsString> = words("python3 -c");
    command.push(script.into());
    let named = format!("users = [\"{NOBODY}\"]\n{NO_RULE}");
    let watched = watch_command(Some(&named), command.clone());
    assert_eq!(watched.only_type().1, 1);
    let others = format!("users = []\n{NO_RULE}");
    let (watched, document) = watch_with_losses(Some(&others), command);
    assert_eq!(watched.types(), []);
    // To name the type, to begin the task, and to end it.
    assert_eq!(document["losses"]["operations on tasks denied (user not in the rules)"], 3);
}

#[test]
fn process_does_not_end_tasks_of_another_one() {
    // The child has a copy of the parent's task, and tries to end it.
    let script = format!(
        "import os, sys, time; sys.path.insert(0, {:?})\n\
         import tollgate_pace\n\
         task = tollgate_pace.TaskType('reply').begin()\n\
         child = os.fork()\n\
         if child == 0: task.end(); os._exit(0)\n\
         os.waitpid(child, 0)\n\
         time.sleep(0.05)\n\
         task.end()\n",
        project().join("crates/libtollgate/python")
    );
    let mut command: Vec<OsString> = words("python3 -c");
    command.push(script.into());
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
