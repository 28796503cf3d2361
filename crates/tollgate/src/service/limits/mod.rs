//! Active limits: those that cgroups enforce, and those that the kernel side enforces where sockets
//! are created and used.

mod abandoned;
mod cgroups;
mod fair_share;
mod hierarchy;
mod migrator;
mod own_limits;
mod saved_origin;
mod watchdog;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use kernel::gate::Gate;
use kernel::service::migrations::MigrationSource;
use kernel::service::socket_limits::{Limit, LimitAction, LimitCounts};
use kernel::service::{KernelServices, Member, ServiceUsage};
use kernel::wire;
use service::AtEnd;

use super::registry::ServiceRegistry;
use super::requests::{LimitReport, LimitRow};
use crate::output::log_message;
pub use abandoned::lift_abandoned;
use cgroups::ServiceCgroups;
use fair_share::{CpuShare, FairShare, ShareState};
use hierarchy::{Controller, ServiceCgroup, ThreadId};
pub use migrator::MigrationStats;
use migrator::Migrator;
pub use own_limits::OwnLimits;
use watchdog::CgroupWatchdog;
pub use watchdog::run_watchdog;

pub struct Limiter {
    /// `None` if this machine has no cgroup v2 hierarchy, to which the programs would attach.
    sockets: Option<kernel::service::socket_limits::SocketLimiter>,
    cgroups: Arc<RwLock<ServiceCgroups>>,
    migrator: Migrator,
    watchdog: Option<CgroupWatchdog>,
    at_end: AtEnd,
    own: BTreeMap<u16, OwnLimits>,
    shares: FairShare,
    /// The usage at the last refresh of shares, while processors are contended.
    measured: Option<(Instant, BTreeMap<u16, ServiceUsage>)>,
}

impl Limiter {
    pub fn start(gate: &Gate) -> Result<Self> {
        if let Err(error) = cgroups::remove_orphaned() {
            log_message(&format!("{error:#}"));
        }
        let cgroups = Arc::new(RwLock::new(ServiceCgroups::default()));
        Ok(Self {
            sockets: kernel::service::socket_limits::SocketLimiter::start(gate)?,
            migrator: Migrator::start(MigrationSource::new(gate)?, Arc::clone(&cgroups))?,
            cgroups,
            watchdog: None,
            at_end: AtEnd::default(),
            own: BTreeMap::new(),
            shares: FairShare::default(),
            measured: None,
        })
    }

    pub fn own(&self) -> &BTreeMap<u16, OwnLimits> {
        &self.own
    }

    pub fn at_end(&self) -> AtEnd {
        self.at_end
    }

    /// Replaces the limits. If this fails, the caller must activate the previous ones again.
    pub fn activate(
        &mut self,
        services: &KernelServices,
        registry: &ServiceRegistry,
        own: BTreeMap<u16, OwnLimits>,
        at_end: AtEnd,
    ) -> Result<()> {
        if self.sockets.is_none() && own.values().any(|own| own.limits.needs_socket_hooks()) {
            bail!(
                "limits on sockets need cgroup v2, which is not mounted here (mount -t cgroup2 \
                none DIRECTORY)"
            );
        }
        let owners: BTreeSet<u16> = own
            .iter()
            .filter(|(_, own)| own.limits.needs_cgroup())
            .map(|(number, _)| *number)
            .collect();
        let wanted = wanted_cgroups(registry, &own, &owners);
        let has_cgroups = !wanted.is_empty();
        {
            let mut cgroups =
                self.cgroups.write().ok().context(
                    "the thread that migrates threads between control groups has failed",
                )?;
            let hierarchies = cgroups.reserve(&wanted)?;
            let kept = cgroups.set(hierarchies, wanted);
            services
                .reset_cgroups(|service| kept.as_ref().is_ok_and(|kept| kept.contains(&service)));
            kept?;
        }
        if has_cgroups {
            cgroups::set_kept(at_end == AtEnd::Keep)?;
        }
        self.at_end = at_end;
        self.own = own;
        // The cgroups now have the weights of the file, or of `limit`.
        self.shares = FairShare::default();
        self.measured = None;
        for number in registry.all() {
            services.set_cgroup(
                number,
                self.cgroup_owner(registry, number),
                self.migrate_flags(registry, number),
            );
        }
        self.limit_sockets(registry)?;
        self.ensure_watchdog(has_cgroups && at_end == AtEnd::Lift)
    }

    fn migrate_flags(&self, registry: &ServiceRegistry, number: u16) -> u32 {
        let limits: Vec<_> = registry
            .ancestors(number)
            .filter_map(|above| self.own.get(&above))
            .map(|own| &own.limits)
            .collect();
        let mut flags = 0;
        if limits.iter().any(|limits| limits.applies_from_start()) {
            flags |= wire::MIGRATE_AT_ONCE;
        }
        if limits.iter().any(|limits| limits.cpu_max.is_some()) {
            flags |= wire::MIGRATE_UNCONTENDED;
        }
        flags
    }

    fn limit_sockets(&mut self, registry: &ServiceRegistry) -> Result<()> {
        let Some(sockets) = &mut self.sockets else { return Ok(()) };
        for number in registry.active() {
            let own = self.own.get(&number).cloned().unwrap_or_default();
            let over_limit = match (own.works_for, own.limits.over_limit) {
                (Some(other), _) => LimitAction::WorksFor(registry.successor(other)),
                (None, service::OverLimit::Fails(errno)) => LimitAction::Refused(errno.number()),
                (None, service::OverLimit::WorksFor(_)) => LimitAction::default(),
            };
            let limit = Limit {
                parent: registry.get(number).parent,
                sockets: own.limits.sockets_max,
                connections: own.limits.connections_max,
                bytes_per_second: own.limits.network_max,
                over_limit,
            };
            sockets.set(number, &limit);
        }
        sockets.set_rate_limiting(self.own.values().any(|own| own.limits.network_max.is_some()))?;
        Ok(())
    }

    fn ensure_watchdog(&mut self, is_wanted: bool) -> Result<()> {
        match is_wanted {
            true if self.watchdog.is_none() => self.watchdog = Some(CgroupWatchdog::start()?),
            true => {}
            false => self.watchdog = None,
        }
        Ok(())
    }

    /// The service whose cgroup contains the members of this service, or 0.
    fn cgroup_owner(&self, registry: &ServiceRegistry, number: u16) -> u16 {
        let has_cgroup =
            |above: &u16| self.own.get(above).is_some_and(|own| own.limits.needs_cgroup());
        registry.ancestors(number).find(has_cgroup).unwrap_or(wire::SERVICE_ROOT as u16)
    }

    fn applies_from_start(&self, registry: &ServiceRegistry, number: u16) -> bool {
        registry
            .ancestors(number)
            .filter_map(|above| self.own.get(&above))
            .any(|own| own.limits.applies_from_start())
    }

    /// Adds a dynamic service.
    pub fn add_dynamic_service(
        &self,
        services: &KernelServices,
        registry: &ServiceRegistry,
        number: u16,
    ) {
        services.set_cgroup(
            number,
            self.cgroup_owner(registry, number),
            self.migrate_flags(registry, number),
        );
    }

    /// Migrates at once the members whose own service has limits that apply from the start.
    pub fn migrate_own(&self, services: &KernelServices, registry: &ServiceRegistry) -> Result<()> {
        for member in services.members()?.iter().filter(|member| has_all_limits(member)) {
            let service = registry.successor(member.service);
            if self.applies_from_start(registry, service) {
                // If this fails, the kernel side requests the migration later, and a failure of
                // that is logged.
                let _ = self.migrate(services, member, service, registry);
            }
        }
        Ok(())
    }

    /// Migrates a thread that belongs to a service from now on: to the service's cgroup if the
    /// service has limits that apply from the start, and otherwise out of the cgroups of other
    /// services.
    pub fn migrate(
        &self,
        services: &KernelServices,
        member: &Member,
        service: u16,
        registry: &ServiceRegistry,
    ) -> Result<()> {
        let is_for_own = self.applies_from_start(registry, service);
        let owner = if is_for_own {
            self.cgroup_owner(registry, service)
        } else {
            wire::SERVICE_ROOT as u16
        };
        let mut migrated = Ok(false);
        services.migrate_with(member, owner, || {
            migrated = self
                .cgroups
                .read()
                .map_or(Ok(false), |cgroups| cgroups.migrate(ThreadId::of(member), owner, true));
            migrated.is_ok()
        });
        migrated.map(drop)
    }

    /// Whether any service has a weight, and threads of at least two services with cgroups have
    /// made others wait for a processor within `ago`.
    pub fn is_contended(&self, services: &KernelServices, ago: Duration) -> bool {
        let has_weights = self.own.values().any(|own| own.limits.cpu_weight.is_some());
        has_weights && services.contended(ago).into_iter().filter(|owner| *owner != 0).count() > 1
    }

    /// Whether no weight differs from its configured value.
    pub fn is_balanced(&self) -> bool {
        self.measured.is_none() && self.shares.is_balanced()
    }

    /// Adjusts weights so that services get their shares. `used` is the usage so far, or `None` if
    /// no processors are contended.
    pub fn balance(
        &mut self,
        registry: &ServiceRegistry,
        used: Option<BTreeMap<u16, ServiceUsage>>,
    ) -> Result<()> {
        let now = Instant::now();
        let measured = used.map(|used| (now, used));
        let (before, after) = (std::mem::replace(&mut self.measured, measured), &self.measured);
        let mut sharers = self.sharers(registry);
        let mut elapsed_ns = 0;
        if let (Some((began, before)), Some((_, after))) = (before, after) {
            elapsed_ns = now.duration_since(began).as_nanos() as u64;
            for (number, usage) in after {
                let before = before.get(number).copied().unwrap_or_default();
                let had = CpuShare {
                    cpu_ns: usage.cpu_ns.saturating_sub(before.cpu_ns),
                    wait_ns: usage.wait_ns.saturating_sub(before.wait_ns),
                };
                let owner = self.cgroup_owner(registry, *number);
                if let Some(one) = sharers.get_mut(&owner) {
                    one.own.add(had);
                }
                for above in registry.ancestors(owner).skip(1) {
                    if let Some(one) = sharers.get_mut(&above) {
                        one.descendants.add(had);
                    }
                }
            }
        }
        let cgroups =
            self.cgroups.read().ok().context("a thread that migrates others has failed")?;
        let mut done = Ok(());
        for (number, weight) in self.shares.step(&sharers, elapsed_ns) {
            match cgroups.set_weight(number, weight) {
                Ok(()) => self.shares.record_weight(number, weight, sharers[&number].weight),
                Err(error) => done = Err(error),
            }
        }
        done
    }

    /// The state of all services with cgroups, without their usage.
    fn sharers(&self, registry: &ServiceRegistry) -> BTreeMap<u16, ShareState> {
        let sharer = |(number, own): (&u16, &OwnLimits)| {
            let parent = registry.get(*number).parent;
            let sharer = ShareState {
                parent: self.cgroup_owner(registry, parent),
                weight: own.limits.cpu_weight.unwrap_or(hierarchy::WEIGHT),
                cap: own.limits.cpu_max.map_or(f64::INFINITY, |percent| f64::from(percent) / 100.0),
                own: CpuShare::default(),
                descendants: CpuShare::default(),
            };
            (*number, sharer)
        };
        self.own.iter().filter(|(_, own)| own.limits.needs_cgroup()).map(sharer).collect()
    }

    /// Replaces a watchdog that was killed.
    pub fn tend(&mut self) -> Result<()> {
        if self.watchdog.as_mut().is_some_and(CgroupWatchdog::is_gone) {
            self.watchdog = Some(CgroupWatchdog::start()?);
        }
        Ok(())
    }

    pub fn counts(&self, number: u16) -> LimitCounts {
        self.sockets.as_ref().map(|sockets| sockets.counts(number)).unwrap_or_default()
    }

    /// The report on all services with limits.
    pub fn report(&self, registry: &ServiceRegistry) -> LimitReport {
        let limited = registry.in_tree_order().into_iter().map(|(number, _)| number);
        let limited = limited.filter(|number| self.own.contains_key(number));
        LimitReport {
            schema: "tollgate.service.limit/1".into(),
            services: limited.map(|number| self.row(registry, number)).collect(),
            at_end: if self.at_end == AtEnd::Keep { "keep" } else { "lift" }.into(),
            migrations: self.migrations().into(),
        }
    }

    fn row(&self, registry: &ServiceRegistry, number: u16) -> LimitRow {
        let (OwnLimits { limits, works_for }, counts) = (&self.own[&number], self.counts(number));
        let over_limit = match (works_for, limits.over_limit) {
            (Some(other), _) => registry.get(registry.successor(*other)).name.clone(),
            (None, service::OverLimit::Fails(errno)) => errno.name().into(),
            (None, service::OverLimit::WorksFor(_)) => service::Errno::default().name().into(),
        };
        let used = |limit: Option<u64>, controller| {
            limit.and_then(|_| self.cgroups.read().ok()?.used(number, controller))
        };
        LimitRow {
            name: registry.get(number).name.clone(),
            cpu_weight: limits.cpu_weight,
            cpu_max_percent: limits.cpu_max,
            memory_max_bytes: limits.memory_max,
            memory_bytes: used(limits.memory_max, Controller::Memory),
            tasks_max: limits.tasks_max,
            tasks: used(limits.tasks_max, Controller::Pids),
            sockets_max: limits.sockets_max,
            connections_max: limits.connections_max,
            network_max_bytes_per_second: limits.network_max,
            over_limit,
            sockets: counts.sockets,
            connections: counts.connections,
            refused: counts.refused,
            went_over: counts.rebound,
            slowed_packets: counts.slowed,
            dropped_packets: counts.dropped,
        }
    }

    pub fn migrations(&self) -> MigrationStats {
        self.migrator.stats()
    }
}

impl Drop for Limiter {
    fn drop(&mut self) {
        let Ok(mut cgroups) = self.cgroups.write() else { return };
        let ended = match self.at_end {
            AtEnd::Lift => cgroups.tear_down(),
            // No process adjusts the shares any more, so set the weights of the file again.
            AtEnd::Keep => {
                // Continue with the others if one fails.
                let limited = self.own.iter().filter(|(_, own)| own.limits.needs_cgroup());
                let weighed = limited.map(|(number, own)| {
                    cgroups.set_weight(*number, own.limits.cpu_weight.unwrap_or(hierarchy::WEIGHT))
                });
                weighed.fold(Ok(()), Result::and)
            }
        };
        if let Err(error) = ended {
            log_message(&format!("{error:#}"));
        }
    }
}

/// Whether all limits of the service apply to a thread, not only those that also apply to work on
/// behalf of the service.
fn has_all_limits(member: &Member) -> bool {
    u32::from(member.binding) != wire::BINDING_REQUEST
}

/// The cgroups of the services with limits, parents first.
fn wanted_cgroups(
    registry: &ServiceRegistry,
    own: &BTreeMap<u16, OwnLimits>,
    owners: &BTreeSet<u16>,
) -> Vec<(u16, ServiceCgroup)> {
    let owners_above = |number| {
        registry.ancestors(number).filter(|above| owners.contains(above)).collect::<Vec<_>>()
    };
    let cgroup = |number: u16| {
        let names: Vec<_> = owners_above(number)
            .into_iter()
            .rev()
            .map(|above| registry.get(above).name.as_str())
            .collect();
        let is_inner =
            owners.iter().any(|other| *other != number && owners_above(*other).contains(&number));
        (
            number,
            ServiceCgroup {
                path: names
                    .iter()
                    .map(|name| saved_origin::service_folder(name))
                    .collect::<Vec<_>>()
                    .join("/"),
                limits: own[&number].limits.clone(),
                is_inner,
            },
        )
    };
    let mut cgroups: Vec<_> = owners.iter().copied().map(cgroup).collect();
    cgroups.sort_by_key(|(_, cgroup)| cgroup.path.matches('/').count());
    cgroups
}
