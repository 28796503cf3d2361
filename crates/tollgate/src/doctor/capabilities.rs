//! The list of capabilities: which extensions need each, what replaces it, how to get it, and how
//! it is tested.

use std::path::Path;

use kernel::probe::{self, ProbeResult};
use kernel::process::is_root;
use kernel::user_namespace::is_in_user_namespace;
use kernel::{precall, wire};

use super::finding::{Capability, Finding, KernelFacts, with_rights, without_types};
use super::{bpf_lsm, cgroups, files};

type ProbeFn = fn(&KernelFacts) -> Finding;
type Users = &'static [&'static str];

const ALL: Users = &["all"];
const LENS: Users = &["lens"];
const GUARD: Users = &["guard"];
const SERVICE: Users = &["service"];
const PLUGIN: Users = &["plugin"];
const PACE: Users = &["pace"];
const LENS_SERVICE: Users = &["lens", "service"];
const GUARD_SERVICE: Users = &["guard", "service"];
const COST: Users = &["cost"];

/// A capability without which `tollgate run` cannot work.
const fn required(
    name: &'static str,
    needed_by: Users,
    how: &'static str,
    test: ProbeFn,
) -> Capability {
    Capability { name, needed_by, required: true, fallback: "", remedy: how, test }
}

const fn optional(
    name: &'static str,
    needed_by: Users,
    instead: &'static str,
    how: &'static str,
    test: ProbeFn,
) -> Capability {
    Capability { name, needed_by, required: false, fallback: instead, remedy: how, test }
}

pub const GROUPS: &[(&str, &[Capability])] = &[
    ("the gate", GATE),
    ("guard", GUARDING),
    ("service", SERVICES),
    ("plugin", PLUGINS),
    ("cost lab", LAB),
    ("lens (planned)", PLANNED),
    ("pace", PACING),
];

const GATE: &[Capability] = &[
    required("root", ALL, "sudo tollgate run ...", root),
    required("/proc", ALL, "mount -t proc none /proc", |_| files::own_proc()),
    required("lock file", ALL, "a /run to which root can write", |_| files::lock_file()),
    required("kernel types (BTF)", ALL, "a kernel with CONFIG_DEBUG_INFO_BTF=y", types),
    required(
        "tracepoints with types (tp_btf)",
        ALL,
        "a kernel with CONFIG_BPF_EVENTS=y",
        |machine| typed_each(machine, &HOOKS, probe::attach),
    ),
    required("ring buffer", ALL, "Linux 5.8 or newer", |machine| {
        machine.probe_finding(probe::make("ring_buffer"))
    }),
    required("array mapped into memory", ALL, "Linux 5.5 or newer", |machine| {
        machine.probe_finding(probe::map_into_memory())
    }),
    required("array of ring buffers", ALL, "Linux 5.8 or newer", |machine| {
        machine.probe_finding(probe::ring_in_array())
    }),
    required("queue map", ALL, "Linux 4.20 or newer", |machine| {
        machine.probe_finding(probe::make("queue"))
    }),
    required(
        "32-bit compare and swap",
        ALL,
        "Linux 5.12 or newer with CONFIG_BPF_JIT=y",
        |machine| machine.probe_finding(probe::load("atomics_32", &[])),
    ),
    required("reading kernel memory", ALL, "boot without lockdown=confidentiality", |machine| {
        typed(machine, "probe_read")
    }),
    required("stack of a sleeping task", LENS, "Linux 5.9 or newer", |machine| {
        typed(machine, "task_stack")
    }),
    required(
        "run-queue wait (sched_info)",
        LENS_SERVICE,
        "a kernel with CONFIG_SCHED_INFO=y",
        run_delay,
    ),
    optional(
        "task iterator",
        ALL,
        "only commands started by Tollgate; it cannot attach to running processes, and there are \
        no services",
        "Linux 5.8 or newer",
        |machine| machine.typed_probe_finding(probe::iterate_tasks),
    ),
    optional(
        "kernel addresses (kallsyms)",
        LENS,
        "blocking sites without function names",
        "sysctl kernel.kptr_restrict=1, and a kernel with CONFIG_KALLSYMS=y",
        |_| files::kernel_addresses(),
    ),
    optional(
        "bpf_loop",
        GUARD_SERVICE,
        "no guard and no services",
        "Linux 5.17 or newer",
        |machine| machine.probe_finding(load("loops")),
    ),
    optional(
        "bpf_rdonly_cast",
        ALL,
        "a helper function, which costs about 8 ns more per call on processors that need return \
        thunks",
        "Linux 6.2 or newer",
        |machine| machine.kfunc("bpf_rdonly_cast"),
    ),
    optional(
        "fast clock",
        LENS,
        "the slow clock, read twice per timed call; `--sample` times fewer calls",
        "a clock source within the processor",
        |_| files::fast_clock(),
    ),
];

const GUARDING: &[Capability] = &[
    optional("bpf_send_signal_thread", GUARD, "no guard", "Linux 5.5 or newer", |machine| {
        typed(machine, "send_signal")
    }),
    optional(
        "bpf_send_signal_task",
        GUARD,
        "a held process that gets a SIGCONT from another process makes one more call",
        "Linux 6.13 or newer",
        |machine| machine.kfunc("bpf_send_signal_task"),
    ),
    optional(
        "BPF LSM",
        GUARD,
        "connect, bind, sendmsg and socket are held before they take effect; other calls where a \
        signal stops them",
        "a kernel with CONFIG_BPF_LSM=y",
        bpf_lsm::bpf_lsm,
    ),
    optional(
        "cgroup programs that set the errno",
        GUARD_SERVICE,
        "BPF LSM or a signal for the guard; no services",
        "Linux 5.18 or newer with CONFIG_CGROUP_BPF=y",
        |machine| machine.all_of(&CGROUP_PROGRAMS, load),
    ),
    optional(
        "holds before calls take effect",
        GUARD,
        "most calls are held at their end, sleeping calls immediately, and forks before they take \
        effect",
        "BPF LSM, or cgroup programs and cgroup v2",
        holds,
    ),
];

const SERVICES: &[Capability] = &[
    optional(
        "cgroup v2",
        GUARD_SERVICE,
        "limits on processor time, memory and tasks by cgroup v1, and none on sockets; work is not \
        followed over UDP; no plugins at connect, bind and socket",
        "mount -t cgroup2 none /sys/fs/cgroup",
        |_| cgroups::hierarchy(),
    ),
    optional(
        "cpu controller",
        SERVICE,
        "no limits on processor time",
        "CONFIG_CGROUP_SCHED=y",
        |_| cgroups::controller("cpu"),
    ),
    optional("memory controller", SERVICE, "no limits on memory", "CONFIG_MEMCG=y", |_| {
        cgroups::controller("memory")
    }),
    optional("pids controller", SERVICE, "no limits on tasks", "CONFIG_CGROUP_PIDS=y", |_| {
        cgroups::controller("pids")
    }),
    optional(
        "message tracepoints",
        SERVICE,
        "fentry and fexit programs; `sent_bytes` counts the bytes that a call was asked to send",
        "Linux 6.3 or newer",
        |machine| machine.tracepoint("sock_recv_length"),
    ),
    optional(
        "fentry programs",
        SERVICE,
        "message tracepoints; if these are missing, too, no services",
        TRAMPOLINES,
        |machine| machine.typed_probe_finding(|| probe::attach("fentry")),
    ),
    optional("socket storage", SERVICE, "no services", "Linux 5.11 or newer", |machine| {
        machine.probe_finding(probe::make("sk_storage"))
    }),
    optional(
        "file iterator",
        SERVICE,
        "`service explain` of processes only, not of sockets",
        "Linux 5.11 or newer, without a policy of the machine against it",
        |machine| machine.typed_probe_finding(|| probe::load("file_iterator", &[])),
    ),
];

const PLUGINS: &[Capability] = &[
    optional(
        "SYSCALL programs",
        PLUGIN,
        "no `on call`: plugins run at hooks only",
        "Linux 5.14 or newer",
        |machine| machine.probe_finding(load("syscall_type")),
    ),
    optional("may_goto", PLUGIN, "bpf_loop", "Linux 6.9 or newer", |machine| {
        machine.probe_finding(probe::load("may_goto", &["counter"]))
    }),
    optional(
        "may_goto bounded by time",
        PLUGIN,
        "loops end after 8 million iterations",
        "Linux 6.15 or newer",
        timed,
    ),
    optional(
        "XDP programs",
        PLUGIN,
        "no plugins at xdp",
        "a kernel with CONFIG_NET=y",
        |machine| machine.probe_finding(load("xdp_type")),
    ),
    optional(
        "tc programs as links (tcx)",
        PLUGIN,
        "no plugins at ingress and egress",
        "Linux 6.6 or newer with CONFIG_NET_CLS_ACT=y",
        |machine| machine.probe_finding(load("tc_type").and_then(|()| probe::tcx())),
    ),
];

const LAB: &[Capability] = &[optional(
    "pressure stall information (PSI)",
    COST,
    "reports without the pressure on processors",
    "a kernel with CONFIG_PSI=y",
    |_| files::pressure(),
)];

const PLANNED: &[Capability] = &[
    optional("kprobes", LENS, "tracepoints", "a kernel with CONFIG_KPROBE_EVENTS=y", |machine| {
        machine.probe_finding(probe::attach("kprobe"))
    }),
    optional(
        "kprobe.multi",
        LENS,
        "one kprobe or fentry program per function, attached one by one",
        "Linux 5.18 or newer with CONFIG_FPROBE=y",
        |machine| machine.probe_finding(probe::attach_kprobe_multi()),
    ),
    optional(
        "lock contention tracepoints",
        LENS,
        "the function that slept, without the lock's name",
        "Linux 5.19 or newer",
        |machine| typed_each(machine, &["contention_begin", "contention_end"], probe::attach),
    ),
    optional(
        "user memory in task storage (uptr)",
        LENS,
        "an array mapped into memory",
        "Linux 6.13 or newer",
        |machine| machine.typed_probe_finding(|| probe::load("uptr", &["user_pointers"])),
    ),
];

const PACING: &[Capability] = &[
    optional(
        "processor frequencies (cpufreq)",
        PACE,
        "`pace watch` records tasks and simulates speeds; `--pace` cannot set any and is refused",
        "the frequency driver of this processor; most virtual machines have none",
        |_| files::frequency_driver(),
    ),
    optional(
        "userspace governor",
        PACE,
        "bounds of the frequency (scaling_min_freq, scaling_max_freq)",
        "modprobe cpufreq_userspace",
        |_| files::userspace_governor(),
    ),
    optional(
        "energy preference",
        PACE,
        "the other actuators are used",
        "intel_pstate or amd-pstate in active mode",
        |_| files::energy_preference(),
    ),
    optional(
        "utilization clamping (uclamp)",
        PACE,
        "the other actuators are used",
        "a kernel with CONFIG_UCLAMP_TASK=y",
        |_| files::utilization_clamp(),
    ),
    optional(
        "counters of cycles (perf)",
        PACE,
        "the work of tasks is processor time, times the speed of the processor",
        "a processor with performance counters; most virtual machines have none",
        |_| files::cycle_counters(),
    ),
    optional(
        "energy counters (powercap, perf)",
        PACE,
        "energy is modelled from the power of the levels",
        "intel_rapl_msr or the PMU `power`; most virtual machines have neither",
        |_| files::energy_counters(),
    ),
];

const TRAMPOLINES: &str = "Linux 5.5 or newer with CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS=y";

const CGROUP_PROGRAMS: [&str; 7] =
    ["connect4", "connect6", "bind4", "bind6", "sendmsg4", "sendmsg6", "sock_create"];

const HOOKS: [&str; 6] = [
    "sys_enter",
    "sys_exit",
    "sched_switch",
    "sched_process_fork",
    "sched_process_exec",
    "sched_process_exit",
];

fn load(program: &str) -> ProbeResult {
    probe::load(program, &[])
}

fn typed(machine: &KernelFacts, program: &str) -> Finding {
    machine.typed_probe_finding(|| load(program))
}

fn typed_each(machine: &KernelFacts, programs: &[&str], probe: fn(&str) -> ProbeResult) -> Finding {
    match &machine.types {
        Ok(_) => machine.all_of(programs, probe),
        Err(_) => without_types(),
    }
}

/// How to get the rights of root.
pub const RIGHTS_OF_ROOT: &str =
    "run it on the host itself, or in a container with CAP_SYS_ADMIN and without a seccomp filter";

fn root(machine: &KernelFacts) -> Finding {
    match (&machine.may_use_bpf, is_root()) {
        (Ok(()), true) => Finding::yes(""),
        (Ok(()), false) => Finding::no("may use BPF, but is not root"),
        (Err(_), true) if is_in_user_namespace() => {
            Finding::no("root of a user namespace may not use BPF").remedy("run it outside of it")
        }
        (Err(refusal), true) => Finding::no(format!(
            "root may not use BPF here \
            ({})",
            refusal.errno_name()
        ))
        .remedy(RIGHTS_OF_ROOT),
        (Err(_), false) => Finding::no("not root"),
    }
}

fn types(machine: &KernelFacts) -> Finding {
    match &machine.types {
        Ok(_) => Finding::yes(""),
        Err(_) if !Path::new("/sys/kernel").exists() => {
            Finding::no("/sys is not mounted").remedy("mount -t sysfs none /sys")
        }
        Err(refusal) => Finding::no(format!("{}: {}", refusal.what, refusal.errno_name())),
    }
}

fn run_delay(machine: &KernelFacts) -> Finding {
    match &machine.types {
        Ok(types) if types.has_member("sched_info", "run_delay") => Finding::yes(""),
        Ok(_) => Finding::no("the kernel does not count it"),
        Err(_) => without_types(),
    }
}

/// The mechanism that this machine offers for pre-call holds, and the calls that it can hold.
fn holds(machine: &KernelFacts) -> Finding {
    let (Ok(()), Ok(_)) = (&machine.may_use_bpf, &machine.types) else {
        return Finding::untried("not tried").remedy(with_rights());
    };
    let possible = precall::available_mechanisms();
    let calls = precall::enforced_call_names(possible).join(", ");
    match possible {
        wire::GUARD_LSM => Finding::yes(format!("by BPF LSM: {calls}")),
        wire::GUARD_CGROUP => Finding::yes(format!(
            "by cgroup programs, so only for IPv4 and IPv6 sockets, and sends only over UDP with \
            an address: {calls}"
        ))
        .fallback("at the end of other calls"),
        _ => Finding::no("neither BPF LSM nor cgroup programs"),
    }
}

fn timed(machine: &KernelFacts) -> Finding {
    match probe::may_goto_is_timed() {
        Ok(true) => Finding::yes(""),
        Ok(false) => Finding::no("bounded by a number of iterations"),
        Err(refusal) => machine.refusal_finding(&refusal).fallback("bpf_loop"),
    }
}
