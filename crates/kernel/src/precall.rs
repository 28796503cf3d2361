//! Pre-call holds: which calls can be held before they take effect, and by which programs of
//! `bpf/guard/precall.bpf.h`.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsRawFd as _;

use libbpf_rs::{Link, Object, ProgramMut};

use crate::error::{ErrorContext as _, Result};
use crate::gate::{CallFlags, enabled_by_gates, mark};
use crate::mounts::cgroup2_root;
use crate::probe::{self, Types};
use crate::wire;

/// Calls that are held by the same hooks.
struct CallClass {
    /// Of [`wire::guard_precall`].
    bit: u32,
    name: &'static str,
    /// Names of calls, in every ABI that has them. Calls that run a hook but do not return its
    /// result are left out: setfsuid, pidfd_getfd.
    calls: &'static [&'static str],
    /// LSM hooks.
    lsm: &'static [&'static str],
    /// Hooks of control groups.
    cgroup: &'static [&'static str],
}

#[rustfmt::skip]
const CLASSES: [CallClass; 17] = [
    CallClass { bit: wire::PRECALL_EXECVE, name: "execve", calls: &["execve", "execveat"],
        lsm: &["bprm_creds_for_exec"], cgroup: &[] },
    CallClass { bit: wire::PRECALL_OPEN, name: "open",
        calls: &["open", "openat", "openat2", "creat", "open_by_handle_at"],
        lsm: &["inode_create", "file_open"], cgroup: &[] },
    CallClass { bit: wire::PRECALL_MAKE, name: "mkdir, mknod, link, symlink",
        calls: &["mkdir", "mkdirat", "mknod", "mknodat", "link", "linkat", "symlink", "symlinkat"],
        lsm: &["inode_create", "inode_mkdir", "inode_mknod", "inode_link", "inode_symlink"],
        cgroup: &[] },
    CallClass { bit: wire::PRECALL_REMOVE, name: "unlink, rmdir, rename",
        calls: &["unlink", "unlinkat", "rmdir", "rename", "renameat", "renameat2"],
        lsm: &["inode_unlink", "inode_rmdir", "inode_rename"], cgroup: &[] },
    CallClass { bit: wire::PRECALL_CONNECT, name: "connect", calls: &["connect", "socketcall"],
        lsm: &["socket_connect"], cgroup: &["connect4", "connect6"] },
    CallClass { bit: wire::PRECALL_BIND, name: "bind", calls: &["bind", "socketcall"],
        lsm: &["socket_bind"], cgroup: &["bind4", "bind6"] },
    CallClass { bit: wire::PRECALL_SOCKET, name: "socket",
        calls: &["socket", "socketpair", "socketcall"],
        lsm: &["socket_create"], cgroup: &["sock_create"] },
    CallClass { bit: wire::PRECALL_SEND, name: "send",
        calls: &["sendto", "sendmsg", "sendmmsg", "socketcall"],
        lsm: &["socket_sendmsg"], cgroup: &["sendmsg4", "sendmsg6"] },
    CallClass { bit: wire::PRECALL_MMAP, name: "mmap", calls: &["mmap", "mmap2"],
        lsm: &["mmap_file"], cgroup: &[] },
    CallClass { bit: wire::PRECALL_MPROTECT, name: "mprotect",
        calls: &["mprotect", "pkey_mprotect"],
        lsm: &["file_mprotect"], cgroup: &[] },
    CallClass { bit: wire::PRECALL_PTRACE, name: "ptrace", calls: &["ptrace"],
        lsm: &["ptrace_access_check", "ptrace_traceme"], cgroup: &[] },
    CallClass { bit: wire::PRECALL_KILL, name: "kill",
        calls: &["kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo",
            "pidfd_send_signal"],
        lsm: &["task_kill"], cgroup: &[] },
    CallClass { bit: wire::PRECALL_SETUID, name: "setuid",
        calls: &["setuid", "setreuid", "setresuid", "setuid32", "setreuid32", "setresuid32"],
        lsm: &["task_fix_setuid"], cgroup: &[] },
    CallClass { bit: wire::PRECALL_SETGID, name: "setgid",
        calls: &["setgid", "setregid", "setresgid", "setgid32", "setregid32", "setresgid32"],
        lsm: &["task_fix_setgid"], cgroup: &[] },
    CallClass { bit: wire::PRECALL_SETGROUPS, name: "setgroups",
        calls: &["setgroups", "setgroups32"],
        lsm: &["task_fix_setgroups"], cgroup: &[] },
    CallClass { bit: wire::PRECALL_BPF, name: "bpf", calls: &["bpf"], lsm: &["bpf"], cgroup: &[] },
    // These calls need no hook, because the kernel itself restarts them after a signal.
    CallClass { bit: wire::PRECALL_FORK, name: "fork", calls: &["fork", "vfork", "clone", "clone3"],
        lsm: &[], cgroup: &[] },
];

/// Calls that return EINTR after a stop, even if no handler ran. Most are in signal(7),
/// "Interruption of system calls and library functions by stop signals"; those of fs/aio.c
/// (`read_events`, v6.18) are missing there.
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

/// How a gate holds calls before they take effect.
enum PrecallMechanism {
    Lsm,
    Cgroup,
    /// By no hook: only calls that the kernel restarts are held.
    None,
}

/// The calls that a gate holds before they take effect, and how.
pub(crate) struct PrecallHooks {
    mechanism: PrecallMechanism,
    classes: Vec<&'static CallClass>,
}

/// `GUARD_LSM` or `GUARD_CGROUP`, if this kernel can run programs on the hooks of that kind, or
/// else 0. Without a gate that has such programs, this is found out by loading some, which takes
/// milliseconds, or a second in an emulated machine.
pub fn available_mechanisms() -> u32 {
    let loaded = enabled_by_gates();
    if let Some(mechanism) =
        [wire::GUARD_LSM, wire::GUARD_CGROUP].into_iter().find(|bit| loaded & bit != 0)
    {
        return mechanism;
    }
    let can_load = |program: &&str| probe::load(program, &[]).is_ok();
    probe::quietly(|| match probe::lsm_runs() {
        Ok(true) => wire::GUARD_LSM,
        _ if cgroup2_root().is_some()
            && CLASSES.iter().flat_map(|class| class.cgroup).all(can_load) =>
        {
            wire::GUARD_CGROUP
        }
        _ => 0,
    })
}

/// Names of the calls that a gate with `enabled` (bits of [`wire::gate_mask`]) holds before they
/// take effect. Calls with the same hooks may have one name together: "unlink, rmdir, rename".
pub fn enforced_call_names(enabled: u32) -> Vec<&'static str> {
    PrecallHooks::new(enabled).classes.iter().map(|class| class.name).collect()
}

impl PrecallHooks {
    /// The hooks for a gate with these extensions.
    pub fn new(enabled: u32) -> Self {
        let mechanism = match enabled {
            lsm if lsm & wire::GUARD_LSM != 0 => PrecallMechanism::Lsm,
            cgroup if cgroup & wire::GUARD_CGROUP != 0 => PrecallMechanism::Cgroup,
            _ => PrecallMechanism::None,
        };
        let types =
            matches!(mechanism, PrecallMechanism::Lsm).then(|| Types::read().ok()).flatten();
        // Not every kernel has all hooks.
        let has = |hook: &&str| {
            types.as_ref().is_some_and(|types| types.has_function(&format!("bpf_lsm_{hook}")))
        };
        let can_be_held = |class: &&CallClass| match mechanism {
            _ if class.bit == wire::PRECALL_FORK => true,
            PrecallMechanism::Lsm => class.lsm.iter().all(has),
            PrecallMechanism::Cgroup => !class.cgroup.is_empty(),
            PrecallMechanism::None => false,
        };
        Self { classes: CLASSES.iter().filter(can_be_held).collect(), mechanism }
    }

    /// The bits of [`wire::guard_precall`] of each call.
    pub fn precall_table(&self) -> CallFlags {
        let mut table = [0; wire::CALL_INDICES as usize];
        for class in &self.classes {
            mark(&mut table, class.calls, class.bit | self.mechanism_flags(class));
        }
        mark(&mut table, &INTERRUPTED, wire::PRECALL_DEFER);
        table
    }

    fn mechanism_flags(&self, class: &CallClass) -> u32 {
        match self.mechanism {
            PrecallMechanism::Cgroup if !class.cgroup.is_empty() => wire::PRECALL_IP_ONLY,
            _ => 0,
        }
    }

    /// The hooks of its programs, each once.
    pub fn hooks(&self) -> BTreeSet<&'static str> {
        let hooks = |class: &&'static CallClass| match self.mechanism {
            PrecallMechanism::Lsm => class.lsm,
            PrecallMechanism::Cgroup => class.cgroup,
            PrecallMechanism::None => &[],
        };
        self.classes.iter().flat_map(hooks).copied().collect()
    }

    /// Attaches the programs for these hooks that a loaded gate has.
    pub fn attach(&self, gate: &Object) -> Result<Vec<Link>> {
        let cgroup = match self.mechanism {
            PrecallMechanism::Cgroup => {
                let root = cgroup2_root().unwrap_or_default();
                Some(File::open(&root).doing(format!("open {root}"))?)
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

/// Prefix of the programs' names, before the hook.
pub(crate) const PREFIX: &str = "gate_";

#[cfg(test)]
mod tests {
    use calls::Abi;

    use super::*;

    fn all_classes(mechanism: PrecallMechanism) -> PrecallHooks {
        PrecallHooks { mechanism, classes: CLASSES.iter().collect() }
    }

    #[test]
    fn call_classes_name_existing_calls() {
        let table = all_classes(PrecallMechanism::Lsm).precall_table();
        let of = |abi, name| {
            table[(abi as u32 * wire::CALLS_PER_ABI + calls::number(abi, name).expect("a call"))
                as usize]
        };
        for abi in Abi::ALL {
            assert_eq!(of(abi, "execve"), wire::PRECALL_EXECVE);
            assert_eq!(of(abi, "openat"), wire::PRECALL_OPEN);
            assert_eq!(of(abi, "read"), 0);
            assert_eq!(of(abi, "io_uring_enter"), 0);
            assert_eq!(of(abi, "epoll_wait"), wire::PRECALL_DEFER);
        }
        assert_eq!(of(Abi::I386, "setuid32"), wire::PRECALL_SETUID);
        let sockets =
            wire::PRECALL_CONNECT | wire::PRECALL_BIND | wire::PRECALL_SOCKET | wire::PRECALL_SEND;
        assert_eq!(of(Abi::I386, "socketcall"), sockets);
        for name in CLASSES.iter().flat_map(|class| class.calls).chain(&INTERRUPTED) {
            assert!(
                Abi::ALL.into_iter().any(|abi| calls::number(abi, name).is_some()),
                "no call {name}"
            );
        }
    }

    #[test]
    fn link_table_is_large_enough() {
        assert_eq!(all_classes(PrecallMechanism::Lsm).hooks().len(), wire::GUARD_HOOKS as usize);
        assert!(all_classes(PrecallMechanism::Cgroup).hooks().len() < wire::GUARD_HOOKS as usize);
    }
}
