//! Limits in force: what control groups keep, and what the kernel side keeps where sockets are made and used.

mod groups;
mod hierarchy;
mod mover;
mod origin;
mod shares;
mod warden;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use kernel::gate::Gate;
use kernel::limits::{Beyond, Counts, Limit};
use kernel::placements::Source;
use kernel::services::{Figures, Member};
use kernel::wire;
use service::{AtEnd, Limits};

use super::control::{LimitReport, LimitRow};
use super::numbers::Numbers;
use crate::daemon::control::tell;
use groups::Groups;
use hierarchy::{Controller, Group, Thread};
use mover::Mover;
pub use mover::Moves;
use shares::{Had, Sharer, Shares};
use warden::Warden;
pub use warden::keep;

/// Of a service; services are known by the numbers that the kernel side has for them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Own {
    pub limits: Limits,
    /// For whom those work who would have more sockets or connections.
    pub works_for: Option<u16>,
}

pub struct Limiter {
    /// None: this machine has no hierarchy of the second version, on which programs ask.
    sockets: Option<kernel::limits::Limits>,
    groups: Arc<RwLock<Groups>>,
    mover: Mover,
    warden: Option<Warden>,
    at_end: AtEnd,
    own: BTreeMap<u16, Own>,
    shares: Shares,
    /// What they had used when shares were looked at last, while services compete.
    measured: Option<(Instant, BTreeMap<u16, Figures>)>,
}

impl Limiter {
    pub fn start(gate: &Gate) -> Result<Self> {
        if let Err(error) = groups::lift_abandoned() {
            tell(&format!("{error:#}"));
        }
        let groups = Arc::new(RwLock::new(Groups::default()));
        Ok(Self {
            sockets: kernel::limits::Limits::start(gate)?,
            mover: Mover::start(Source::new(gate)?, Arc::clone(&groups))?,
            groups,
            warden: None,
            at_end: AtEnd::default(),
            own: BTreeMap::new(),
            shares: Shares::default(),
            measured: None,
        })
    }

    pub fn own(&self) -> &BTreeMap<u16, Own> {
        &self.own
    }

    pub fn at_end(&self) -> AtEnd {
        self.at_end
    }

    /// In place of those before. Where that fails, those before are to be put in force again.
    pub fn put_in_force(
        &mut self,
        services: &kernel::services::Services,
        numbers: &Numbers,
        own: BTreeMap<u16, Own>,
        at_end: AtEnd,
    ) -> Result<()> {
        if self.sockets.is_none() && own.values().any(|own| own.limits.has_sockets()) {
            bail!(
                "limits on sockets need cgroup v2, which is not mounted here (mount -t cgroup2 none DIRECTORY)"
            );
        }
        let owners: BTreeSet<u16> =
            own.iter().filter(|(_, own)| own.limits.has_group()).map(|(number, _)| *number).collect();
        let wanted = groups_of(numbers, &own, &owners);
        let has_groups = !wanted.is_empty();
        {
            let mut groups = self.groups.write().ok().context("a thread that moves others has failed")?;
            let hierarchies = groups.claim(&wanted)?;
            let kept = groups.set(hierarchies, wanted);
            services.forget_placed(|service| kept.as_ref().is_ok_and(|kept| kept.contains(&service)));
            kept?;
        }
        self.at_end = at_end;
        self.own = own;
        // The groups have the weights of the file, or of `limit`.
        self.shares = Shares::default();
        self.measured = None;
        for number in numbers.all() {
            services.place(number, self.owner(numbers, number), self.placing(numbers, number));
        }
        self.limit_sockets(numbers)?;
        self.watch_over(has_groups && at_end == AtEnd::Lift)
    }

    fn placing(&self, numbers: &Numbers, number: u16) -> u32 {
        let limits: Vec<_> =
            numbers.way_up(number).filter_map(|above| self.own.get(&above)).map(|own| &own.limits).collect();
        let mut placing = 0;
        if limits.iter().any(|limits| limits.is_for_own()) {
            placing |= wire::PLACE_AT_ONCE;
        }
        if limits.iter().any(|limits| limits.cpu_max.is_some()) {
            placing |= wire::PLACE_ALONE;
        }
        placing
    }

    fn limit_sockets(&mut self, numbers: &Numbers) -> Result<()> {
        let Some(sockets) = &mut self.sockets else { return Ok(()) };
        for number in numbers.there() {
            let own = self.own.get(&number).cloned().unwrap_or_default();
            let beyond = match (own.works_for, own.limits.beyond) {
                (Some(other), _) => Beyond::WorksFor(numbers.heir(other)),
                (None, service::Beyond::Fails(errno)) => Beyond::Refused(errno.number()),
                (None, service::Beyond::WorksFor(_)) => Beyond::default(),
            };
            let limit = Limit {
                parent: numbers.get(number).parent,
                sockets: own.limits.sockets_max,
                connections: own.limits.connections_max,
                rate: own.limits.network_max,
                beyond,
            };
            sockets.set(number, &limit);
        }
        sockets.look_at_rates(self.own.values().any(|own| own.limits.network_max.is_some()))?;
        Ok(())
    }

    fn watch_over(&mut self, is_wanted: bool) -> Result<()> {
        match is_wanted {
            true if self.warden.is_none() => self.warden = Some(Warden::start()?),
            true => {}
            false => self.warden = None,
        }
        Ok(())
    }

    /// In whose group its members are; 0: in nobody's.
    fn owner(&self, numbers: &Numbers, number: u16) -> u16 {
        let has_group = |above: &u16| self.own.get(above).is_some_and(|own| own.limits.has_group());
        numbers.way_up(number).find(has_group).unwrap_or(wire::SERVICE_ROOT as u16)
    }

    fn is_for_own(&self, numbers: &Numbers, number: u16) -> bool {
        numbers.way_up(number).filter_map(|above| self.own.get(&above)).any(|own| own.limits.is_for_own())
    }

    /// One that a rule has started.
    pub fn include(&self, services: &kernel::services::Services, numbers: &Numbers, number: u16) {
        services.place(number, self.owner(numbers, number), self.placing(numbers, number));
    }

    /// Puts those at once where their services' limits are for whom they are.
    pub fn place_own(&self, services: &kernel::services::Services, numbers: &Numbers) -> Result<()> {
        for member in services.members()?.iter().filter(|member| is_own(member)) {
            let service = numbers.heir(member.service);
            if self.is_for_own(numbers, service) {
                // Whom the kernel side asks for later is told of then, if it cannot be.
                let _ = self.place(services, member, service, numbers);
            }
        }
        Ok(())
    }

    /// Puts a thread, which belongs to a service from now on, where its limits are, if it has such that count from the first
    /// moment on, or out of others'.
    pub fn place(
        &self,
        services: &kernel::services::Services,
        member: &Member,
        service: u16,
        numbers: &Numbers,
    ) -> Result<()> {
        let is_for_own = self.is_for_own(numbers, service);
        let owner = if is_for_own { self.owner(numbers, service) } else { wire::SERVICE_ROOT as u16 };
        let mut placed = Ok(false);
        services.place_by(member, owner, || {
            placed =
                self.groups.read().map_or(Ok(false), |groups| groups.place(Thread::of(member), owner, true));
            placed.is_ok()
        });
        placed.map(drop)
    }

    /// Some services have weights, and two at least with groups want processors, or did not longer `ago`.
    pub fn have_to_share(&self, services: &kernel::services::Services, ago: Duration) -> bool {
        let has_weights = self.own.values().any(|own| own.limits.cpu_weight.is_some());
        has_weights && services.competing(ago).into_iter().filter(|owner| *owner != 0).count() > 1
    }

    /// Nothing is left to even out.
    pub fn is_even(&self) -> bool {
        self.measured.is_none() && self.shares.is_even()
    }

    /// Evens out what services have had of the machine, which have used so much by now. None: nobody has to share.
    pub fn share(&mut self, numbers: &Numbers, used: Option<BTreeMap<u16, Figures>>) -> Result<()> {
        let now = Instant::now();
        let measured = used.map(|used| (now, used));
        let (before, after) = (std::mem::replace(&mut self.measured, measured), &self.measured);
        let mut sharers = self.sharers(numbers);
        let mut elapsed_ns = 0;
        if let (Some((began, before)), Some((_, after))) = (before, after) {
            elapsed_ns = now.duration_since(began).as_nanos() as u64;
            for (number, figures) in after {
                let before = before.get(number).copied().unwrap_or_default();
                let had = Had {
                    cpu_ns: figures.cpu_ns.saturating_sub(before.cpu_ns),
                    wait_ns: figures.wait_ns.saturating_sub(before.wait_ns),
                };
                let owner = self.owner(numbers, *number);
                if let Some(one) = sharers.get_mut(&owner) {
                    one.own.add(had);
                }
                for above in numbers.way_up(owner).skip(1) {
                    if let Some(one) = sharers.get_mut(&above) {
                        one.below.add(had);
                    }
                }
            }
        }
        let groups = self.groups.read().ok().context("a thread that moves others has failed")?;
        let mut done = Ok(());
        for (number, weight) in self.shares.step(&sharers, elapsed_ns) {
            match groups.weigh(number, weight) {
                Ok(()) => self.shares.note(number, weight, sharers[&number].weight),
                Err(error) => done = Err(error),
            }
        }
        done
    }

    /// Of all that have groups, without what they have used.
    fn sharers(&self, numbers: &Numbers) -> BTreeMap<u16, Sharer> {
        let sharer = |(number, own): (&u16, &Own)| {
            let parent = numbers.get(*number).parent;
            let sharer = Sharer {
                within: self.owner(numbers, parent),
                weight: own.limits.cpu_weight.unwrap_or(hierarchy::WEIGHT),
                most: own.limits.cpu_max.map_or(f64::INFINITY, |percent| f64::from(percent) / 100.0),
                own: Had::default(),
                below: Had::default(),
            };
            (*number, sharer)
        };
        self.own.iter().filter(|(_, own)| own.limits.has_group()).map(sharer).collect()
    }

    /// A warden that was killed has a successor.
    pub fn tend(&mut self) -> Result<()> {
        if self.warden.as_mut().is_some_and(Warden::is_gone) {
            self.warden = Some(Warden::start()?);
        }
        Ok(())
    }

    pub fn counts(&self, number: u16) -> Counts {
        self.sockets.as_ref().map(|sockets| sockets.counts(number)).unwrap_or_default()
    }

    /// Of all that have limits.
    pub fn report(&self, numbers: &Numbers) -> LimitReport {
        let limited = numbers.as_tree().into_iter().map(|(number, _)| number);
        let limited = limited.filter(|number| self.own.contains_key(number));
        LimitReport {
            schema: "tollgate.service.limit/1".into(),
            services: limited.map(|number| self.row(numbers, number)).collect(),
            at_end: if self.at_end == AtEnd::Keep { "keep" } else { "lift" }.into(),
            moves: self.moves().into(),
        }
    }

    fn row(&self, numbers: &Numbers, number: u16) -> LimitRow {
        let (Own { limits, works_for }, counts) = (&self.own[&number], self.counts(number));
        let beyond = match (works_for, limits.beyond) {
            (Some(other), _) => numbers.get(numbers.heir(*other)).name.clone(),
            (None, service::Beyond::Fails(errno)) => errno.name().into(),
            (None, service::Beyond::WorksFor(_)) => service::Errno::default().name().into(),
        };
        let used = |limit: Option<u64>, controller| {
            limit.and_then(|_| self.groups.read().ok()?.used(number, controller))
        };
        LimitRow {
            name: numbers.get(number).name.clone(),
            cpu_weight: limits.cpu_weight,
            cpu_max_percent: limits.cpu_max,
            memory_max_bytes: limits.memory_max,
            memory_bytes: used(limits.memory_max, Controller::Memory),
            tasks_max: limits.tasks_max,
            tasks: used(limits.tasks_max, Controller::Pids),
            sockets_max: limits.sockets_max,
            connections_max: limits.connections_max,
            network_max_bytes_per_second: limits.network_max,
            beyond,
            sockets: counts.sockets,
            connections: counts.connections,
            refused: counts.refused,
            went_over: counts.moved,
            slowed_packets: counts.slowed,
            dropped_packets: counts.dropped,
        }
    }

    pub fn moves(&self) -> Moves {
        self.mover.moves()
    }
}

impl Drop for Limiter {
    fn drop(&mut self) {
        let Ok(mut groups) = self.groups.write() else { return };
        let ended = match self.at_end {
            AtEnd::Lift => groups.lift(),
            // Nobody looks at shares any more: as the file has them.
            AtEnd::Keep => {
                // All of them, also where one fails.
                let limited = self.own.iter().filter(|(_, own)| own.limits.has_group());
                let weighed = limited.map(|(number, own)| {
                    groups.weigh(*number, own.limits.cpu_weight.unwrap_or(hierarchy::WEIGHT))
                });
                weighed.fold(Ok(()), Result::and)
            }
        };
        if let Err(error) = ended {
            tell(&format!("{error:#}"));
        }
    }
}

/// It is under all limits of its service, and not for as long as it works for it.
fn is_own(member: &Member) -> bool {
    u32::from(member.borrowed) != wire::BORROWED_FOR_WORK
}

/// Each after those above it.
fn groups_of(numbers: &Numbers, own: &BTreeMap<u16, Own>, owners: &BTreeSet<u16>) -> Vec<(u16, Group)> {
    let owners_above =
        |number| numbers.way_up(number).filter(|above| owners.contains(above)).collect::<Vec<_>>();
    let group = |number: u16| {
        let names: Vec<_> =
            owners_above(number).into_iter().rev().map(|above| numbers.get(above).name.as_str()).collect();
        let is_inner = owners.iter().any(|other| *other != number && owners_above(*other).contains(&number));
        (
            number,
            Group {
                path: names.iter().map(|name| origin::service_folder(name)).collect::<Vec<_>>().join("/"),
                limits: own[&number].limits.clone(),
                is_inner,
            },
        )
    };
    let mut groups: Vec<_> = owners.iter().copied().map(group).collect();
    groups.sort_by_key(|(_, group)| group.path.matches('/').count());
    groups
}
