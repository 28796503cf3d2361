//! Calls that do something, each made by a guarded program that never made it before, and looked at while it is held.

use std::fs;
use std::io::ErrorKind;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::bpf::links_held_by;
use super::guarded::{Guard, Guarded};
use super::job::{children, comm, copy, is_running, kill, state};
use super::{Job, Running, eventually, workload, workloads};

pub struct Deed {
    /// As `workloads deed` has it.
    pub name: &'static str,
    pub call: &'static str,
    /// How much of its effect is there.
    effects: fn(&Scene) -> usize,
    /// All of it.
    all: usize,
    /// It outlives the process.
    lasts: bool,
    status: i32,
}

const fn lasting(name: &'static str, call: &'static str, effects: fn(&Scene) -> usize) -> Deed {
    Deed { name, call, effects, all: 1, lasts: true, status: 0 }
}

const fn passing(name: &'static str, call: &'static str, effects: fn(&Scene) -> usize) -> Deed {
    Deed { lasts: false, ..lasting(name, call, effects) }
}

/// Those that control groups' programs, or the kernel by itself, can hold.
pub const ANYWHERE: [Deed; 5] = [
    lasting("connect", "connect", Scene::connections),
    passing("bind", "bind", |scene| usize::from(UdpSocket::bind(("127.0.0.2", scene.port)).is_err())),
    lasting("send", "sendto", Scene::datagrams),
    passing("socket", "socket", |scene| scene.descriptors("socket:") - 2),
    passing("fork", "fork", |scene| children(scene.guarded).len()),
];

/// Those that it takes the security modules' hooks to hold.
pub const WITH_LSM: [Deed; 22] = [
    Deed {
        status: 7,
        ..passing("execve", "execve", |scene| {
            usize::from(comm(scene.guarded).is_some_and(|comm| comm != "guarded"))
        })
    },
    lasting("create", "openat", |scene| scene.has("made")),
    lasting("truncate", "openat", |scene| usize::from(scene.text("there").is_empty())),
    lasting("mkdir", "mkdir", |scene| scene.has("made")),
    lasting("mknod", "mknodat", |scene| scene.has("made")),
    lasting("link", "link", |scene| scene.has("made")),
    lasting("symlink", "symlink", |scene| scene.has("made")),
    lasting("unlink", "unlink", |scene| 1 - scene.has("removed")),
    lasting("unlink-i386", "unlink (i386)", |scene| 1 - scene.has("removed")),
    lasting("rmdir", "rmdir", |scene| 1 - scene.has("folder")),
    lasting("rename", "rename", |scene| scene.has("made")),
    lasting("connect-i386", "socketcall (i386)", Scene::connections),
    passing("mmap", "mmap", |scene| scene.count("maps", &["7e0000000000-"])),
    passing("mprotect", "mprotect", |scene| scene.count("maps", &["6e0000000000-", " r-x"])),
    passing("ptrace", "ptrace", |scene| usize::from(!scene.victim_status().contains("TracerPid:\t0\n"))),
    lasting("kill", "kill", Scene::dead),
    Deed { all: 2, ..lasting("kill-group", "kill", Scene::dead) },
    passing("setuid", "setresuid", |scene| scene.count("status", &["Uid:", "4242"])),
    passing("setgid", "setresgid", |scene| scene.count("status", &["Gid:", "4242"])),
    passing("setgroups", "setgroups", |scene| scene.count("status", &["Groups:", "4242"])),
    passing("bpf", "bpf", |scene| scene.descriptors("bpf-map")),
    // No way to hold these; they are here to be told apart.
    lasting("write", "pwrite64", |scene| usize::from(scene.text("there") == "madeents")),
];

/// What a deed is done to.
struct Scene {
    folder: PathBuf,
    listener: TcpListener,
    datagrams: UdpSocket,
    port: u16,
    /// A process group of two.
    victims: [Child; 2],
    guarded: u32,
}

impl Drop for Scene {
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

/// A port that is free for both.
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

impl Scene {
    fn new(folder: &Path) -> Self {
        let _ = fs::remove_dir_all(folder);
        fs::create_dir_all(folder.join("folder")).expect("folders");
        fs::write(folder.join("there"), "contents").expect("a file");
        fs::write(folder.join("removed"), "").expect("a file");
        // Not the guarded program's content.
        let other = [fs::read(workloads()).expect("a program"), b"other".to_vec()].concat();
        fs::write(folder.join("content"), other).expect("a file");
        copy(&folder.join("content"), &folder.join("other"));
        let (listener, datagrams) = sockets();
        let port = listener.local_addr().expect("it has one").port();
        let leader = victim(0);
        let victims = [victim(leader.id() as i32), leader];
        Self { folder: folder.into(), listener, datagrams, port, victims, guarded: 0 }
    }

    fn command(&self, deed: &str) -> String {
        format!("deed {deed} {} {} {}", self.folder.display(), self.port, self.victims[1].id())
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

    /// Lines of one of its files in /proc with all these parts.
    fn count(&self, file: &str, parts: &[&str]) -> usize {
        let text = fs::read_to_string(format!("/proc/{}/{file}", self.guarded)).expect("it lives");
        text.lines().filter(|line| parts.iter().all(|part| line.contains(part))).count()
    }

    /// Open files of this kind.
    fn descriptors(&self, kind: &str) -> usize {
        let links = fs::read_dir(format!("/proc/{}/fd", self.guarded)).expect("it lives").flatten();
        let names = links.filter_map(|link| fs::read_link(link.path()).ok());
        names.filter(|name| name.to_string_lossy().contains(kind)).count()
    }
}

/// A program that never did any of them.
pub struct Innocent {
    it: Guarded,
    /// So that not each run loads a gate, which takes the VM seconds.
    keeper: Running,
}

/// Twice the factor is what the first unusual call is held for.
const HOLD: &str = "--guard=enforce --delay-factor 8s --delay-cap 16s";
/// Of these sixteen seconds, how long it is looked at.
const LOOK: Duration = Duration::from_millis(300);
const AT_ONCE: usize = 7;

impl Innocent {
    pub fn new() -> Self {
        let it = Guarded::new();
        let mut keeper = Job::run(HOLD, workload("hang"));
        keeper.command.env("TOLLGATE_STORE", it.folder.path().join("other-store"));
        let keeper = keeper.start();
        keeper.child_running("workloads");
        it.run("--guard=learn", &Scene::new(&it.folder.path().join("nothing")).command("nothing"));
        it.change("normalize");
        Self { it, keeper }
    }

    fn scene(&self, deed: &Deed) -> Scene {
        Scene::new(&self.it.folder.path().join(deed.name))
    }

    /// With a store of its own: of others it learns nothing.
    fn job(&self, options: &str, scene: &Scene, deed: &Deed) -> Job {
        let store = scene.folder.join("store");
        fs::create_dir(&store).expect("a folder");
        for file in fs::read_dir(self.it.folder.path().join("store")).expect("it is there").flatten() {
            fs::copy(file.path(), store.join(file.file_name())).expect("it can be copied");
        }
        let mut job = self.it.job(options, &scene.command(deed.name));
        job.command.env("TOLLGATE_STORE", store);
        job
    }

    /// Several at once, as each takes as long as it is held.
    pub fn are_held_before<'a>(
        &self,
        deeds: impl IntoIterator<Item = &'a Deed>,
        look: impl Fn(&Deed, &Value) + Sync,
    ) {
        let deeds: Vec<_> = deeds.into_iter().collect();
        for some in deeds.chunks(AT_ONCE) {
            std::thread::scope(|scope| {
                for deed in some {
                    scope.spawn(|| look(deed, &self.is_held_before(deed)));
                }
            });
        }
    }

    /// The call is held, and nothing of it is seen until it is let go; then it is done. Its event.
    #[track_caller]
    pub fn is_held_before(&self, deed: &Deed) -> Value {
        let mut scene = self.scene(deed);
        let running = self.job(HOLD, &scene, deed).start();
        scene.guarded = running.child_running("guarded");
        eventually("the hold", || state(scene.guarded) == Some('T'));
        // Somebody else's SIGCONT changes nothing.
        for _ in 0..5 {
            assert_eq!((deed.effects)(&scene), 0, "{}: it took effect before it was let go", deed.name);
            kill(scene.guarded as i32, libc::SIGCONT);
            std::thread::sleep(LOOK / 5);
            eventually("the hold again", || state(scene.guarded) == Some('T'));
        }
        assert_eq!((deed.effects)(&scene), 0, "{}: it took effect before it was let go", deed.name);
        let ran = running.finish().exits_with(deed.status);
        if deed.lasts {
            // Who was sent a signal may take a moment to end.
            let mut seen = 0;
            eventually(deed.name, || {
                seen = seen.max((deed.effects)(&scene));
                seen == deed.all
            });
        }
        self.event(&Guard::of(&ran), deed)
    }

    /// The call is done while it is held.
    #[track_caller]
    pub fn is_held_at_its_end(&self, deed: &Deed) -> Value {
        let mut scene = self.scene(deed);
        let running = self.job(HOLD, &scene, deed).start();
        scene.guarded = running.child_running("guarded");
        eventually("the hold", || state(scene.guarded) == Some('T'));
        assert_eq!((deed.effects)(&scene), deed.all, "{}", deed.name);
        self.event(&Guard::of(&running.finish().exits_with(deed.status)), deed)
    }

    /// With deny.
    #[track_caller]
    pub fn is_refused(&self, deed: &Deed) -> Guard {
        let scene = self.scene(deed);
        let ran = self.job(&format!("{HOLD} --respond deny"), &scene, deed).finish();
        Guard::of(&ran.exits_with(libc::EPERM))
    }

    /// Made again, it is still one call.
    fn event(&self, guard: &Guard, deed: &Deed) -> Value {
        let events = guard.events().iter().filter(|event| event["call"] == deed.call);
        let [event] = events.collect::<Vec<_>>()[..] else { panic!("{}: {:?}", deed.name, guard.events()) };
        assert_eq!(event["action"], "delay", "{event}");
        event.clone()
    }

    /// Another Tollgate wants more of the gate, loads it anew, and goes. Only where no gate has it all.
    #[track_caller]
    pub fn see_another_generation(&self) {
        let before = links_held_by(self.keeper.pid());
        Job::run("--slower 1s", workload("exit 0")).finish().success();
        eventually("another generation", || links_held_by(self.keeper.pid()) != before);
    }

    pub fn end(self) {
        self.keeper.signal_group(libc::SIGTERM);
        self.keeper.finish();
    }
}
