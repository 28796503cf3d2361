//! Which processes a daemon never holds: an exempt file does not suffice.

use std::fs;
use std::path::Path;

use crate::harness::cgroup::TestCgroup;
use crate::harness::daemon::{CommandServer, GuardDaemon};
use crate::harness::guarded_program::Guarded;
use crate::harness::job::copy;
use crate::harness::{Job, NOBODY, eventually, workloads};

/// Whether a user's process of the program is held for a denounced call. Without a hold, each event
/// says that the process is exempt.
fn is_held(daemon: &GuardDaemon, cgroup: &TestCgroup, program: &Path, user: u32) -> bool {
    let mut server = CommandServer::as_user(user, program, cgroup, 0);
    let pid = server.pid();
    let events = || {
        let events = daemon.events();
        events.into_iter().filter(|event| event["pid"] == pid).collect::<Vec<_>>()
    };
    eventually("an event of what it is", || {
        if server.pending_replies() == 0 {
            server.send(b"x");
        }
        server.is_stopped() || events().iter().any(|event| event["restraint"] == "never held")
    });
    let is_held = server.is_stopped();
    daemon.client_job("release").finish();
    is_held
}

#[test]
fn exempt_file_counts_only_for_root_and_the_named_user() {
    const SOMEBODY: u32 = NOBODY - 1;
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let (program, plugin) = (it.program.display(), it.denouncing_plugin("getgid"));
    let copied = it.folder.path().join("copied");
    copy(&it.program, &copied);
    let daemon = GuardDaemon::start(
        &it,
        &cgroup,
        &format!(
            "--guard=enforce --respond stop --exempt {program}:{NOBODY} --plugin {}",
            plugin.display()
        ),
    );
    let is_held = |program: &Path, user| is_held(&daemon, &cgroup, program, user);
    assert!(!is_held(&it.program, 0), "root");
    assert!(!is_held(&it.program, NOBODY), "the named user");
    assert!(is_held(&it.program, SOMEBODY), "any other user");
    assert!(is_held(&copied, 0), "the same content elsewhere");
}

/// The file is new at each start, as after an update, so the daemon does not know it yet.
#[test]
fn new_file_at_an_exempt_path_is_not_killed() {
    const STARTS: usize = 8;
    let (it, cgroup) = (Guarded::new(), TestCgroup::new());
    let (program, plugin) = (it.program.display(), it.denouncing_plugin("getppid"));
    let options = format!("--guard=enforce --respond kill --plugin {}", plugin.display());
    let daemon = GuardDaemon::start(&it, &cgroup, &format!("{options} --exempt {program}"));
    for start in 0..STARTS {
        fs::remove_file(&it.program).expect("it is there");
        copy(&workloads(), &it.program);
        // A longer file has another digest.
        let mut bytes = fs::read(&it.program).expect("a program");
        bytes.resize(bytes.len() + start, 0);
        let longer = it.folder.path().join("longer");
        fs::write(&longer, bytes).expect("a file");
        copy(&longer, &it.program);
        let enter = format!("echo $$ >{}/cgroup.procs; exec {program} calls 5", cgroup.0.display());
        let job = Job::of(vec!["sh".into(), "-c".into(), enter.into()]).in_own_session();
        job.finish().success();
    }
    drop(daemon);
}
