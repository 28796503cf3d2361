//! Calls with side effects. A guarded program that never made such a call makes each, and the test
//! checks for the effect while the call is held.

use std::fs;
use std::io::ErrorKind;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::bpf::links_held_by;
use super::guarded_program::{GuardSection, Guarded};
use super::job::{children, comm, copy, is_running, kill, state};
use super::{Job, Running, eventually, workload, workloads};

pub struct SideEffect {
    /// Its name in the workload.
    pub name: &'static str,
    pub call: &'static str,
    /// Counts the effects that exist.
    effects: fn(&SideEffectFixture) -> usize,
    /// The number of effects of the complete call.
    all: usize,
    /// Whether the effect outlives the process.
    lasts: bool,
    status: i32,
}

const fn lasting_effect(
    name: &'static str,
    call: &'static str,
    effects: fn(&SideEffectFixture) -> usize,
) -> SideEffect {
    SideEffect { name, call, effects, all: 1, lasts: true, status: 0 }
}

const fn one_shot_effect(
    name: &'static str,
    call: &'static str,
    effects: fn(&SideEffectFixture) -> usize,
) -> SideEffect {
    SideEffect { lasts: false, ..lasting_effect(name, call, effects) }
}

/// Calls that cgroup programs, or the kernel without programs, can hold.
pub static ANYWHERE: [SideEffect; 5] = [
    lasting_effect("connect", "connect", SideEffectFixture::connections),
    one_shot_effect("bind", "bind", |scene| {
        usize::from(UdpSocket::bind(("127.0.0.2", scene.port)).is_err())
    }),
    lasting_effect("send", "sendto", SideEffectFixture::datagrams),
    one_shot_effect("socket", "socket", |scene| scene.descriptors("socket:") - 2),
    one_shot_effect("fork", "fork", |scene| children(scene.guarded).len()),
];

/// Calls that need the LSM hooks to be held.
pub static WITH_LSM: [SideEffect; 22] = [
    SideEffect {
        status: 7,
        ..one_shot_effect("execve", "execve", |scene| {
            usize::from(comm(scene.guarded).is_some_and(|comm| comm != "guarded"))
        })
    },
    lasting_effect("create", "openat", |scene| scene.has("made")),
    lasting_effect("truncate", "openat", |scene| usize::from(scene.text("there").is_empty())),
    lasting_effect("mkdir", "mkdir", |scene| scene.has("made")),
    lasting_effect("mknod", "mknodat", |scene| scene.has("made")),
    lasting_effect("link", "link", |scene| scene.has("made")),
    lasting_effect("symlink", "symlink", |scene| scene.has("made")),
    lasting_effect("unlink", "unlink", |scene| 1 - scene.has("removed")),
    lasting_effect("unlink-i386", "unlink (i386)", |scene| 1 - scene.has("removed")),
    lasting_effect("rmdir", "rmdir", |scene| 1 - scene.has("folder")),
    lasting_effect("rename", "rename", |scene| scene.has("made")),
    lasting_effect("connect-i386", "socketcall (i386)", SideEffectFixture::connections),
    one_shot_effect("mmap", "mmap", |scene| scene.count("maps", &["7e0000000000-"])),
    one_shot_effect("mprotect", "mprotect", |scene| {
        scene.count("maps", &["6e0000000000-", " r-x"])
    }),
    one_shot_effect("ptrace", "ptrace", |scene| {
        usize::from(!scene.victim_status().contains("TracerPid:\t0\n"))
    }),
    lasting_effect("kill", "kill", SideEffectFixture::dead),
    SideEffect { all: 2, ..lasting_effect("kill-group", "kill", SideEffectFixture::dead) },
    one_shot_effect("setuid", "setresuid", |scene| scene.count("status", &["Uid:", "4242"])),
    one_shot_effect("setgid", "setresgid", |scene| scene.count("status", &["Gid:", "4242"])),
    one_shot_effect("setgroups", "setgroups", |scene| scene.count("status", &["Groups:", "4242"])),
    one_shot_effect("bpf", "bpf", |scene| scene.descriptors("bpf-map")),
    // Cannot be held before it takes effect; it is here for the contrast.
    lasting_effect("write", "pwrite64", |scene| usize::from(scene.text("there") == "madeents")),
];

/// The objects on which a call takes effect.
struct SideEffectFixture {
    folder: PathBuf,
    listener: TcpListener,
    datagrams: UdpSocket,
    port: u16,
    /// The two processes of a process group.
    victims: [Child; 2],
    guarded: u32,
}

impl Drop for SideEffectFixture {
    fn drop(&mut self) {
        for victim in &mut self.victims {
            let _ = victim.kill();
            let _ = victim.wait();
        }
    }
}

fn victim(group: i32) -> Child {
    let words = workload("hang");
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).process_group(group).stdin(Stdio::null()).spawn().expect("a victim")
}

/// A TCP and a UDP socket at the same port.
fn sockets() -> (TcpListener, UdpSocket) {
    loop {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = listener.local_addr().expect("it has one").port();
        if let Ok(datagrams) = UdpSocket::bind(("127.0.0.1", port)) {
            listener.set_nonblocking(true).expect("it is ours");
            datagrams.set_nonblocking(true).expect("it is ours");
            return (listener, datagrams);
        }
    }
}

impl SideEffectFixture {
    fn new(folder: &Path) -> Self {
        let _ = fs::remove_dir_all(folder);
        fs::create_dir_all(folder.join("folder")).expect("folders");
        fs::write(folder.join("there"), "contents").expect("a file");
        fs::write(folder.join("removed"), "").expect("a file");
        // Other content than the guarded program's.
        let other = [fs::read(workloads()).expect("a program"), b"other".to_vec()].concat();
        fs::write(folder.join("content"), other).expect("a file");
        copy(&folder.join("content"), &folder.join("other"));
        let (listener, datagrams) = sockets();
        let port = listener.local_addr().expect("it has one").port();
        let leader = victim(0);
        let victims = [victim(leader.id() as i32), leader];
        Self { folder: folder.into(), listener, datagrams, port, victims, guarded: 0 }
    }

    fn command(&self, side_effect: &str) -> String {
        format!(
            "side-effect {side_effect} {} {} {}",
            self.folder.display(),
            self.port,
            self.victims[1].id()
        )
    }

    fn has(&self, name: &str) -> usize {
        usize::from(self.folder.join(name).symlink_metadata().is_ok())
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.folder.join(name)).expect("it can be read")
    }

    fn connections(&self) -> usize {
        match self.listener.accept() {
            Ok(_) => 1,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(error) => panic!("{error}"),
        }
    }

    fn datagrams(&self) -> usize {
        usize::from(self.datagrams.recv(&mut [0; 16]).is_ok())
    }

    fn dead(&self) -> usize {
        self.victims.iter().filter(|victim| !is_running(victim.id())).count()
    }

    fn victim_status(&self) -> String {
        fs::read_to_string(format!("/proc/{}/status", self.victims[1].id())).expect("it lives")
    }

    /// Counts lines with all these parts in one of the process's files in /proc.
    fn count(&self, file: &str, parts: &[&str]) -> usize {
        let text = fs::read_to_string(format!("/proc/{}/{file}", self.guarded)).expect("it lives");
        text.lines().filter(|line| parts.iter().all(|part| line.contains(part))).count()
    }

    /// Counts open files of this kind.
    fn descriptors(&self, kind: &str) -> usize {
        let links = fs::read_dir(format!("/proc/{}/fd", self.guarded)).expect("it lives").flatten();
        let names = links.filter_map(|link| fs::read_link(link.path()).ok());
        names.filter(|name| name.to_string_lossy().contains(kind)).count()
    }
}

/// A program that never made any of these calls.
pub struct UnseenProgram {
    it: Guarded,
    /// Keeps a gate loaded: loading one for each run would take seconds in the VM.
    keeper: Running,
}

/// The first anomalous call is held for twice the delay factor.
const HOLD: &str = "--guard=enforce --delay-factor 8s --delay-cap 16s";
/// How long the test observes one of these sixteen-second holds.
const OBSERVE_FOR: Duration = Duration::from_millis(300);

impl UnseenProgram {
    pub fn new() -> Self {
        let it = Guarded::new();
        let mut keeper = Job::run(HOLD, workload("hang"));
        keeper.command.env("TOLLGATE_STORE", it.folder.path().join("other-store"));
        let keeper = keeper.start();
        keeper.child_running("workloads");
        it.run(
            "--guard=learn",
            &SideEffectFixture::new(&it.folder.path().join("nothing")).command("nothing"),
        );
        it.run_transition("normalize");
        Self { it, keeper }
    }

    fn fixture(&self, side_effect: &SideEffect) -> SideEffectFixture {
        SideEffectFixture::new(&self.it.folder.path().join(side_effect.name))
    }

    /// Uses a copy of the store, so that it learns nothing from the other calls.
    fn job(&self, options: &str, scene: &SideEffectFixture, side_effect: &SideEffect) -> Job {
        let store = scene.folder.join("store");
        fs::create_dir(&store).expect("a folder");
        for file in
            fs::read_dir(self.it.folder.path().join("store")).expect("it is there").flatten()
        {
            fs::copy(file.path(), store.join(file.file_name())).expect("it can be copied");
        }
        let mut job = self.it.job(options, &scene.command(side_effect.name));
        job.command.env("TOLLGATE_STORE", store);
        job
    }

    /// Checks the calls, each of which takes as long as its hold, in groups of `at_once` that start
    /// at the same time.
    pub fn are_held_before<'a>(
        &self,
        at_once: usize,
        side_effects: impl IntoIterator<Item = &'a SideEffect>,
        check: impl Fn(&SideEffect, &Value) + Sync,
    ) {
        let side_effects: Vec<_> = side_effects.into_iter().collect();
        for some in side_effects.chunks(at_once) {
            std::thread::scope(|scope| {
                for side_effect in some {
                    scope.spawn(|| check(side_effect, &self.is_held_before(side_effect)));
                }
            });
        }
    }

    /// Checks that the call is held, that it has no effect until it is released, and that it takes
    /// effect then. Returns its event.
    #[track_caller]
    pub fn is_held_before(&self, side_effect: &SideEffect) -> Value {
        let mut scene = self.fixture(side_effect);
        let running = self.job(HOLD, &scene, side_effect).start();
        scene.guarded = running.child_running("guarded");
        eventually("the hold", || state(scene.guarded) == Some('T'));
        // A SIGCONT by another process changes nothing.
        for _ in 0..5 {
            assert_eq!(
                (side_effect.effects)(&scene),
                0,
                "{}: it took effect before it was released",
                side_effect.name
            );
            kill(scene.guarded as i32, libc::SIGCONT);
            std::thread::sleep(OBSERVE_FOR / 5);
            eventually("the hold again", || state(scene.guarded) == Some('T'));
        }
        assert_eq!(
            (side_effect.effects)(&scene),
            0,
            "{}: it took effect before it was released",
            side_effect.name
        );
        let ran = running.finish().exits_with(side_effect.status);
        if side_effect.lasts {
            // A process that was sent a signal may take a moment to end.
            let mut seen = 0;
            eventually(side_effect.name, || {
                seen = seen.max((side_effect.effects)(&scene));
                seen == side_effect.all
            });
        }
        self.event(&GuardSection::of(&ran), side_effect)
    }

    /// Checks that the call has taken effect when it is held.
    #[track_caller]
    pub fn is_held_at_its_end(&self, side_effect: &SideEffect) -> Value {
        let mut scene = self.fixture(side_effect);
        let running = self.job(HOLD, &scene, side_effect).start();
        scene.guarded = running.child_running("guarded");
        eventually("the hold", || state(scene.guarded) == Some('T'));
        assert_eq!((side_effect.effects)(&scene), side_effect.all, "{}", side_effect.name);
        self.event(&GuardSection::of(&running.finish().exits_with(side_effect.status)), side_effect)
    }

    /// Checks that the response `deny` refuses the call.
    #[track_caller]
    pub fn is_refused(&self, side_effect: &SideEffect) -> GuardSection {
        let scene = SideEffectFixture::new(&self.it.folder.path().join("refused"));
        let ran = self.job(&format!("{HOLD} --respond deny"), &scene, side_effect).finish();
        GuardSection::of(&ran.exits_with(libc::EPERM))
    }

    /// Returns the call's only event: a restarted call is not another call.
    fn event(&self, guard: &GuardSection, side_effect: &SideEffect) -> Value {
        let events = guard.events().iter().filter(|event| event["call"] == side_effect.call);
        let [event] = events.collect::<Vec<_>>()[..] else {
            panic!("{}: {:?}", side_effect.name, guard.events())
        };
        assert_eq!(event["action"], "delay", "{event}");
        event.clone()
    }

    /// Starts another Tollgate that needs more of the gate, so it loads a new generation, and ends.
    /// Works only while no generation has everything.
    #[track_caller]
    pub fn load_another_generation(&self) {
        let before = links_held_by(self.keeper.pid());
        Job::run("--slower-than 1s", workload("exit 0")).finish().success();
        eventually("another generation", || links_held_by(self.keeper.pid()) != before);
    }

    pub fn end(self) {
        self.keeper.signal_group(libc::SIGTERM);
        self.keeper.finish();
    }
}
