//! Services in the kernel: the active rules, the threads' bindings, and the services' usage.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use libbpf_rs::{ErrorKind, MapCore as _, MapFlags};
use zerocopy::{FromBytes, IntoBytes, KnownLayout};

use crate::clock::now_ns;
use crate::cpus;
use crate::error::{Error, ErrorContext, Result};
use crate::gate::{Gate, IteratorKind, Iterators, KernelSide, LazyMaps, Lock};
use crate::mapped_array::{MappedArray, atomic_field, field};
use crate::session::Session;
use crate::skeletons::gate::OpenGateMaps;
use crate::wire;

/// What was used. Times in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct ServiceUsage {
    pub cpu_ns: u64,
    pub wait_ns: u64,
    pub blocked_ns: u64,
    pub calls: u64,
    pub switches: u64,
    pub preemptions: u64,
    pub minor_faults: u64,
    pub major_faults: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub storage_read_bytes: u64,
    pub storage_written_bytes: u64,
    pub received_bytes: u64,
    pub sent_bytes: u64,
    /// How often usage was charged.
    pub charges: u64,
    /// Replies to others, sent by threads that worked for the service by then.
    pub shared_replies: u64,
}

/// A thread, and the service that it works for.
#[derive(Debug, Clone)]
pub struct Member {
    /// As this process's PID namespace numbers them.
    pub pid: u32,
    pub tgid: u32,
    slot: u32,
    epoch: u16,
    /// When the thread began (CLOCK_BOOTTIME): thread numbers are reused.
    pub began_ns: u64,
    pub command: String,
    pub service: u16,
    /// One of [`wire::service_why`].
    pub why: u8,
    /// One of [`wire::service_binding`].
    pub binding: u8,
    /// The position of the rule that decided, if one did, in the ruleset of this number.
    pub rule: Option<usize>,
    pub ruleset: u32,
    pub user: u32,
    /// `None`: since the ruleset became active.
    pub bound_ns: Option<u64>,
    /// Usage that was not charged yet, and the service that it will be charged to: not always the
    /// one that the thread works for from now on.
    pub uncharged: ServiceUsage,
    pub uncharged_for: u16,
}

/// What distinguishes the services that one rule starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DynamicKey {
    User(u32),
    /// Hash of the unit's name.
    Unit(u64),
    /// Hash of the program's path.
    Exe(u64),
    Client(IpAddr),
}

/// A service that a rule has started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DynamicService {
    pub number: u16,
    pub parent: u16,
    pub key: DynamicKey,
    /// Of its first member: the unit, or the program's file without folders; empty: neither is
    /// known.
    pub first_member: String,
}

/// Rules as [`wire::service_ruleset`] has them.
pub struct KernelRuleset {
    /// Bits of [`wire::service_field`] for which threads need hashes, besides those of the tuples.
    pub fields: u32,
    pub tuples: Vec<wire::service_tuple>,
    /// Indices of `tuples`, for each event.
    pub tuples_by_event: [Vec<usize>; wire::SERVICE_EVENTS as usize],
    /// The index of the rule's tuple, the hash, and the rule.
    pub rules: Vec<(usize, u64, wire::service_rule)>,
}

/// Of [`KernelRuleset::tuples_by_event`]: files that are opened.
const OPEN: usize = wire::EVENT_OPEN as usize;

/// The active services, as long as their session lives.
pub struct KernelServices {
    services: MappedArray<wire::service>,
    books: MappedArray<[wire::service_ruleset; 2]>,
    members: MappedArray<wire::service_member>,
    iterators: Iterators,
    /// Keys of the rules of the active ruleset.
    rules: Vec<wire::service_key>,
}

impl ServiceUsage {
    fn new(account: &wire::service_account) -> Self {
        let wire::service_account {
            task,
            present_ns,
            calls,
            received_bytes,
            sent_bytes,
            charges,
            shared_replies,
        } = *account;
        Self {
            cpu_ns: task.cpu_ns,
            wait_ns: task.wait_ns,
            blocked_ns: present_ns.wrapping_sub(task.cpu_ns).wrapping_sub(task.wait_ns),
            calls,
            switches: task.switches,
            preemptions: task.preemptions,
            minor_faults: task.minor_faults,
            major_faults: task.major_faults,
            read_bytes: task.read_bytes,
            written_bytes: task.written_bytes,
            storage_read_bytes: task.storage_read_bytes,
            storage_written_bytes: task.storage_written_bytes,
            received_bytes,
            sent_bytes,
            charges,
            shared_replies,
        }
    }

    fn as_array_mut(&mut self) -> [&mut u64; 16] {
        let values: &mut [u64; 16] = zerocopy::transmute_mut!(self);
        values.each_mut()
    }

    /// Adds usage. Differences may be below zero for a moment: if a binding changes between two
    /// ticks, the thread is charged by the clock, which may be ahead of the scheduler.
    pub fn add(&mut self, mut other: Self) {
        for (sum, more) in self.as_array_mut().into_iter().zip(other.as_array_mut()) {
            *sum = sum.wrapping_add(*more);
        }
    }

    /// Replaces values below zero by zero.
    pub fn non_negative(mut self) -> Self {
        self.as_array_mut()
            .into_iter()
            .filter(|value| **value > i64::MAX as u64)
            .for_each(|value| *value = 0);
        self
    }

    /// Keeps each value from being less than it was reported before.
    pub fn monotonic_from(mut self, mut before: Self) -> Self {
        for (now, before) in self.as_array_mut().into_iter().zip(before.as_array_mut()) {
            *now = (*now).max(*before);
        }
        self
    }
}

/// How long to wait for memory for accounts, and how long at a time.
const OPENING: Duration = Duration::from_secs(1);
const MEMORY_PAUSE: Duration = Duration::from_millis(1);

/// An account to which nothing is charged yet.
fn open_account(gate: &Gate, number: u32, flags: MapFlags) -> libbpf_rs::Result<()> {
    let nothing = wire::service_account::default();
    let zeroes = vec![nothing.as_bytes().to_vec(); cpus::possible()];
    gate.maps.get("service_accounts").update_percpu(&number.to_ne_bytes(), &zeroes, flags)
}

impl KernelServices {
    /// Makes every thread that the gate knows, or will know, a member: at first of the root.
    pub fn start(gate: &Gate, session: &Session) -> Result<Self> {
        // Only one process starts at a time.
        let _lock = Lock::take()?;
        let other = atomic_field!(gate.header, 0, services_session).load(Ordering::SeqCst);
        if other != 0 && gate.is_open(other) {
            return Err(Error::ServicesInForce(gate.sessions.read(other).owner_pid));
        }
        let iterators = [IteratorKind::Members, IteratorKind::Ask];
        let services = Self {
            services: MappedArray::new(gate.maps.get(".bss.services"), wire::SERVICES)?,
            books: MappedArray::new(gate.maps.get(".bss.rulesets"), 1)?,
            members: MappedArray::new(gate.maps.get(".bss.members"), wire::THREADS)?,
            iterators: gate.load_iterators(&iterators)?,
            rules: Vec::new(),
        };
        // Left by an earlier session.
        for number in 0..wire::SERVICES as u16 {
            services.write_service(number, wire::SERVICE_ROOT as u16, wire::SERVICE_ROOT as u16);
        }
        delete_entries(gate, "service_accounts", wire::SERVICES);
        delete_entries(gate, "service_rules", 2 * wire::SERVICE_RULES);
        delete_entries(gate, "service_dynamic", wire::SERVICES);
        let free = gate.maps.get("service_free_numbers");
        while free.lookup_and_delete(&[]).doing("clearing the list of free service IDs")?.is_some()
        {
        }
        atomic_field!(gate.header, 0, next_service).store(wire::SERVICES_DYNAMIC, Ordering::SeqCst);
        // For threads that begin before there are rules.
        for number in [wire::SERVICE_ROOT, wire::SERVICE_SHARED] {
            services.add(gate, number as u16)?;
        }
        atomic_field!(gate.header, 0, services_session).store(session.index, Ordering::SeqCst);
        Ok(services)
    }

    fn write_service(&self, number: u16, heir: u16, known_as: u16) {
        let wire::service { cgroup_of, migrate_flags, .. } = self.services.read(heir.into());
        field!(self.services, number.into(), successor).write(heir);
        field!(self.services, number.into(), rule_service).write(known_as);
        self.set_cgroup(number, cgroup_of, migrate_flags.into());
    }

    /// Sets the service in whose control group its threads run, and when they are migrated there:
    /// [`wire::service_migrate_flags`].
    pub fn set_cgroup(&self, number: u16, place: u16, placing: u32) {
        field!(self.services, number.into(), cgroup_of).write(place);
        field!(self.services, number.into(), migrate_flags).write(placing as u16);
    }

    /// The services whose control groups have threads that kept others waiting, not longer than
    /// `ago` ago.
    pub fn contended(&self, ago: Duration) -> BTreeSet<u16> {
        let since = now_ns().saturating_sub(ago.as_nanos() as u64);
        let all = (0..wire::SERVICES).map(|number| self.services.read(number));
        all.filter(|service| service.contended_until_ns > since)
            .map(|service| service.cgroup_of)
            .collect()
    }

    /// Adds a service that members may have, with its account.
    pub fn add(&self, gate: &Gate, number: u16) -> Result<()> {
        self.write_service(number, number, number);
        open_account(gate, number.into(), MapFlags::ANY).doing("creating a service's account")
    }

    /// Makes the accounts of services that rules will start. The gate itself gets memory for them
    /// only from the kernel's reserve, which is refilled too late on a busy machine
    /// (`__alloc_percpu_gfp` with GFP_NOWAIT, mm/percpu.c). If memory is short here as well, the
    /// gate makes the rest.
    fn open_accounts(&self, gate: &Gate) -> Result<()> {
        let end = Instant::now() + OPENING;
        for number in self.next_started(gate)..wire::SERVICES {
            loop {
                match open_account(gate, number, MapFlags::NO_EXIST) {
                    Err(error) if error.kind() == ErrorKind::OutOfMemory => {
                        if Instant::now() > end {
                            return Ok(());
                        }
                        thread::sleep(MEMORY_PAUSE);
                    }
                    // Made for an earlier file, or by the gate just now.
                    Err(error) if error.kind() == ErrorKind::AlreadyExists => break,
                    opened => break opened.doing("opening accounts of services to be started")?,
                }
            }
        }
        Ok(())
    }

    fn next_started(&self, gate: &Gate) -> u32 {
        atomic_field!(gate.header, 0, next_service).load(Ordering::SeqCst)
    }

    /// Its members belong to the successor from now on.
    pub fn set_successor(&self, number: u16, heir: u16) {
        self.write_service(number, heir, heir);
    }

    /// All services that rules have started.
    pub fn dynamic_services(&self, gate: &Gate) -> Result<Vec<DynamicService>> {
        let map = gate.maps.get("service_dynamic");
        let mut all = Vec::new();
        for key in map.keys().take(wire::SERVICES as usize) {
            if let Some(start) = map
                .lookup(&key, MapFlags::ANY)
                .doing("reading the services that rules have started")?
            {
                all.push(started(&decode(&key), &decode(&start)));
            }
        }
        Ok(all)
    }

    /// Removes a dynamic service, whose members belong to a successor from now on.
    pub fn remove_dynamic_service(&self, gate: &Gate, started: &DynamicService, heir: u16) {
        self.set_successor(started.number, heir);
        let map = gate.maps.get("service_dynamic");
        let keys: Vec<_> = map.keys().take(wire::SERVICES as usize).collect();
        for key in keys {
            let start = map.lookup(&key, MapFlags::ANY).ok().flatten();
            if start.is_some_and(|start| {
                decode::<wire::dynamic_service>(&start).number == u32::from(started.number)
            }) {
                let _ = map.delete(&key);
            }
        }
    }

    /// Activates a ruleset by one store, in place of the previous one. Returns its number.
    pub fn activate(&mut self, gate: &mut Gate, book: &KernelRuleset) -> Result<u32> {
        if !book.tuples_by_event[OPEN].is_empty() {
            gate.extend(wire::SERVICE_FILES)?;
        }
        if book.rules.iter().any(|(_, _, rule)| u32::from(rule.then) == wire::ACTION_CREATES) {
            self.open_accounts(gate)?;
        }
        let number = atomic_field!(gate.header, 0, ruleset).load(Ordering::SeqCst) + 1;
        let rules = gate.maps.get("service_rules");
        let mut keys = Vec::new();
        let mut put = || {
            for (set, hash, rule) in &book.rules {
                let key = wire::service_key { ruleset: number, tuple: *set as u32, hash: *hash };
                // Two rules have one hash only by chance: then the first decides.
                if rules
                    .lookup(key.as_bytes(), MapFlags::ANY)
                    .doing("reading the rules of services")?
                    .is_none()
                {
                    rules
                        .update(key.as_bytes(), rule.as_bytes(), MapFlags::ANY)
                        .doing("writing the rules of services")?;
                    keys.push(key);
                }
            }
            Ok(())
        };
        if let Err(error) = put() {
            delete_rules(gate, &keys);
            return Err(error);
        }
        let mut page = wire::service_ruleset { number, ..Default::default() };
        page.tuple[..book.tuples.len()].copy_from_slice(&book.tuples);
        page.file_depth = book.tuples.iter().map(|set| set.file_depth.into()).max().unwrap_or(0);
        page.fields = book.tuples.iter().fold(book.fields, |all, set| all | u32::from(set.fields));
        for (event, asked) in book.tuples_by_event.iter().enumerate() {
            page.tuple_count[event] = asked.len() as u32;
            for (place, set) in asked.iter().enumerate() {
                page.tuples_of_event[event * wire::SERVICE_TUPLES as usize + place] = *set as u8;
            }
        }
        // The gate does not read the one of the two rulesets that is not active.
        let mut rulesets = self.books.whole(0).elements();
        rulesets.nth(number as usize & 1).expect("there are two").write(page);
        atomic_field!(gate.header, 0, ruleset).store(number, Ordering::SeqCst);
        cpus::wait_for_all();
        delete_rules(gate, &std::mem::replace(&mut self.rules, keys));
        Ok(number)
    }

    /// Matches the rules for all running threads.
    pub fn reclassify_all(&self) -> Result<()> {
        self.iterators.run(IteratorKind::Ask).map(drop)
    }

    /// All members.
    pub fn members(&self) -> Result<Vec<Member>> {
        let told = self.iterators.run(IteratorKind::Members)?;
        Ok(records(&told).iter().map(member).collect())
    }

    /// All sockets by which a thread has sent or received.
    pub fn sockets(&self, gate: &Gate) -> Result<Vec<wire::service_socket_record>> {
        let sockets = gate.load_iterators(&[IteratorKind::Sockets])?;
        let told = sockets.run(IteratorKind::Sockets)?;
        Ok(records(&told))
    }

    /// What was charged to the services with accounts.
    pub fn accounts(&self, gate: &Gate) -> Result<BTreeMap<u16, ServiceUsage>> {
        let accounts = gate.maps.get("service_accounts");
        let mut all = BTreeMap::new();
        let next = self.next_started(gate);
        let is_used = |key: &Vec<u8>| {
            let number = decode::<u32>(key);
            number < wire::SERVICES_DYNAMIC || number < next
        };
        for key in accounts.keys().filter(is_used) {
            let values = accounts
                .lookup_percpu(&key, MapFlags::ANY)
                .doing("reading the accounts of services")?;
            let mut sum = ServiceUsage::default();
            values.iter().flatten().for_each(|bytes| sum.add(ServiceUsage::new(&decode(bytes))));
            all.insert(decode::<u32>(&key) as u16, sum);
        }
        Ok(all)
    }

    fn in_cgroup_of(&self, slot: u32) -> &AtomicU16 {
        atomic_field!(self.members, slot, in_cgroup_of)
    }

    /// Migrates a thread without a request of the kernel side; what the kernel side requests
    /// meanwhile counts.
    pub fn migrate_with(&self, member: &Member, place: u16, is_moved: impl FnOnce() -> bool) {
        let is_still_it = || self.members.read(member.slot).epoch == member.epoch;
        let before = self.in_cgroup_of(member.slot).load(Ordering::SeqCst);
        if is_still_it() && is_moved() && is_still_it() {
            let _ = self.in_cgroup_of(member.slot).compare_exchange(
                before,
                place,
                Ordering::SeqCst,
                Ordering::SeqCst,
            );
        }
    }

    /// Records that all threads are where they came from, except those in the control groups of
    /// services that are kept.
    pub fn reset_cgroups(&self, is_kept: impl Fn(u16) -> bool) {
        for slot in 1..wire::THREADS {
            let placed = self.members.read(slot).in_cgroup_of;
            let is_known =
                placed != wire::SERVICE_ROOT as u16 && placed != wire::CGROUP_UNKNOWN as u16;
            if is_known && !is_kept(placed) {
                self.in_cgroup_of(slot).store(wire::SERVICE_ROOT as u16, Ordering::SeqCst);
            }
        }
    }

    /// Assigns a thread to a service, from its next call or switch on. False: the member has
    /// changed, and its slot may be another thread's by now.
    pub fn assign(&self, member: &Member, service: u16) -> bool {
        if self.members.read(member.slot).epoch != member.epoch {
            return false;
        }
        let message = u64::from(wire::MESSAGE_ASSIGN)
            | u64::from(service) << wire::MESSAGE_SERVICE_SHIFT
            | (now_ns() / 1_000_000) << wire::MESSAGE_VALUE_SHIFT;
        atomic_field!(self.members, member.slot, message).store(message, Ordering::SeqCst);
        true
    }
}

fn delete_rules(gate: &Gate, keys: &[wire::service_key]) {
    let rules = gate.maps.get("service_rules");
    for key in keys {
        let _ = rules.delete(key.as_bytes());
    }
}

/// Deletes no more than `most` entries: if others delete meanwhile, the walk over the keys begins
/// again.
fn delete_entries(gate: &Gate, map: &str, most: u32) {
    let map = gate.maps.get(map);
    let keys: Vec<_> = map.keys().take(most as usize).collect();
    for key in keys {
        let _ = map.delete(&key);
    }
}

/// A key or value of one of the kernel side's maps.
///
/// # Panics
/// If it is shorter than its type: the map would be another one.
fn decode<T: FromBytes>(bytes: &[u8]) -> T {
    let (value, _) = T::read_from_prefix(bytes).expect("as long as its type");
    value
}

/// The records that an iterator has written.
fn records<T: FromBytes>(told: &[u8]) -> Vec<T> {
    told.chunks_exact(size_of::<T>()).map(decode).collect()
}

fn started(key: &wire::dynamic_service_key, start: &wire::dynamic_service) -> DynamicService {
    let each = match u32::from(key.each) {
        wire::SPLIT_USER => DynamicKey::User(key.value[0] as u32),
        wire::SPLIT_UNIT => DynamicKey::Unit(key.value[0]),
        wire::SPLIT_EXE => DynamicKey::Exe(key.value[0]),
        _ => DynamicKey::Client(wire::ip_address(key.value)),
    };
    DynamicService {
        number: start.number as u16,
        parent: key.below,
        key: each,
        first_member: wire::text(&start.name),
    }
}

fn member(record: &wire::service_member_record) -> Member {
    Member {
        pid: record.pid,
        tgid: record.tgid,
        slot: record.slot,
        epoch: record.epoch,
        began_ns: record.began_ns,
        command: wire::text(&record.comm),
        service: record.service,
        why: record.why,
        binding: record.binding,
        rule: (record.rule as usize).checked_sub(1),
        ruleset: record.book,
        user: record.user,
        bound_ns: (record.bound_ns != 0).then_some(record.bound_ns),
        uncharged: ServiceUsage::new(&record.since),
        uncharged_for: record.used_for,
    }
}

/// The salt of the hashes by which the kernel side finds rules.
pub fn salt(gate: &Gate) -> u64 {
    gate.header.read(0).salt
}

/// Deactivates the session's services: no thread is a member of any.
fn deactivate(gate: &Gate, session: u32) {
    let services = atomic_field!(gate.header, 0, services_session);
    if services.compare_exchange(session, 0, Ordering::SeqCst, Ordering::SeqCst).is_err() {
        return;
    }
    // A thread that is being created sees that there are none.
    cpus::wait_for_all();
    for slot in 1..gate.threads.entries() {
        atomic_field!(gate.threads, slot, mask).fetch_and(!wire::SERVICE, Ordering::SeqCst);
    }
}

fn shrink_maps(maps: &mut OpenGateMaps) -> Result<()> {
    const SIZING: &str = "shrinking the maps of services, which are not used";
    maps.bss_members.set_value_size(size_of::<wire::service_member>() as u32).doing(SIZING)?;
    maps.bss_services.set_value_size(size_of::<wire::service>() as u32).doing(SIZING)?;
    for map in [
        &mut maps.service_rules,
        &mut maps.service_tcp_directions,
        &mut maps.service_datagram_senders,
        &mut maps.service_accounts,
        &mut maps.service_dynamic,
        &mut maps.service_free_numbers,
    ] {
        map.set_max_entries(1).doing(SIZING)?;
    }
    // A ring has at least one page.
    maps.service_migrations.set_max_entries(4096).doing(SIZING)
}

/// The services' part of the life of sessions.
pub struct ServicesKernelSide;

impl KernelSide for ServicesKernelSide {
    fn lazy_maps(&self) -> Option<&'static LazyMaps> {
        Some(&LazyMaps {
            // libbpf keeps 15 characters of a section's name.
            prefixes: &["service_", ".bss.services", ".bss.members", ".bss.rulesets"],
            bit: wire::SERVICE,
            shrink: shrink_maps,
        })
    }

    fn release(&self, gate: &Gate, session: u32) {
        deactivate(gate, session);
    }

    fn tend(&self, gate: &Gate, session: u32) -> Result<()> {
        let services = atomic_field!(gate.header, 0, services_session).load(Ordering::SeqCst);
        if services != 0 && services != session && !gate.is_open(services) {
            // The process of the services was killed.
            let _lock = Lock::take()?;
            if !gate.is_open(services) {
                deactivate(gate, services);
            }
        }
        Ok(())
    }
}
