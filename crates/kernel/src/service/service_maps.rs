//! Services in the kernel: the active ruleset, the bindings of threads, and the usage of services.

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
use crate::gate::{Gate, IteratorKind, Iterators, Lock};
use crate::mapped_array::{MappedArray, atomic_field, field};
use crate::session::Session;
use crate::wire;

/// What a service or a thread has used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct ServiceUsage {
    /// Time on a processor.
    pub cpu_ns: u64,
    /// Time spent waiting for a processor.
    pub wait_ns: u64,
    /// Time asleep.
    pub blocked_ns: u64,
    /// System calls.
    pub calls: u64,
    /// Voluntary context switches.
    pub switches: u64,
    /// Involuntary context switches.
    pub preemptions: u64,
    /// Page faults without storage access.
    pub minor_faults: u64,
    /// Page faults that had to read from storage.
    pub major_faults: u64,
    /// Bytes that calls have read, from whatever kind of file.
    pub read_bytes: u64,
    /// Bytes that calls have written, to whatever kind of file.
    pub written_bytes: u64,
    /// Bytes that had to be read from storage.
    pub storage_read_bytes: u64,
    /// Bytes that will have to be written to storage.
    pub storage_written_bytes: u64,
    /// Bytes received by sockets.
    pub received_bytes: u64,
    /// Bytes sent by sockets.
    pub sent_bytes: u64,
    /// How often usage was charged.
    pub charges: u64,
    /// Replies for other services, by threads that had received work for this one since.
    pub shared_replies: u64,
}

/// A thread, and the service that it works for.
#[derive(Debug, Clone)]
pub struct Member {
    /// The thread, as this process's PID namespace numbers it.
    pub pid: u32,
    /// Its process, numbered likewise.
    pub tgid: u32,
    slot: u32,
    epoch: u16,
    /// When the thread began (CLOCK_BOOTTIME). This distinguishes it from another thread of the
    /// same number.
    pub began_ns: u64,
    /// The thread's name (comm).
    pub command: String,
    /// The service that it works for, or one whose successor it works for.
    pub service: u16,
    /// One of [`wire::service_why`].
    pub why: u8,
    /// One of [`wire::service_binding`].
    pub binding: u8,
    /// The precedence of the rule that decided, if a rule did. It is a rule of `ruleset`.
    pub rule: Option<usize>,
    /// The number of the ruleset by which the binding was decided.
    pub ruleset: u32,
    /// The effective user.
    pub user: u32,
    /// When the thread was bound (CLOCK_MONOTONIC). `None` means: when the ruleset became active.
    pub bound_ns: Option<u64>,
    /// Usage that was not charged yet.
    pub uncharged: ServiceUsage,
    /// The service that `uncharged` will be charged to. It may differ from `service`.
    pub uncharged_for: u16,
}

/// What distinguishes the services that one rule starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DynamicKey {
    /// The effective user's number.
    User(u32),
    /// Hash of the unit's name.
    Unit(u64),
    /// Hash of the program's path.
    Exe(u64),
    /// The address of the other end of a connection.
    Client(IpAddr),
}

/// A service that a rule has started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DynamicService {
    /// From [`wire::SERVICES_DYNAMIC`] on.
    pub number: u16,
    /// The service below which it was started.
    pub parent: u16,
    /// The value for which it was started.
    pub key: DynamicKey,
    /// The unit of its first member, or the file name of that thread's program. It is empty if
    /// neither is known.
    pub first_member: String,
}

/// Rules as [`wire::service_ruleset`] has them.
pub struct KernelRuleset {
    /// Bits of [`wire::service_field`] for which threads need hashes, besides those of the tuples.
    pub fields: u32,
    /// At most [`wire::SERVICE_TUPLES`].
    pub tuples: Vec<wire::service_tuple>,
    /// For each event, the indices of the tuples that have rules for it.
    pub tuples_by_event: [Vec<usize>; wire::SERVICE_EVENTS as usize],
    /// The index of the rule's tuple, the hash, and the rule.
    pub rules: Vec<(usize, u64, wire::service_rule)>,
}

/// The index in [`KernelRuleset::tuples_by_event`] of opened files.
const OPEN: usize = wire::EVENT_OPEN as usize;

/// The active services of the machine. They are active as long as the session that started them
/// lives.
pub struct KernelServices {
    services: MappedArray<wire::service>,
    /// The active ruleset, and the previous or next one.
    rulesets: MappedArray<[wire::service_ruleset; 2]>,
    /// By thread slot.
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

    /// Adds usage. A value may be below zero for a moment, as a two's complement. This happens if a
    /// binding changes between two ticks: the thread is then charged by the clock, which may be
    /// ahead of the scheduler's accounting.
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

    /// Replaces each value that is less than in an earlier report by the value of that report.
    pub fn monotonic_from(mut self, mut earlier: Self) -> Self {
        for (now, earlier) in self.as_array_mut().into_iter().zip(earlier.as_array_mut()) {
            *now = (*now).max(*earlier);
        }
        self
    }
}

/// How long to wait for memory for accounts.
const MEMORY_TIMEOUT: Duration = Duration::from_secs(1);
const MEMORY_RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// Makes an account to which nothing is charged yet.
fn open_account(gate: &Gate, number: u32, flags: MapFlags) -> libbpf_rs::Result<()> {
    let nothing = wire::service_account::default();
    let zeroes = vec![nothing.as_bytes().to_vec(); cpus::possible()];
    gate.maps.get("service_accounts").update_percpu(&number.to_ne_bytes(), &zeroes, flags)
}

impl KernelServices {
    /// Makes every thread that the gate knows, or will know, a member of the root. Rules are
    /// activated later, by [`KernelServices::activate`].
    ///
    /// # Errors
    /// If another process has active services.
    pub fn start(gate: &Gate, session: &Session) -> Result<Self> {
        // Two processes must not start services at the same time.
        let _lock = Lock::take()?;
        let other = atomic_field!(gate.header, 0, services_session).load(Ordering::SeqCst);
        if other != 0 && gate.is_open(other) {
            return Err(Error::ServicesActive(gate.sessions.read(other).owner_pid));
        }
        let iterators = [IteratorKind::Members, IteratorKind::Reclassify];
        let services = Self {
            services: MappedArray::new(gate.maps.get(".bss.services"), wire::SERVICES)?,
            rulesets: MappedArray::new(gate.maps.get(".bss.rulesets"), 1)?,
            members: MappedArray::new(gate.maps.get(".bss.members"), wire::THREADS)?,
            iterators: gate.load_iterators(&iterators)?,
            rules: Vec::new(),
        };
        // Removes what an earlier session has left.
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
        // These are for threads that begin before rules are active.
        for number in [wire::SERVICE_ROOT, wire::SERVICE_SHARED] {
            services.add(gate, number as u16)?;
        }
        atomic_field!(gate.header, 0, services_session).store(session.index, Ordering::SeqCst);
        Ok(services)
    }

    /// Writes a service whose members belong to `successor`, and which rules know as
    /// `rule_service`. It gets the successor's control group.
    fn write_service(&self, number: u16, successor: u16, rule_service: u16) {
        let wire::service { cgroup_of, migrate_flags, .. } = self.services.read(successor.into());
        field!(self.services, number.into(), successor).write(successor);
        field!(self.services, number.into(), rule_service).write(rule_service);
        self.set_cgroup(number, cgroup_of, migrate_flags.into());
    }

    /// Sets the service in whose control group a service's threads run, and when they are migrated
    /// there: bits of [`wire::service_migrate_flags`].
    pub fn set_cgroup(&self, number: u16, cgroup_of: u16, migrate_flags: u32) {
        field!(self.services, number.into(), cgroup_of).write(cgroup_of);
        field!(self.services, number.into(), migrate_flags).write(migrate_flags as u16);
    }

    /// The services whose control groups were contended within the last `ago`: their threads made
    /// others wait for a processor.
    pub fn contended(&self, ago: Duration) -> BTreeSet<u16> {
        let since = now_ns().saturating_sub(ago.as_nanos() as u64);
        let all = (0..wire::SERVICES).map(|number| self.services.read(number));
        all.filter(|service| service.contended_until_ns > since)
            .map(|service| service.cgroup_of)
            .collect()
    }

    /// Adds a service that is its own successor, with an account.
    pub fn add(&self, gate: &Gate, number: u16) -> Result<()> {
        self.write_service(number, number, number);
        open_account(gate, number.into(), MapFlags::ANY).doing("creating a service's account")
    }

    /// Makes the accounts of the services that rules will start. The gate could make them itself,
    /// but gets memory only from the kernel's reserve, which is refilled too late on a busy machine
    /// (`__alloc_percpu_gfp` with GFP_NOWAIT, mm/percpu.c). If memory is too short to make an
    /// account here in time, the gate makes it later.
    fn open_accounts(&self, gate: &Gate) -> Result<()> {
        let end = Instant::now() + MEMORY_TIMEOUT;
        for number in self.next_dynamic(gate)..wire::SERVICES {
            loop {
                match open_account(gate, number, MapFlags::NO_EXIST) {
                    Err(error) if error.kind() == ErrorKind::OutOfMemory => {
                        if Instant::now() > end {
                            return Ok(());
                        }
                        thread::sleep(MEMORY_RETRY_INTERVAL);
                    }
                    // An earlier ruleset or the gate has made it.
                    Err(error) if error.kind() == ErrorKind::AlreadyExists => break,
                    opened => break opened.doing("opening accounts of services to be started")?,
                }
            }
        }
        Ok(())
    }

    /// The lowest number that no dynamic service has had yet.
    fn next_dynamic(&self, gate: &Gate) -> u32 {
        atomic_field!(gate.header, 0, next_service).load(Ordering::SeqCst)
    }

    /// Gives a removed service's members to another service.
    pub fn set_successor(&self, number: u16, successor: u16) {
        self.write_service(number, successor, successor);
    }

    /// All services that rules have started.
    pub fn dynamic_services(&self, gate: &Gate) -> Result<Vec<DynamicService>> {
        let map = gate.maps.get("service_dynamic");
        let mut all = Vec::new();
        for key in map.keys().take(wire::SERVICES as usize) {
            if let Some(value) = map
                .lookup(&key, MapFlags::ANY)
                .doing("reading the services that rules have started")?
            {
                all.push(dynamic_service(&decode(&key), &decode(&value)));
            }
        }
        Ok(all)
    }

    /// Removes a dynamic service, and gives its members to another service.
    pub fn remove_dynamic_service(&self, gate: &Gate, removed: &DynamicService, successor: u16) {
        self.set_successor(removed.number, successor);
        let map = gate.maps.get("service_dynamic");
        let keys: Vec<_> = map.keys().take(wire::SERVICES as usize).collect();
        for key in keys {
            let value = map.lookup(&key, MapFlags::ANY).ok().flatten();
            if value.is_some_and(|value| {
                decode::<wire::dynamic_service>(&value).number == u32::from(removed.number)
            }) {
                let _ = map.delete(&key);
            }
        }
    }

    /// Activates a ruleset by one store, in place of the previous one. Returns its number.
    ///
    /// # Errors
    /// If a map or memory is full, or the gate cannot be extended. The previous ruleset then stays
    /// active.
    pub fn activate(&mut self, gate: &mut Gate, ruleset: &KernelRuleset) -> Result<u32> {
        let KernelRuleset { fields, tuples, tuples_by_event, rules } = ruleset;
        if !tuples_by_event[OPEN].is_empty() {
            gate.extend(wire::SERVICE_FILES)?;
        }
        if rules.iter().any(|(_, _, rule)| u32::from(rule.action) == wire::ACTION_CREATES) {
            self.open_accounts(gate)?;
        }
        let number = atomic_field!(gate.header, 0, ruleset).load(Ordering::SeqCst) + 1;
        let map = gate.maps.get("service_rules");
        let mut keys = Vec::new();
        let mut write_rules = || {
            for (tuple, hash, rule) in rules {
                let key = wire::service_key { ruleset: number, tuple: *tuple as u32, hash: *hash };
                // If two rules have the same hash by chance, the first one decides.
                if map
                    .lookup(key.as_bytes(), MapFlags::ANY)
                    .doing("reading the rules of services")?
                    .is_none()
                {
                    map.update(key.as_bytes(), rule.as_bytes(), MapFlags::ANY)
                        .doing("writing the rules of services")?;
                    keys.push(key);
                }
            }
            Ok(())
        };
        if let Err(error) = write_rules() {
            delete_rules(gate, &keys);
            return Err(error);
        }
        let mut written = wire::service_ruleset { number, ..Default::default() };
        written.tuple[..tuples.len()].copy_from_slice(tuples);
        written.file_depth = tuples.iter().map(|tuple| tuple.file_depth.into()).max().unwrap_or(0);
        written.fields = tuples.iter().fold(*fields, |all, tuple| all | u32::from(tuple.fields));
        for (event, tuples) in tuples_by_event.iter().enumerate() {
            written.tuple_count[event] = tuples.len() as u32;
            let first = event * wire::SERVICE_TUPLES as usize;
            for (index, tuple) in tuples.iter().enumerate() {
                written.tuples_of_event[first + index] = *tuple as u8;
            }
        }
        // The gate reads only the active one of the two rulesets.
        let mut rulesets = self.rulesets.whole(0).elements();
        rulesets.nth(number as usize & 1).expect("there are two").write(written);
        atomic_field!(gate.header, 0, ruleset).store(number, Ordering::SeqCst);
        cpus::wait_for_all();
        delete_rules(gate, &std::mem::replace(&mut self.rules, keys));
        Ok(number)
    }

    /// Matches the rules for all running threads.
    pub fn reclassify_all(&self) -> Result<()> {
        self.iterators.run(IteratorKind::Reclassify).map(drop)
    }

    /// All members, with their uncharged usage until now.
    pub fn members(&self) -> Result<Vec<Member>> {
        let output = self.iterators.run(IteratorKind::Members)?;
        Ok(records(&output).iter().map(member).collect())
    }

    /// All sockets by which a thread has sent or received.
    pub fn sockets(&self, gate: &Gate) -> Result<Vec<wire::service_socket_record>> {
        let sockets = gate.load_iterators(&[IteratorKind::Sockets])?;
        let output = sockets.run(IteratorKind::Sockets)?;
        Ok(records(&output))
    }

    /// The usage that was charged to each service with an account.
    pub fn accounts(&self, gate: &Gate) -> Result<BTreeMap<u16, ServiceUsage>> {
        let accounts = gate.maps.get("service_accounts");
        let mut all = BTreeMap::new();
        let next = self.next_dynamic(gate);
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

    /// Migrates a thread to the control group of a service, without a request of the kernel side.
    /// `migrate` does this, and returns whether the thread was migrated. If the kernel side makes a
    /// request meanwhile, that one stays recorded.
    pub fn migrate_with(&self, member: &Member, service: u16, migrate: impl FnOnce() -> bool) {
        let is_unchanged = || self.members.read(member.slot).epoch == member.epoch;
        let previous = self.in_cgroup_of(member.slot).load(Ordering::SeqCst);
        if is_unchanged() && migrate() && is_unchanged() {
            let _ = self.in_cgroup_of(member.slot).compare_exchange(
                previous,
                service,
                Ordering::SeqCst,
                Ordering::SeqCst,
            );
        }
    }

    /// Records that all threads are in the cgroups that they came from, except those in the control
    /// groups of services for which `remains` is true.
    pub fn reset_cgroups(&self, remains: impl Fn(u16) -> bool) {
        for slot in 1..wire::THREADS {
            let service = self.members.read(slot).in_cgroup_of;
            let is_known =
                service != wire::SERVICE_ROOT as u16 && service != wire::CGROUP_UNKNOWN as u16;
            if is_known && !remains(service) {
                self.in_cgroup_of(slot).store(wire::SERVICE_ROOT as u16, Ordering::SeqCst);
            }
        }
    }

    /// Assigns a thread to a service, from its next call or switch on. Returns `false` if the
    /// member has changed, because its slot may belong to another thread by now.
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

/// Deletes all entries of a map, but at most `most`. The bound is needed because the iteration
/// begins again if others delete entries meanwhile.
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
/// If there are fewer bytes than the type has. The map would then be another one.
fn decode<T: FromBytes>(bytes: &[u8]) -> T {
    let (value, _) = T::read_from_prefix(bytes).expect("as long as its type");
    value
}

/// The records that an iterator has written.
fn records<T: FromBytes>(output: &[u8]) -> Vec<T> {
    output.chunks_exact(size_of::<T>()).map(decode).collect()
}

fn dynamic_service(
    key: &wire::dynamic_service_key,
    value: &wire::dynamic_service,
) -> DynamicService {
    let split = match u32::from(key.split) {
        wire::SPLIT_USER => DynamicKey::User(key.value[0] as u32),
        wire::SPLIT_UNIT => DynamicKey::Unit(key.value[0]),
        wire::SPLIT_EXE => DynamicKey::Exe(key.value[0]),
        _ => DynamicKey::Client(wire::ip_address(key.value)),
    };
    DynamicService {
        number: value.number as u16,
        parent: key.parent,
        key: split,
        first_member: wire::text(&value.name),
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
        ruleset: record.ruleset,
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
