//! Creates the maps of services when they are first needed, and deactivates the services of a
//! session when it ends or its owner was killed.

use std::sync::atomic::Ordering;

use crate::cpus;
use crate::error::{ErrorContext as _, Result};
use crate::gate::{Gate, KernelSide, LazyMaps, Lock};
use crate::mapped_array::atomic_field;
use crate::skeletons::gate::OpenGateMaps;
use crate::wire;

/// Deactivates the services of a session, if they are the active ones. No thread is a member of a
/// service afterwards.
fn deactivate(gate: &Gate, session: u32) {
    let services = atomic_field!(gate.header, 0, services_session);
    if services.compare_exchange(session, 0, Ordering::SeqCst, Ordering::SeqCst).is_err() {
        return;
    }
    // After this, every thread that is being created sees that no services are active.
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

/// Deactivates the services of sessions.
pub struct ServicesKernelSide;

impl KernelSide for ServicesKernelSide {
    fn lazy_maps(&self) -> Option<&'static LazyMaps> {
        Some(&LazyMaps {
            // libbpf truncates a section's name to 15 characters.
            prefixes: &["service_", ".bss.services", ".bss.members", ".bss.rulesets"],
            bit: wire::SERVICE,
            shrink: shrink_maps,
            fit: None,
        })
    }

    fn release(&self, gate: &Gate, session: u32) {
        deactivate(gate, session);
    }

    fn tend(&self, gate: &Gate, session: u32) -> Result<()> {
        let services = atomic_field!(gate.header, 0, services_session).load(Ordering::SeqCst);
        if services != 0 && services != session && !gate.is_open(services) {
            // The process that started the services was killed.
            let _lock = Lock::take()?;
            if !gate.is_open(services) {
                deactivate(gate, services);
            }
        }
        Ok(())
    }
}
