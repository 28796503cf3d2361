//! Tasks of programs in other languages.

use std::ffi::OsString;

use super::{NO_RULE, watch_command, watch_with_losses};
use crate::harness::job::folder;
use crate::harness::{library, project, words};

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
fn only_named_users_begin_tasks() {
    const NOBODY: u32 = 65_534;
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
