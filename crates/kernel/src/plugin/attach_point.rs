//! The attach points of plugins' programs: their types for the kernel, and how programs are
//! attached outside of the gate.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use libbpf_rs::libbpf_sys::{self, bpf_link_create_opts};

use super::gate_hooks::GATE_HOOKS;
use super::load::{LoadAttributes, descriptor, instruction, load_program};
use super::program_info::name_of;
use super::{tracefs, type_cache};
use crate::error::{Error, ErrorContext, Result};
use crate::mounts::cgroup2_root;
use crate::perf_event::{
    PERF_COUNT_SW_CPU_CLOCK, PERF_TYPE_SOFTWARE, PERF_TYPE_TRACEPOINT, PerfEvent,
};

/// A point of the kernel where a program can be attached.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum AttachPoint {
    /// None: the program is called on demand.
    Call,
    /// A gate hook: one of `wire::plugin_hook`.
    Gate(u32),
    /// A hook of cgroups, by the kernel's name. Programs are attached to the root cgroup.
    Cgroup(&'static str),
    /// XDP of a network device, by the device's name.
    Xdp(String),
    /// tcx ingress of a network device, by the device's name.
    Ingress(String),
    /// tcx egress of a network device, by the device's name.
    Egress(String),
    /// A tracepoint, such as `sched:sched_switch`.
    Tracepoint(String),
    /// A timer on the first processor, with this period.
    Timer(Duration),
}

/// The hooks of cgroups, with the program type and the attach type.
const CGROUP_HOOKS: [(&str, u32, u32); 7] = [
    (
        "cgroup/connect4",
        libbpf_sys::BPF_PROG_TYPE_CGROUP_SOCK_ADDR,
        libbpf_sys::BPF_CGROUP_INET4_CONNECT,
    ),
    (
        "cgroup/connect6",
        libbpf_sys::BPF_PROG_TYPE_CGROUP_SOCK_ADDR,
        libbpf_sys::BPF_CGROUP_INET6_CONNECT,
    ),
    (
        "cgroup/sendmsg4",
        libbpf_sys::BPF_PROG_TYPE_CGROUP_SOCK_ADDR,
        libbpf_sys::BPF_CGROUP_UDP4_SENDMSG,
    ),
    (
        "cgroup/sendmsg6",
        libbpf_sys::BPF_PROG_TYPE_CGROUP_SOCK_ADDR,
        libbpf_sys::BPF_CGROUP_UDP6_SENDMSG,
    ),
    ("cgroup/bind4", libbpf_sys::BPF_PROG_TYPE_CGROUP_SOCK_ADDR, libbpf_sys::BPF_CGROUP_INET4_BIND),
    ("cgroup/bind6", libbpf_sys::BPF_PROG_TYPE_CGROUP_SOCK_ADDR, libbpf_sys::BPF_CGROUP_INET6_BIND),
    (
        "cgroup/sock_create",
        libbpf_sys::BPF_PROG_TYPE_CGROUP_SOCK,
        libbpf_sys::BPF_CGROUP_INET_SOCK_CREATE,
    ),
];

impl AttachPoint {
    /// The attach point of a program in this section. `selected` is what its handler selects: a
    /// device, a tracepoint or a period.
    pub fn new(section: &str, selected: &[String]) -> Result<Self> {
        if let Some(hook) = GATE_HOOKS.iter().position(|hook| hook.section == section) {
            return Ok(Self::Gate(hook as u32));
        }
        if let Some((name, ..)) = CGROUP_HOOKS.iter().find(|(name, ..)| *name == section) {
            return Ok(Self::Cgroup(name));
        }
        let first = || selected.first().cloned().unwrap_or_default();
        Ok(match section {
            "xdp" => Self::Xdp(first()),
            "tcx/ingress" => Self::Ingress(first()),
            "tcx/egress" => Self::Egress(first()),
            "tp" => Self::Tracepoint(first()),
            "perf_event" => Self::Timer(interval(&first()).unwrap_or_default()),
            _ => Self::Call,
        })
    }

    /// How a program is loaded for this attach point. Fails if the kernel has no type information
    /// for the attach point.
    pub fn load_attributes(&self) -> Result<LoadAttributes> {
        let kind = |program, attach| LoadAttributes { program, attach, types: 0, flags: 0 };
        Ok(match self {
            // A program that is called may wait for pages of user space.
            Self::Call => LoadAttributes {
                flags: libbpf_sys::BPF_F_SLEEPABLE,
                ..kind(libbpf_sys::BPF_PROG_TYPE_SYSCALL, 0)
            },
            Self::Gate(hook) => {
                let types = type_cache::tracepoint(GATE_HOOKS[*hook as usize].tracepoint)?;
                LoadAttributes {
                    types,
                    ..kind(libbpf_sys::BPF_PROG_TYPE_TRACING, libbpf_sys::BPF_TRACE_RAW_TP)
                }
            }
            Self::Cgroup(name) => {
                let row = CGROUP_HOOKS.iter().find(|(known, ..)| known == name);
                let (_, program, attach) = row.expect("it is made from one of them");
                kind(*program, *attach)
            }
            Self::Xdp(_) => kind(libbpf_sys::BPF_PROG_TYPE_XDP, libbpf_sys::BPF_XDP),
            Self::Ingress(_) => {
                kind(libbpf_sys::BPF_PROG_TYPE_SCHED_CLS, libbpf_sys::BPF_TCX_INGRESS)
            }
            Self::Egress(_) => {
                kind(libbpf_sys::BPF_PROG_TYPE_SCHED_CLS, libbpf_sys::BPF_TCX_EGRESS)
            }
            Self::Tracepoint(_) => kind(libbpf_sys::BPF_PROG_TYPE_TRACEPOINT, 0),
            Self::Timer(_) => kind(libbpf_sys::BPF_PROG_TYPE_PERF_EVENT, 0),
        })
    }

    /// Whether programs are attached to a network device.
    pub fn is_device_hook(&self) -> bool {
        matches!(self, Self::Xdp(_) | Self::Ingress(_) | Self::Egress(_))
    }

    /// What a program returns if there is no plugin: the kernel then continues as without a
    /// program.
    pub fn default_return(&self) -> i32 {
        match self {
            Self::Cgroup(_) => 1,
            Self::Xdp(_) => libbpf_sys::XDP_PASS as i32,
            // TCX_NEXT
            Self::Ingress(_) | Self::Egress(_) => -1,
            _ => 0,
        }
    }

    /// Loads a program that returns [`Self::default_return`] and does nothing else.
    pub fn empty_program(&self) -> Result<OwnedFd> {
        load_program(
            &[instruction(0xb7, 0, 0, self.default_return()), instruction(0x95, 0, 0, 0)],
            &self.load_attributes()?,
            None,
        )
    }

    /// Attaches a program, until the result is dropped. Nothing is attached for called programs and
    /// for the gate.
    pub fn attach(&self, program: BorrowedFd<'_>) -> Result<Vec<OwnedFd>> {
        let attach = self.load_attributes()?.attach;
        match self {
            Self::Call | Self::Gate(_) => Ok(Vec::new()),
            Self::Cgroup(_) => {
                let root = cgroup2_root().ok_or(Error::NoCgroup2)?;
                let root = File::open(&root).doing(format!("open {root}"))?;
                let link = link(program, root.as_raw_fd(), attach, 0);
                Ok(vec![link.doing("attach a plugin to the root of the control groups")?])
            }
            Self::Xdp(name) => {
                let device = device(name)?;
                // Some drivers cannot run XDP programs; the kernel then runs them later.
                let link = link(program, device, attach, 0)
                    .or_else(|_| link(program, device, attach, libbpf_sys::XDP_FLAGS_SKB_MODE));
                let link = link.or_else(|error| match xdp_program_of(device) {
                    Some(number) => Err(Error::XdpOccupied {
                        device: name.clone(),
                        number,
                        name: name_of(number).unwrap_or_default(),
                    }),
                    None => Err(error).doing(format!("attach a plugin to {name}")),
                });
                Ok(vec![link?])
            }
            Self::Ingress(name) | Self::Egress(name) => {
                let link = link(program, device(name)?, attach, 0);
                Ok(vec![link.doing(format!("attach a plugin to {name} (needs Linux 6.6)"))?])
            }
            Self::Tracepoint(name) => {
                let event = first_event(PERF_TYPE_TRACEPOINT, tracepoint_number(name)?, 0);
                attach_to_event(program, event.doing(format!("open the tracepoint {name}"))?)
            }
            Self::Timer(every) => {
                let period = every.as_nanos() as u64;
                let event = first_event(PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CPU_CLOCK, period);
                attach_to_event(program, event.doing("start a timer")?)
            }
        }
    }
}

fn link(program: BorrowedFd<'_>, to: i32, attach: u32, flags: u32) -> io::Result<OwnedFd> {
    let options = bpf_link_create_opts {
        sz: size_of::<bpf_link_create_opts>() as _,
        flags,
        ..Default::default()
    };
    // SAFETY: descriptors or numbers, and options that live until the call is over.
    descriptor(unsafe { libbpf_sys::bpf_link_create(program.as_raw_fd(), to, attach, &options) })
}

fn attach_to_event(program: BorrowedFd<'_>, event: OwnedFd) -> Result<Vec<OwnedFd>> {
    let link = link(program, event.as_fd().as_raw_fd(), libbpf_sys::BPF_PERF_EVENT, 0);
    Ok(vec![link.doing("attach a plugin to an event")?, event])
}

/// An event of the first processor. A tracepoint's programs run on all of them.
fn first_event(kind: u32, config: u64, sample_period: u64) -> io::Result<OwnedFd> {
    PerfEvent { kind, config, sample_period, flags: 0 }.open(0)
}

/// The number of a network device.
fn device(name: &str) -> Result<i32> {
    let text = CString::new(name).unwrap_or_default();
    // SAFETY: a text with its NUL.
    match unsafe { libc::if_nametoindex(text.as_ptr()) } {
        0 => Err(io::Error::last_os_error()).doing(format!("find the network device {name}")),
        number => Ok(number as i32),
    }
}

/// Whether a link to a network device is detached, because the device is gone.
pub fn is_detached(link: BorrowedFd<'_>) -> bool {
    // SAFETY: all zeros is a valid value of it.
    let mut info: libbpf_sys::bpf_link_info = unsafe { std::mem::zeroed() };
    let mut size = size_of_val(&info) as u32;
    // SAFETY: a destination for the result, with its size.
    let done =
        unsafe { libbpf_sys::bpf_link_get_info_by_fd(link.as_raw_fd(), &mut info, &mut size) };
    // SAFETY: the device's number is the first field of a link of XDP, and of a link of tcx.
    done == 0 && unsafe { info.__bindgen_anon_1.tcx.ifindex } == 0
}

/// The ID of the XDP program that a device has.
fn xdp_program_of(device: i32) -> Option<u32> {
    let mut number = 0;
    // SAFETY: a destination for the result.
    let status = unsafe { libbpf_sys::bpf_xdp_query_id(device, 0, &mut number) };
    (status == 0 && number != 0).then_some(number)
}

/// The number of a tracepoint for perf events.
fn tracepoint_number(name: &str) -> Result<u64> {
    let (subsystem, event) = name.split_once(':').unwrap_or(("", name));
    let text = tracefs::read(&format!("events/{subsystem}/{event}/id")).unwrap_or_default();
    text.trim()
        .parse()
        .map_err(|_| io::Error::from_raw_os_error(libc::ENOENT))
        .doing(format!("find the tracepoint {name}"))
}

/// Parses a period, such as "100ms", "2s" or "50us". `None` if it has no such form.
pub fn interval(text: &str) -> Option<Duration> {
    let unit = text.find(|letter: char| !letter.is_ascii_digit())?;
    let number: u64 = text[..unit].parse().ok()?;
    Some(match &text[unit..] {
        "s" => Duration::from_secs(number),
        "ms" => Duration::from_millis(number),
        "us" => Duration::from_micros(number),
        _ => return None,
    })
}
