//! Virtual services in the kernel: rules in force, whose work each thread does, and what that used.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use libbpf_rs::{ErrorKind, MapCore as _, MapFlags};

use crate::clock::now_ns;
use crate::cpus;
use crate::error::{Doing, Error, Result};
use crate::gate::{Gate, Iterators, Lock, Over};
use crate::mapping::{Mapping, atomic_field};
use crate::session::Session;
use crate::wire;

/// What was used. Times in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
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
    /// Threads that were given the service's label, and have another one or have ended since.
    pub labels: u64,
    /// Answers to others that were sent by threads which worked for it by then.
    pub overlaps: u64,
}

/// A thread, and for whom it works.
#[derive(Debug, Clone)]
pub struct Member {
    /// As this process's PID namespace numbers them.
    pub pid: u32,
    pub tgid: u32,
    slot: u32,
    epoch: u16,
    /// When the thread began, as numbers are given again.
    pub began_ns: u64,
    pub command: String,
    pub service: u16,
    /// One of [`wire::service_why`].
    pub why: u8,
    /// One of [`wire::service_borrowed`].
    pub borrowed: u8,
    /// Place in the book of this number, where a rule decided.
    pub rule: Option<usize>,
    pub book: u32,
    pub user: u32,
    /// None: since the book came into force.
    pub labelled_ns: Option<u64>,
    /// What it has used that was not charged yet, and to which service it will be: not always to the one for which it
    /// works from now on.
    pub since: Figures,
    pub used_for: u16,
}

/// By what a service that a rule has started differs from its like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Each {
    User(u32),
    /// Hash of the unit's name.
    Unit(u64),
    /// Hash of the program's path.
    Exe(u64),
    Client(IpAddr),
}

/// A service that a rule has started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Started {
    pub number: u16,
    pub below: u16,
    pub each: Each,
    /// Of its first member: its unit, or its program's file without folders; empty: neither is known.
    pub called: String,
}

/// Rules as [`wire::service_book`] has them.
pub struct Book {
    /// Bits of [`wire::service_field`] that threads need to have hashes of, besides those of the sets.
    pub fields: u32,
    pub sets: Vec<wire::service_set>,
    /// Indices of `sets`, for each event.
    pub asked: [Vec<usize>; wire::SERVICE_EVENTS as usize],
    /// Index of its set, hash, and what follows.
    pub rules: Vec<(usize, u64, wire::service_rule)>,
}

/// Of [`Book::asked`]: files that are opened.
const OPEN: usize = wire::WHY_OPENED as usize - wire::WHY_FORK as usize;

/// Services in force, as long as their session lives.
pub struct Services {
    services: Mapping<wire::service>,
    books: Mapping<[wire::service_book; 2]>,
    members: Mapping<wire::service_member>,
    iterators: Iterators,
    /// Keys of the rules of the book in force.
    rules: Vec<wire::service_key>,
}

fn bytes_of<T: Copy>(value: &T) -> &[u8] {
    // SAFETY: only called with wire types that have no padding.
    unsafe { std::slice::from_raw_parts((&raw const *value).cast(), size_of::<T>()) }
}

fn read_as<T: Copy>(bytes: &[u8]) -> T {
    assert!(bytes.len() >= size_of::<T>(), "{} bytes", bytes.len());
    // SAFETY: long enough; only called with wire types, of which any bytes are a value.
    unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
}

impl Figures {
    fn new(account: &wire::service_account) -> Self {
        let wire::service_account { task, present_ns, calls, received_bytes, sent_bytes, labels, overlaps } =
            *account;
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
            labels,
            overlaps,
        }
    }

    fn each(&mut self) -> [&mut u64; 16] {
        [
            &mut self.cpu_ns,
            &mut self.wait_ns,
            &mut self.blocked_ns,
            &mut self.calls,
            &mut self.switches,
            &mut self.preemptions,
            &mut self.minor_faults,
            &mut self.major_faults,
            &mut self.read_bytes,
            &mut self.written_bytes,
            &mut self.storage_read_bytes,
            &mut self.storage_written_bytes,
            &mut self.received_bytes,
            &mut self.sent_bytes,
            &mut self.labels,
            &mut self.overlaps,
        ]
    }

    /// Differences may be below zero for a moment: a thread that changes its label between two ticks is charged by the
    /// clock, which may be ahead of the scheduler.
    pub fn add(&mut self, mut other: Self) {
        for (sum, more) in self.each().into_iter().zip(other.each()) {
            *sum = sum.wrapping_add(*more);
        }
    }

    /// With what is below zero as zero.
    pub fn settled(mut self) -> Self {
        self.each().into_iter().filter(|value| **value > i64::MAX as u64).for_each(|value| *value = 0);
        self
    }

    /// What was told once is never more than what is told later.
    pub fn at_least(mut self, mut before: Self) -> Self {
        for (now, before) in self.each().into_iter().zip(before.each()) {
            *now = (*now).max(*before);
        }
        self
    }
}

/// How long memory for accounts is waited for, and how long at a time.
const OPENING: Duration = Duration::from_secs(1);
const MEMORY_PAUSE: Duration = Duration::from_millis(1);

/// An account to which nothing is charged yet.
fn open_account(gate: &Gate, number: u32, flags: MapFlags) -> libbpf_rs::Result<()> {
    let zeroes = vec![vec![0; size_of::<wire::service_account>()]; cpus::possible()];
    gate.maps.get("accounts").update_percpu(&number.to_ne_bytes(), &zeroes, flags)
}

impl Services {
    /// Everybody whom the gate knows, or will know, is a member from now on: to begin with, of the root.
    pub fn start(gate: &Gate, session: &Session) -> Result<Self> {
        // Only one begins at a time.
        let _lock = Lock::take()?;
        let other = atomic_field!(gate.header, 0, services).load(Ordering::SeqCst);
        if other != 0 && gate.is_open(other) {
            return Err(Error::ServicesInForce(gate.sessions.read(other).owner_pid));
        }
        let iterators = [Over::Members, Over::Ask];
        let services = Self {
            services: Mapping::new(gate.maps.get(".bss.services"), wire::SERVICES)?,
            books: Mapping::new(gate.maps.get(".bss.books"), 1)?,
            members: Mapping::new(gate.maps.get(".bss.members"), wire::THREADS)?,
            iterators: Iterators::new(&gate.maps, gate.enabled(), gate.generation(), &iterators)?,
            rules: Vec::new(),
        };
        // What an earlier session left.
        for number in 0..wire::SERVICES as u16 {
            services.name(number, wire::SERVICE_ROOT as u16, wire::SERVICE_ROOT as u16);
        }
        forget_all(gate, "accounts", wire::SERVICES);
        forget_all(gate, "service_rules", 2 * wire::SERVICE_RULES);
        forget_all(gate, "started_services", wire::SERVICES);
        let free = gate.maps.get("free_services");
        while free.lookup_and_delete(&[]).doing("taking numbers back")?.is_some() {}
        atomic_field!(gate.header, 0, next_service).store(wire::SERVICES_STARTED, Ordering::SeqCst);
        // Of whoever is born before there are rules.
        for number in [wire::SERVICE_ROOT, wire::SERVICE_SHARED] {
            services.add(gate, number as u16)?;
        }
        atomic_field!(gate.header, 0, services).store(session.index, Ordering::SeqCst);
        Ok(services)
    }

    fn name(&self, number: u16, heir: u16, known_as: u16) {
        let wire::service { place, placing, .. } = self.services.read(heir.into());
        let entry = self.services.entry(number.into());
        // SAFETY: aligned fields within the mapping, each read as a whole by the kernel side.
        unsafe {
            (&raw mut (*entry).heir).write_volatile(heir);
            (&raw mut (*entry).known_as).write_volatile(known_as);
        }
        self.place(number, place, placing.into());
    }

    /// In whose control group its threads are to run, and when they are put there: [`wire::service_placing`].
    pub fn place(&self, number: u16, place: u16, placing: u32) {
        let entry = self.services.entry(number.into());
        // SAFETY: as above.
        unsafe {
            (&raw mut (*entry).place).write_volatile(place);
            (&raw mut (*entry).placing).write_volatile(placing as u16);
        }
    }

    /// In whose control groups those are who had to wait not longer than `ago` ago.
    pub fn competing(&self, ago: Duration) -> BTreeSet<u16> {
        let since = now_ns().saturating_sub(ago.as_nanos() as u64);
        let all = (0..wire::SERVICES).map(|number| self.services.read(number));
        all.filter(|service| service.competes_until_ns > since).map(|service| service.place).collect()
    }

    /// A service that members may have, and its account.
    pub fn add(&self, gate: &Gate, number: u16) -> Result<()> {
        self.name(number, number, number);
        open_account(gate, number.into(), MapFlags::ANY).doing("opening a service's account")
    }

    /// Makes the accounts of services that rules will start. The gate itself gets memory for them
    /// only from what the kernel has prepared, and on a busy machine that is prepared too late
    /// (`__alloc_percpu_gfp` with GFP_NOWAIT, mm/percpu.c). Where memory is short here, too, the
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

    /// Its members are another one's from now on.
    pub fn retire(&self, number: u16, heir: u16) {
        self.name(number, heir, heir);
    }

    /// All that rules have started.
    pub fn started(&self, gate: &Gate) -> Result<Vec<Started>> {
        let map = gate.maps.get("started_services");
        let mut all = Vec::new();
        for key in map.keys().take(wire::SERVICES as usize) {
            if let Some(start) = map.lookup(&key, MapFlags::ANY).doing("reading what was started")? {
                all.push(started(&read_as(&key), &read_as(&start)));
            }
        }
        Ok(all)
    }

    /// Forgets one whose members are another's from now on.
    pub fn forget_started(&self, gate: &Gate, started: &Started, heir: u16) {
        self.retire(started.number, heir);
        let map = gate.maps.get("started_services");
        let keys: Vec<_> = map.keys().take(wire::SERVICES as usize).collect();
        for key in keys {
            let start = map.lookup(&key, MapFlags::ANY).ok().flatten();
            if start.is_some_and(|start| {
                read_as::<wire::service_start>(&start).number == u32::from(started.number)
            }) {
                let _ = map.delete(&key);
            }
        }
    }

    /// Puts a book of rules in force, by one store, in place of the one before. Returns its number.
    pub fn put_in_force(&mut self, gate: &mut Gate, book: &Book) -> Result<u32> {
        if !book.asked[OPEN].is_empty() {
            gate.extend(wire::SERVICE_FILES)?;
        }
        if book.rules.iter().any(|(_, _, rule)| u32::from(rule.then) == wire::THEN_STARTS) {
            self.open_accounts(gate)?;
        }
        let number = atomic_field!(gate.header, 0, book).load(Ordering::SeqCst) + 1;
        let rules = gate.maps.get("service_rules");
        let mut keys = Vec::new();
        let mut put = || {
            for (set, hash, rule) in &book.rules {
                let key = wire::service_key { book: number, set: *set as u32, hash: *hash };
                // Of two with one hash, which only chance can make, the first decides.
                if rules.lookup(bytes_of(&key), MapFlags::ANY).doing("looking at its rules")?.is_none() {
                    rules.update(bytes_of(&key), bytes_of(rule), MapFlags::ANY).doing("writing its rules")?;
                    keys.push(key);
                }
            }
            Ok(())
        };
        if let Err(error) = put() {
            forget(gate, &keys);
            return Err(error);
        }
        let mut page = wire::service_book { number, ..Default::default() };
        page.set[..book.sets.len()].copy_from_slice(&book.sets);
        page.file_depth = book.sets.iter().map(|set| set.file_depth.into()).max().unwrap_or(0);
        page.fields = book.sets.iter().fold(book.fields, |all, set| all | u32::from(set.fields));
        for (event, asked) in book.asked.iter().enumerate() {
            page.asked[event] = asked.len() as u32;
            for (place, set) in asked.iter().enumerate() {
                page.ask[event * wire::SERVICE_SETS as usize + place] = *set as u8;
            }
        }
        let place = self.books.entry(0).cast::<wire::service_book>();
        // SAFETY: one of the two books in the mapping, which the gate does not read as long as it is not in force.
        unsafe { place.add(number as usize & 1).write_volatile(page) };
        atomic_field!(gate.header, 0, book).store(number, Ordering::SeqCst);
        cpus::wait_for_all();
        forget(gate, &std::mem::replace(&mut self.rules, keys));
        Ok(number)
    }

    /// Asks the rules of all that run.
    pub fn ask_all(&self) -> Result<()> {
        self.iterators.run(Over::Ask).map(drop)
    }

    /// Every member there is.
    pub fn members(&self) -> Result<Vec<Member>> {
        let told = self.iterators.run(Over::Members)?;
        let records = told.chunks_exact(size_of::<wire::service_member_record>());
        Ok(records.map(|bytes| member(&read_as(bytes))).collect())
    }

    /// Every socket by which somebody has sent or received.
    pub fn sockets(&self, gate: &Gate) -> Result<Vec<wire::service_socket_record>> {
        let sockets = Iterators::new(&gate.maps, gate.enabled(), gate.generation(), &[Over::Sockets])?;
        let told = sockets.run(Over::Sockets)?;
        let records = told.chunks_exact(size_of::<wire::service_socket_record>());
        Ok(records.map(read_as).collect())
    }

    /// What the services with accounts were charged.
    pub fn accounts(&self, gate: &Gate) -> Result<BTreeMap<u16, Figures>> {
        let accounts = gate.maps.get("accounts");
        let mut all = BTreeMap::new();
        let next = self.next_started(gate);
        let is_used = |key: &Vec<u8>| {
            let number = read_as::<u32>(key);
            number < wire::SERVICES_STARTED || number < next
        };
        for key in accounts.keys().filter(is_used) {
            let values = accounts.lookup_percpu(&key, MapFlags::ANY).doing("reading its accounts")?;
            let mut sum = Figures::default();
            values.iter().flatten().for_each(|bytes| sum.add(Figures::new(&read_as(bytes))));
            all.insert(read_as::<u32>(&key) as u16, sum);
        }
        Ok(all)
    }

    fn placed(&self, slot: u32) -> &AtomicU16 {
        let entry = self.members.entry(slot);
        // SAFETY: an aligned field within the mapping, which both sides access as a whole.
        unsafe { AtomicU16::from_ptr(&raw mut (*entry).placed) }
    }

    /// Has somebody else than the kernel side's asking move a thread; what the kernel side asks for meanwhile counts.
    pub fn place_by(&self, member: &Member, place: u16, is_moved: impl FnOnce() -> bool) {
        let is_still_it = || self.members.read(member.slot).epoch == member.epoch;
        let before = self.placed(member.slot).load(Ordering::SeqCst);
        if is_still_it() && is_moved() && is_still_it() {
            let _ =
                self.placed(member.slot).compare_exchange(before, place, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// All are where they came from but those in the groups of services that are kept.
    pub fn forget_placed(&self, is_kept: impl Fn(u16) -> bool) {
        for slot in 1..wire::THREADS {
            let placed = self.members.read(slot).placed;
            let is_known = placed != wire::SERVICE_ROOT as u16 && placed != wire::PLACED_NOWHERE as u16;
            if is_known && !is_kept(placed) {
                self.placed(slot).store(wire::SERVICE_ROOT as u16, Ordering::SeqCst);
            }
        }
    }

    /// Gives a thread to a service, from its next call or switch on.
    /// False: it is not what it was, and its slot may be another thread's by now.
    pub fn assign(&self, member: &Member, service: u16) -> bool {
        if self.members.read(member.slot).epoch != member.epoch {
            return false;
        }
        let message = u64::from(wire::MESSAGE_ASSIGN)
            | u64::from(service) << wire::MESSAGE_SERVICE_SHIFT
            | (now_ns() / 1_000_000) << wire::MESSAGE_VALUE_SHIFT;
        let place = self.members.entry(member.slot);
        // SAFETY: an aligned u64 within the mapping, which both sides access as a whole.
        unsafe { AtomicU64::from_ptr(&raw mut (*place).message) }.store(message, Ordering::SeqCst);
        true
    }
}

fn forget(gate: &Gate, keys: &[wire::service_key]) {
    let rules = gate.maps.get("service_rules");
    for key in keys {
        let _ = rules.delete(bytes_of(key));
    }
}

/// No more than `most`: where others delete meanwhile, the walk over the keys begins anew.
fn forget_all(gate: &Gate, map: &str, most: u32) {
    let map = gate.maps.get(map);
    let keys: Vec<_> = map.keys().take(most as usize).collect();
    for key in keys {
        let _ = map.delete(&key);
    }
}

fn text(bytes: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> = bytes.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn started(key: &wire::service_started, start: &wire::service_start) -> Started {
    let each = match u32::from(key.each) {
        wire::EACH_USER => Each::User(key.value[0] as u32),
        wire::EACH_UNIT => Each::Unit(key.value[0]),
        wire::EACH_EXE => Each::Exe(key.value[0]),
        _ => {
            let bytes: Vec<u8> = key.value.into_iter().flat_map(u64::to_ne_bytes).collect();
            let octets: [u8; 16] = bytes.try_into().expect("two words");
            Each::Client(IpAddr::V6(Ipv6Addr::from(octets)).to_canonical())
        }
    };
    Started { number: start.number as u16, below: key.below, each, called: text(&start.name) }
}

fn member(record: &wire::service_member_record) -> Member {
    Member {
        pid: record.pid,
        tgid: record.tgid,
        slot: record.slot,
        epoch: record.epoch,
        began_ns: record.began_ns,
        command: text(&record.comm),
        service: record.service,
        why: record.why,
        borrowed: record.borrowed,
        rule: (record.rule as usize).checked_sub(1),
        book: record.book,
        user: record.user,
        labelled_ns: (record.labelled_ns != 0).then_some(record.labelled_ns),
        since: Figures::new(&record.since),
        used_for: record.used_for,
    }
}

impl Gate {
    /// Of the hashes by which the kernel side finds rules.
    pub fn salt(&self) -> u64 {
        self.header.read(0).salt
    }

    /// The session's services are no longer in force: nobody is a member of any.
    pub(crate) fn end_services(&self, session: u32) {
        let services = atomic_field!(self.header, 0, services);
        if services.compare_exchange(session, 0, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return;
        }
        // Whoever is being made sees that there are none.
        cpus::wait_for_all();
        for slot in 1..self.threads.entries() {
            atomic_field!(self.threads, slot, mask).fetch_and(!wire::SERVICE, Ordering::SeqCst);
        }
    }
}
