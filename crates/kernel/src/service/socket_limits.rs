//! Limits of services that control groups do not have: sockets, connections, bytes sent in a
//! second.

use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd as _;

use libbpf_rs::Link;
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};

use crate::enforcement::cgroup2_root;
use crate::error::{ErrorContext as _, Result};
use crate::gate::Gate;
use crate::mapped_array::{MappedArray, field};
use crate::skeletons::service_limits::{ServiceLimitsSkel, ServiceLimitsSkelBuilder};
use crate::wire;

/// Of one service and those below it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limit {
    pub parent: u16,
    pub sockets: Option<u64>,
    pub connections: Option<u64>,
    /// Bytes a second.
    pub bytes_per_second: Option<u64>,
    pub over_limit: LimitAction,
}

/// What happens to a thread that would exceed a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitAction {
    /// A positive errno.
    Refused(i32),
    WorksFor(u16),
}

impl Default for LimitAction {
    fn default() -> Self {
        Self::Refused(libc::EAGAIN)
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LimitCounts {
    pub sockets: u64,
    pub connections: u64,
    pub refused: u64,
    pub moved: u64,
    /// Packets.
    pub slowed: u64,
    pub dropped: u64,
}

/// Attached until dropped.
pub struct SocketLimiter {
    limits: MappedArray<wire::service_limit>,
    skeleton: ServiceLimitsSkel<'static>,
    root: File,
    links: Vec<Link>,
    /// Only if needed: each packet that the machine sends pays for it.
    rates: Option<Link>,
}

impl SocketLimiter {
    /// `None` if cgroup v2 is not mounted.
    pub fn start(gate: &Gate) -> Result<Option<Self>> {
        let Some(place) = cgroup2_root() else { return Ok(None) };
        let root = File::open(&place).doing(format!("open {place}"))?;
        // A skeleton borrows its object, which lives as long as the services.
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
        // Before the programs are attached.
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
        let most = |value: Option<u64>| value.unwrap_or(wire::NO_LIMIT);
        let index = u32::from(number);
        let (error, fallback) = match limit.over_limit {
            LimitAction::Refused(error) => (-error, wire::SERVICE_NONE as u16),
            // If that service is at its limit, too.
            LimitAction::WorksFor(service) => (-libc::EAGAIN, service),
        };
        field!(self.limits, index, parent).write(limit.parent);
        field!(self.limits, index, fallback).write(fallback);
        field!(self.limits, index, error).write(error);
        field!(self.limits, index, sockets_max).write(most(limit.sockets));
        field!(self.limits, index, connections_max).write(most(limit.connections));
        let rate = field!(self.limits, index, rate_max);
        let now = most(limit.bytes_per_second).max(1);
        if rate.read() != now {
            // What was sent at another rate is no debt.
            field!(self.limits, index, sent_until_ns).write(0);
        }
        rate.write(now);
    }

    /// Sets whether anything that is sent is checked.
    pub fn set_rate_limiting(&mut self, look: bool) -> Result<()> {
        if look && self.rates.is_none() {
            let program = &self.skeleton.progs.limit_sent;
            self.rates = Some(
                program
                    .attach_cgroup(self.root.as_raw_fd())
                    .doing("attaching the programs for network limits")?,
            );
        } else if !look {
            self.rates = None;
        }
        Ok(())
    }

    pub fn counts(&self, number: u16) -> LimitCounts {
        let limit = self.limits.read(number.into());
        LimitCounts {
            sockets: limit.sockets,
            connections: limit.connections,
            refused: limit.refused,
            moved: limit.rebound,
            slowed: limit.slowed,
            dropped: limit.dropped,
        }
    }
}
