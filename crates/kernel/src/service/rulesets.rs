//! The active ruleset: how the next one is written beside it and activated.

use std::sync::atomic::Ordering;

use libbpf_rs::{MapCore as _, MapFlags};
use zerocopy::IntoBytes;

use super::service_maps::KernelServices;
use crate::cpus;
use crate::error::{ErrorContext, Result};
use crate::gate::Gate;
use crate::mapped_array::atomic_field;
use crate::wire;

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

impl KernelServices {
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
}

fn delete_rules(gate: &Gate, keys: &[wire::service_key]) {
    let rules = gate.maps.get("service_rules");
    for key in keys {
        let _ = rules.delete(key.as_bytes());
    }
}
