//! Scopes of real interpreters, of processes that already run, and of more scripts than there is
//! room for.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::harness::cgroup::TestCgroup;
use crate::harness::daemon::{CommandServer, GuardDaemon};
use crate::harness::eventually;
use crate::harness::guarded_program::{GuardSection, Guarded};
use crate::harness::job::copy;

/// A copy of the shell, in a folder for scripts.
fn shell() -> Guarded {
    let it = Guarded::named("dash");
    copy(&PathBuf::from("/bin/sh").canonicalize().expect("a shell"), &it.program);
    it
}

fn write(it: &Guarded, name: &str, text: &str) -> String {
    let path = it.folder.path().join(name);
    fs::write(&path, text).expect("written");
    path.display().to_string()
}

const QUIET: &str = "i=0; while [ $i -lt 50 ]; do i=$((i + 1)); umask >/dev/null; done\n";
const OTHER: &str =
    "i=0; while [ $i -lt 50 ]; do i=$((i + 1)); cd /; [ -e /etc ]; kill -0 $$; done\n";

#[test]
fn other_script_is_anomalous_only_with_scopes() {
    for (option, is_scoped) in [("", false), ("--scope script", true)] {
        let it = shell();
        let (quiet, other) = (write(&it, "quiet.sh", QUIET), write(&it, "other.sh", OTHER));
        for script in [&quiet, &other] {
            it.run(&format!("--guard=learn {option}"), script);
        }
        let program = if is_scoped { "dash[quiet.sh]" } else { "dash" };
        it.run_transition_on("normalize", program);
        write(&it, "quiet.sh", OTHER);
        let guard = it.run(&format!("--guard=watch {option}"), &quiet);
        let scope = is_scoped.then(|| format!("script:{quiet}"));
        let anomalies = guard.in_scope(scope.as_deref())["anomalies"].as_u64().expect("a number");
        assert_eq!(anomalies > 0, is_scoped, "{option}: {}", guard.0);
    }
}

#[test]
fn script_identity_is_its_real_path() {
    let it = shell();
    let script = write(&it, "script.sh", "umask\n");
    let program = it.program.display();
    let folder = it.folder.path().display();
    let commands = format!(
        "cd {folder}; {program} {script}; {program} script.sh; {program} -eu ./script.sh x; \
        {program} -c 'umask; umask'; \
         cd /; exec {program} -o errexit {script}"
    );
    let all = write(&it, "all.sh", &commands);
    let guard = it.run("--guard=learn --scope script", &all);
    for scope in [Some(format!("script:{script}")), Some(format!("script:{all}")), None] {
        guard.in_scope(scope.as_deref());
    }
    // Five processes run these six words: four run the script, one runs without a script, and one
    // is their parent.
    assert_eq!(guard.0["programs"].as_array().expect("a list").len(), 3, "{}", guard.0);
}

#[test]
fn scripts_do_not_exhaust_profiles() {
    const SCOPES: usize = 128;
    let it = shell();
    let one = write(&it, "one.sh", "umask\n");
    let (program, folder) = (it.program.display(), it.folder.path().display());
    let commands = format!(
        "i=0; while [ $i -lt 150 ]; do i=$((i + 1)); cp {one} {folder}/$i.sh; {program} \
        {folder}/$i.sh; sleep 0.02; done"
    );
    let all = write(&it, "all.sh", &commands);
    let ran = it.job("--guard=learn --scope script", &all).finish().success();
    assert!(ran.err.contains("runs in more than 128 scopes"), "{}", ran.err);
    let guard = GuardSection::of(&ran);
    let programs = guard.0["programs"].as_array().expect("a list").iter();
    let scoped = programs.filter(|program| program["scope"].is_string()).count();
    assert_eq!(scoped, SCOPES);
    let own = guard.0["programs"].as_array().expect("a list").iter().find(|program| {
        program["scope"].is_null()
            && program["path"].as_str().is_some_and(|path| path.ends_with("/dash"))
    });
    assert!(own.is_some_and(|own| own["calls"].as_u64() > Some(100)), "{}", guard.0);
}

fn scopes(daemon: &GuardDaemon) -> Vec<Value> {
    let status = daemon.status();
    status["programs"].as_array().expect("programs").iter().map(|it| it["scope"].clone()).collect()
}

#[test]
fn running_and_later_processes_have_scopes() {
    let outer = TestCgroup::new();
    let cgroup = outer.inner("app.service");
    let here = std::env::current_dir().expect("a folder");
    for (name, option, scope) in [
        ("guarded", "unit", "unit:app.service".to_owned()),
        ("python3", "script", format!("script:{}/command-server", here.display())),
    ] {
        let it = Guarded::named(name);
        let mut first = CommandServer::start(&it, &cgroup);
        first.send_and_wait(b"u");
        let daemon = GuardDaemon::start(&it, &cgroup, &format!("--guard=watch --scope {option}"));
        let mut second = CommandServer::start(&it, &cgroup);
        eventually("both are known", || {
            for server in [&mut first, &mut second] {
                server.send_and_wait(&[b'u'; 600]);
            }
            let status = daemon.status();
            status["programs"][0]["calls"].as_u64() > Some(3000)
        });
        assert_eq!(scopes(&daemon), [Value::from(scope.as_str())]);
        let shown = daemon.request("show").text();
        assert!(shown.contains(&format!("/{name} [{scope}]")), "{shown}");
        let text = scope.split_once(':').expect("a kind").1;
        daemon.request(&format!("normalize {name}[{text}]"));
        assert_eq!(daemon.status()["programs"][0]["state"], "normal");
        daemon.running.signal(libc::SIGTERM);
        daemon.running.finish().success();
        first.end();
        second.end();
    }
}
