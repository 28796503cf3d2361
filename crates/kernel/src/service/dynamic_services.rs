//! Services that rules have started.

use std::net::IpAddr;

use libbpf_rs::{MapCore as _, MapFlags};

use super::service_maps::{KernelServices, decode};
use crate::error::{ErrorContext, Result};
use crate::gate::Gate;
use crate::wire;

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

impl KernelServices {
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
