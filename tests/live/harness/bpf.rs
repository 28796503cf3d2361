//! The gate's objects in the kernel, from the kernel's own lists.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;

use libbpf_rs::query::{LinkInfoIter, MapInfoIter, ProgInfoIter};
use libbpf_rs::{MapCore as _, MapHandle};

use super::job::processes;

/// Returns links of the gate's programs that no living process holds.
pub fn abandoned_links() -> Vec<u32> {
    let before = gate_links();
    let held: BTreeSet<_> = processes().into_iter().flat_map(links_held_by).collect();
    // The links of processes that started or ended meanwhile are in one of the two lists only.
    let after = gate_links();
    let both = before.intersection(&after).copied();
    both.filter(|link| !held.contains(link)).collect()
}

fn gate_links() -> BTreeSet<u32> {
    let programs: BTreeSet<_> = ProgInfoIter::default()
        .filter(|program| program.name.as_encoded_bytes().starts_with(b"gate_"))
        .map(|program| program.id)
        .collect();
    LinkInfoIter::default()
        .filter(|link| programs.contains(&link.prog_id))
        .map(|link| link.id)
        .collect()
}

pub fn links_held_by(pid: u32) -> Vec<u32> {
    let links = descriptors(pid).into_iter();
    links.filter_map(|fields| fields.get("link_id").copied()).map(|id| id as u32).collect()
}

/// Returns the kernel memory of the maps that a process holds, in bytes.
pub fn map_bytes(pid: u32) -> u64 {
    let maps: BTreeMap<_, _> = descriptors(pid)
        .into_iter()
        .filter_map(|fields| Some((*fields.get("map_id")?, *fields.get("memlock")?)))
        .collect();
    maps.values().sum()
}

/// Returns the nanoseconds spent in all programs that a process holds, while the kernel measures
/// them.
pub fn programs_ns(pid: u32) -> u64 {
    descriptors(pid).iter().filter_map(|fields| fields.get("run_time_ns")).sum()
}

/// Returns how much of a process's resident memory is maps of this kind, in bytes.
pub fn mapped_bytes(pid: u32) -> u64 {
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
    let mut of_a_map = false;
    let mut kib = 0;
    for line in smaps.lines() {
        match line.strip_prefix("Rss:") {
            Some(size) if of_a_map => {
                let size = size.split_whitespace().next();
                kib += size.and_then(|size| size.parse::<u64>().ok()).unwrap_or(0);
            }
            Some(_) => {}
            // A mapping's first line begins with its addresses, the others with a name.
            None if !line.split(' ').next().is_some_and(|word| word.ends_with(':')) => {
                of_a_map = line.contains("bpf-map");
            }
            None => {}
        }
    }
    kib * 1024
}

/// Returns the numbers in each file of /proc/PID/fdinfo.
fn descriptors(pid: u32) -> Vec<BTreeMap<String, u64>> {
    let entries = fs::read_dir(format!("/proc/{pid}/fdinfo"));
    let texts = entries
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| fs::read_to_string(entry.path()).ok());
    let field = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_owned(), value.trim().parse().ok()?))
    };
    texts.map(|text| text.lines().filter_map(field).collect()).collect()
}

/// Counts the entries of all maps of this name. Fails the test if there is no such map.
pub fn entries_of(name: &str) -> usize {
    // The kernel stores 15 characters of a name.
    let stored = &name.as_bytes()[..name.len().min(15)];
    let maps: Vec<_> = MapInfoIter::default()
        .filter(|map| map.name.as_bytes() == stored)
        .filter_map(|map| MapHandle::from_map_id(map.id).ok())
        .collect();
    assert!(!maps.is_empty(), "no map is named {name}");
    maps.iter().map(|map| map.keys().count()).sum()
}

/// The map of this name that the gate's processes share.
pub fn shared_map(name: &str) -> MapHandle {
    let mut maps = MapInfoIter::default().filter(|map| map.name.as_bytes() == name.as_bytes());
    let map = maps.next().unwrap_or_else(|| panic!("no map is named {name}"));
    MapHandle::from_map_id(map.id).expect("its processes hold it")
}
