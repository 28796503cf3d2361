//! Services in the kernel: their table, their accounts, and the programs that list members.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use libbpf_rs::{ErrorKind, MapCore as _, MapFlags};
use zerocopy::{FromBytes, IntoBytes};

use super::usage::ServiceUsage;
use crate::clock::now_ns;
use crate::cpus;
use crate::error::{Error, ErrorContext, Result};
use crate::gate::{Gate, IteratorKind, Iterators, Lock};
use crate::mapped_array::{MappedArray, atomic_field, field};
use crate::session::Session;
use crate::wire;

/// The active services of the machine. They are active as long as the session that started them
/// lives.
pub struct KernelServices {
    services: MappedArray<wire::service>,
    /// The active ruleset, and the previous or next one.
    pub(super) rulesets: MappedArray<[wire::service_ruleset; 2]>,
    /// By thread slot.
    pub(super) members: MappedArray<wire::service_member>,
    pub(super) iterators: Iterators,
    /// Keys of the rules of the active ruleset.
    pub(super) rules: Vec<wire::service_key>,
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
    pub(super) fn open_accounts(&self, gate: &Gate) -> Result<()> {
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

    /// Matches the rules for all running threads.
    pub fn reclassify_all(&self) -> Result<()> {
        self.iterators.run(IteratorKind::Reclassify).map(drop)
    }

    /// All open sockets by which a thread has sent or received.
    pub fn sockets(&self, gate: &Gate) -> Result<Vec<wire::service_socket_record>> {
        let sockets = gate.load_iterators(&[IteratorKind::Sockets])?;
        let output = sockets.run(IteratorKind::Sockets)?;
        let mut sockets = records::<wire::service_socket_record>(&output);
        // A socket has a record for each of its descriptors. They differ if a thread has used it
        // meanwhile. One that is just being closed has no inode any more.
        sockets.retain(|socket| socket.inode != 0);
        sockets.sort_by_key(|socket| socket.inode);
        sockets.dedup_by_key(|socket| socket.inode);
        Ok(sockets)
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
pub(super) fn decode<T: FromBytes>(bytes: &[u8]) -> T {
    let (value, _) = T::read_from_prefix(bytes).expect("as long as its type");
    value
}

/// The records that an iterator has written.
pub(super) fn records<T: FromBytes>(output: &[u8]) -> Vec<T> {
    output.chunks_exact(size_of::<T>()).map(decode).collect()
}

/// The salt of the hashes by which the kernel side finds rules.
pub fn salt(gate: &Gate) -> u64 {
    gate.header.read(0).salt
}
