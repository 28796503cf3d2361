//! Holds before a call takes effect: which calls, and by which programs of `bpf/guard_before.bpf.h`.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsRawFd as _;

use calls::Abi;
use libbpf_rs::{Link, Object, ProgramMut};

use crate::error::{Doing as _, Result};
use crate::mounts::{self, Mount};
use crate::probe::{self, Types};
use crate::wire;

/// Calls that are held by the same hooks.
struct Class {
    /// Of [`wire::guard_before`].
    bit: u32,
    name: &'static str,
    /// In any ABI that has them. What asks a hook and hides its answer is not here: setfsuid, pidfd_getfd.
    calls: &'static [&'static str],
    /// Hooks of security modules.
    lsm: &'static [&'static str],
    /// Hooks of control groups.
    cgroup: &'static [&'static str],
}

#[rustfmt::skip]
const CLASSES: [Class; 17] = [
    Class { bit: wire::BEFORE_EXECVE, name: "execve", calls: &["execve", "execveat"],
        lsm: &["bprm_creds_for_exec"], cgroup: &[] },
    Class { bit: wire::BEFORE_OPEN, name: "open",
        calls: &["open", "openat", "openat2", "creat", "open_by_handle_at"],
        lsm: &["inode_create", "file_open"], cgroup: &[] },
    Class { bit: wire::BEFORE_MAKE, name: "mkdir, mknod, link, symlink",
        calls: &["mkdir", "mkdirat", "mknod", "mknodat", "link", "linkat", "symlink", "symlinkat"],
        lsm: &["inode_create", "inode_mkdir", "inode_mknod", "inode_link", "inode_symlink"], cgroup: &[] },
    Class { bit: wire::BEFORE_REMOVE, name: "unlink, rmdir, rename",
        calls: &["unlink", "unlinkat", "rmdir", "rename", "renameat", "renameat2"],
        lsm: &["inode_unlink", "inode_rmdir", "inode_rename"], cgroup: &[] },
    Class { bit: wire::BEFORE_CONNECT, name: "connect", calls: &["connect", "socketcall"],
        lsm: &["socket_connect"], cgroup: &["connect4", "connect6"] },
    Class { bit: wire::BEFORE_BIND, name: "bind", calls: &["bind", "socketcall"],
        lsm: &["socket_bind"], cgroup: &["bind4", "bind6"] },
    Class { bit: wire::BEFORE_SOCKET, name: "socket", calls: &["socket", "socketpair", "socketcall"],
        lsm: &["socket_create"], cgroup: &["sock_create"] },
    Class { bit: wire::BEFORE_SEND, name: "send", calls: &["sendto", "sendmsg", "sendmmsg", "socketcall"],
        lsm: &["socket_sendmsg"], cgroup: &["sendmsg4", "sendmsg6"] },
    Class { bit: wire::BEFORE_MMAP, name: "mmap", calls: &["mmap", "mmap2"], lsm: &["mmap_file"], cgroup: &[] },
    Class { bit: wire::BEFORE_MPROTECT, name: "mprotect", calls: &["mprotect", "pkey_mprotect"],
        lsm: &["file_mprotect"], cgroup: &[] },
    Class { bit: wire::BEFORE_PTRACE, name: "ptrace", calls: &["ptrace"],
        lsm: &["ptrace_access_check", "ptrace_traceme"], cgroup: &[] },
    Class { bit: wire::BEFORE_KILL, name: "kill",
        calls: &["kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_send_signal"],
        lsm: &["task_kill"], cgroup: &[] },
    Class { bit: wire::BEFORE_SETUID, name: "setuid",
        calls: &["setuid", "setreuid", "setresuid", "setuid32", "setreuid32", "setresuid32"],
        lsm: &["task_fix_setuid"], cgroup: &[] },
    Class { bit: wire::BEFORE_SETGID, name: "setgid",
        calls: &["setgid", "setregid", "setresgid", "setgid32", "setregid32", "setresgid32"],
        lsm: &["task_fix_setgid"], cgroup: &[] },
    Class { bit: wire::BEFORE_SETGROUPS, name: "setgroups", calls: &["setgroups", "setgroups32"],
        lsm: &["task_fix_setgroups"], cgroup: &[] },
    Class { bit: wire::BEFORE_BPF, name: "bpf", calls: &["bpf"], lsm: &["bpf"], cgroup: &[] },
    // The kernel makes them again by itself.
    Class { bit: wire::BEFORE_FORK, name: "fork", calls: &["fork", "vfork", "clone", "clone3"],
        lsm: &[], cgroup: &[] },
];

/// Calls that return EINTR after a stop, even without a handler: signal(7), "Interruption of system calls and library
/// functions by stop signals", and those that it leaves out (v6.18 fs/aio.c, `read_events`).
const INTERRUPTED: [&str; 12] = [
    "epoll_wait",
    "epoll_wait_old",
    "epoll_pwait",
    "epoll_pwait2",
    "semop",
    "semtimedop",
    "semtimedop_time64",
    "rt_sigtimedwait",
    "rt_sigtimedwait_time64",
    "io_getevents",
    "io_pgetevents",
    "io_pgetevents_time64",
];

/// What holds calls before they take effect in a gate.
enum Way {
    Lsm,
    Cgroup,
    /// Nothing but what the kernel does by itself.
    None,
}

/// What a gate loads and knows for that.
pub(crate) struct Before {
    way: Way,
    classes: Vec<&'static Class>,
}

/// Which of the bits `GUARD_LSM` and `GUARD_CGROUP` a gate can have here, found by trying; 0: neither.
pub fn possible() -> u32 {
    let can_load = |program: &&str| probe::load(program, &[]).is_ok();
    probe::quietly(|| match probe::lsm_runs() {
        Ok(true) => wire::GUARD_LSM,
        _ if hierarchy().is_some() && CLASSES.iter().flat_map(|class| class.cgroup).all(can_load) => {
            wire::GUARD_CGROUP
        }
        _ => 0,
    })
}

/// The calls that a gate with these extensions holds before they take effect, in words.
pub fn names(enabled: u32) -> Vec<&'static str> {
    Before::new(enabled).classes.iter().map(|class| class.name).collect()
}

/// Where the whole of control groups' second version is mounted.
pub(crate) fn hierarchy() -> Option<String> {
    hierarchy_of(mounts::mounted())
}

fn hierarchy_of(mounts: Vec<Mount>) -> Option<String> {
    let whole = mounts.into_iter().find(|mount| mount.kind == "cgroup2" && mount.root == "/");
    whole.map(|mount| mount.place)
}

impl Before {
    /// Of a gate with these extensions.
    pub fn new(enabled: u32) -> Self {
        let way = match enabled {
            lsm if lsm & wire::GUARD_LSM != 0 => Way::Lsm,
            cgroup if cgroup & wire::GUARD_CGROUP != 0 => Way::Cgroup,
            _ => Way::None,
        };
        let types = matches!(way, Way::Lsm).then(|| Types::read().ok()).flatten();
        // Not every kernel has all of them.
        let has =
            |hook: &&str| types.as_ref().is_some_and(|types| types.has_function(&format!("bpf_lsm_{hook}")));
        let is_served = |class: &&Class| match way {
            _ if class.bit == wire::BEFORE_FORK => true,
            Way::Lsm => class.lsm.iter().all(has),
            Way::Cgroup => !class.cgroup.is_empty(),
            Way::None => false,
        };
        Self { classes: CLASSES.iter().filter(is_served).collect(), way }
    }

    /// [`wire::guard_before`] of each call.
    pub fn table(&self) -> [u32; wire::CALL_SLOTS as usize] {
        let mut table = [0; wire::CALL_SLOTS as usize];
        let mut mark = |calls: &[&str], bits| {
            for (abi, name) in Abi::ALL.into_iter().flat_map(|abi| calls.iter().map(move |name| (abi, name)))
            {
                if let Some(number) = calls::number(abi, name) {
                    table[(abi as u32 * wire::CALLS_PER_ABI + number) as usize] |= bits;
                }
            }
        };
        for class in &self.classes {
            mark(class.calls, class.bit | self.limits(class));
        }
        mark(&INTERRUPTED, wire::BEFORE_NEXT);
        table
    }

    fn limits(&self, class: &Class) -> u32 {
        match self.way {
            Way::Cgroup if !class.cgroup.is_empty() => wire::BEFORE_IP_ONLY,
            _ => 0,
        }
    }

    /// Its programs' hooks, each once.
    pub fn hooks(&self) -> BTreeSet<&'static str> {
        let hooks = |class: &&'static Class| match self.way {
            Way::Lsm => class.lsm,
            Way::Cgroup => class.cgroup,
            Way::None => &[],
        };
        self.classes.iter().flat_map(hooks).copied().collect()
    }

    /// Attaches its programs of a gate.
    pub fn attach(&self, gate: &Object) -> Result<Vec<Link>> {
        let cgroup = match self.way {
            Way::Cgroup => {
                let place = hierarchy().unwrap_or_default();
                Some(File::open(&place).doing(format!("open {place}"))?)
            }
            _ => None,
        };
        let hooks = self.hooks();
        let programs = gate.progs_mut().filter_map(|program| {
            let hook = *hooks.get(program.name().to_str()?.strip_prefix(PREFIX)?)?;
            Some((program, hook))
        });
        let attach = |(program, hook): (ProgramMut, &str)| {
            let link = match &cgroup {
                Some(cgroup) => program.attach_cgroup(cgroup.as_raw_fd()),
                None => program.attach_lsm(),
            };
            link.doing(format!("attaching to {hook}"))
        };
        programs.map(attach).collect()
    }
}

/// Of programs' names, before their hooks'.
pub(crate) const PREFIX: &str = "gate_";

#[cfg(test)]
mod tests {
    use super::*;

    fn before(way: Way) -> Before {
        Before { way, classes: CLASSES.iter().collect() }
    }

    #[test]
    fn calls_are_known_by_name_in_all_abis() {
        let table = before(Way::Lsm).table();
        let of = |abi, name| {
            table[(abi as u32 * wire::CALLS_PER_ABI + calls::number(abi, name).expect("a call")) as usize]
        };
        for abi in Abi::ALL {
            assert_eq!(of(abi, "execve"), wire::BEFORE_EXECVE);
            assert_eq!(of(abi, "openat"), wire::BEFORE_OPEN);
            assert_eq!(of(abi, "read"), 0);
            assert_eq!(of(abi, "io_uring_enter"), 0);
            assert_eq!(of(abi, "epoll_wait"), wire::BEFORE_NEXT);
        }
        assert_eq!(of(Abi::I386, "setuid32"), wire::BEFORE_SETUID);
        let sockets = wire::BEFORE_CONNECT | wire::BEFORE_BIND | wire::BEFORE_SOCKET | wire::BEFORE_SEND;
        assert_eq!(of(Abi::I386, "socketcall"), sockets);
        for name in CLASSES.iter().flat_map(|class| class.calls).chain(&INTERRUPTED) {
            assert!(Abi::ALL.into_iter().any(|abi| calls::number(abi, name).is_some()), "no call {name}");
        }
    }

    #[test]
    fn links_have_room() {
        assert_eq!(before(Way::Lsm).hooks().len(), wire::GUARD_HOOKS as usize);
        assert!(before(Way::Cgroup).hooks().len() < wire::GUARD_HOOKS as usize);
    }

    #[test]
    fn control_groups_are_attached_to_at_their_root() {
        let mounts = "\
31 27 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw
38 31 0:35 / /sys/fs/cgroup/cpu rw shared:9 - cgroup cgroup rw,cpu
41 31 0:38 /part /mnt/part rw,relatime - cgroup2 cgroup2 rw
42 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
        assert_eq!(hierarchy_of(mounts::parse(mounts)).as_deref(), Some("/sys/fs/cgroup/unified"));
        assert_eq!(hierarchy_of(Vec::new()), None);
    }
}
