//! Limits of services that control groups do not offer: sockets, connections, and bytes sent per
//! second.

use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd as _;

use libbpf_rs::Link;
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};

use crate::error::{ErrorContext as _, Result};
use crate::gate::Gate;
use crate::mapped_array::{MappedArray, field};
use crate::mounts::cgroup2_root;
use crate::skeletons::service_limits::{ServiceLimitsSkel, ServiceLimitsSkelBuilder};
use crate::wire;

/// The limits of a service and its descendants together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limit {
    /// The service above, whose limits apply as well.
    pub parent: u16,
    /// The maximum of open sockets.
    pub sockets: Option<u64>,
    /// The maximum of open outgoing TCP connections.
    pub connections: Option<u64>,
    /// The maximum rate of bytes sent to the network.
    pub bytes_per_second: Option<u64>,
    /// What happens to a thread that would exceed `sockets` or `connections`.
    pub over_limit: LimitAction,
}

/// What happens to a thread whose new socket or connection would be over a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitAction {
    /// The call fails with this errno, a positive number.
    Refused(i32),
    /// The thread works for this service from then on.
    WorksFor(u16),
}

impl Default for LimitAction {
    fn default() -> Self {
        Self::Refused(libc::EAGAIN)
    }
}

/// What the kernel side has counted for a service and its descendants.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LimitCounts {
    /// Sockets that are open now.
    pub sockets: u64,
    /// Outgoing TCP connections that are open now.
    pub connections: u64,
    /// Calls that failed because of a limit.
    pub refused: u64,
    /// How often a thread was bound to another service because of a limit.
    pub rebound: u64,
    /// Packets over the limit of bytes that were sent nevertheless, with a notification of
    /// congestion.
    pub slowed: u64,
    /// Packets over the limit of bytes that were dropped.
    pub dropped: u64,
}

/// The programs that apply the limits. They are detached when this is dropped.
pub struct SocketLimiter {
    /// By service number.
    limits: MappedArray<wire::service_limit>,
    skeleton: ServiceLimitsSkel<'static>,
    /// The root of cgroup v2.
    root: File,
    links: Vec<Link>,
    /// The link of the program that limits rates. It is attached only while a service has such a
    /// limit, because it runs for each packet that the machine sends.
    rates: Option<Link>,
}

impl SocketLimiter {
    /// Attaches the programs for sockets and connections. No service has a limit at first. Returns
    /// `None` if cgroup v2 is not mounted.
    pub fn start(gate: &Gate) -> Result<Option<Self>> {
        let Some(path) = cgroup2_root() else { return Ok(None) };
        let root = File::open(&path).doing(format!("open {path}"))?;
        // A skeleton borrows its object. The object is never freed, because a process starts
        // services only once.
        let object = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut skeleton = ServiceLimitsSkelBuilder::default()
            .open(object)
            .doing("opening the programs for limits of services")?;
        gate.share_maps(skeleton.open_object_mut())?;
        let constants =
            skeleton.maps.rodata_data.as_deref_mut().expect("the limits have constants");
        constants.config.enabled = wire::SERVICE;
        skeleton.progs.limit_sent.set_autoload(true);
        let skeleton = skeleton.load().doing("loading the programs for limits of services")?;
        let limits = MappedArray::new(&skeleton.maps.bss_limits, wire::SERVICES)?;
        let mut limits = Self { limits, skeleton, root, links: Vec::new(), rates: None };
        // None of the limits may be 0 when the programs are attached.
        (0..wire::SERVICES as u16).for_each(|number| limits.set(number, &Limit::default()));
        limits.links = limits.attach()?;
        Ok(Some(limits))
    }

    fn attach(&self) -> Result<Vec<Link>> {
        let programs = &self.skeleton.progs;
        let programs = [
            &programs.limit_release,
            &programs.limit_socket,
            &programs.limit_connect4,
            &programs.limit_connect6,
        ];
        let attach = |program: &libbpf_rs::ProgramMut| {
            program
                .attach_cgroup(self.root.as_raw_fd())
                .doing("attaching the programs for limits of services")
        };
        programs.into_iter().map(attach).collect()
    }

    /// Sets the limits of a service, and leaves its counts as they are.
    pub fn set(&self, number: u16, limit: &Limit) {
        let maximum = |value: Option<u64>| value.unwrap_or(wire::NO_LIMIT);
        let index = u32::from(number);
        let (error, fallback) = match limit.over_limit {
            LimitAction::Refused(error) => (-error, wire::SERVICE_NONE as u16),
            // The call fails with this error if the other service has reached its limit as well.
            LimitAction::WorksFor(service) => (-libc::EAGAIN, service),
        };
        field!(self.limits, index, parent).write(limit.parent);
        field!(self.limits, index, fallback).write(fallback);
        field!(self.limits, index, error).write(error);
        field!(self.limits, index, sockets_max).write(maximum(limit.sockets));
        field!(self.limits, index, connections_max).write(maximum(limit.connections));
        let rate = field!(self.limits, index, rate_max);
        let bytes_per_second = maximum(limit.bytes_per_second).max(1);
        if rate.read() != bytes_per_second {
            // What was sent at the previous rate must not delay packets now.
            field!(self.limits, index, sent_until_ns).write(0);
        }
        rate.write(bytes_per_second);
    }

    /// Attaches or detaches the program that limits the rates of sent bytes.
    pub fn set_rate_limiting(&mut self, is_needed: bool) -> Result<()> {
        if is_needed && self.rates.is_none() {
            let program = &self.skeleton.progs.limit_sent;
            self.rates = Some(
                program
                    .attach_cgroup(self.root.as_raw_fd())
                    .doing("attaching the programs for network limits")?,
            );
        } else if !is_needed {
            self.rates = None;
        }
        Ok(())
    }

    /// The present counts of a service.
    pub fn counts(&self, number: u16) -> LimitCounts {
        let limit = self.limits.read(number.into());
        LimitCounts {
            sockets: limit.sockets,
            connections: limit.connections,
            refused: limit.refused,
            rebound: limit.rebound,
            slowed: limit.slowed,
            dropped: limit.dropped,
        }
    }
}
