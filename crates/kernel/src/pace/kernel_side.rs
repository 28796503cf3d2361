//! Creates the maps of pace when they are first needed, and ends the tasks of a session.

use std::os::fd::AsFd as _;

use libbpf_rs::MapHandle;

use super::ended_tasks;
use super::tracking::Tracking;
use crate::error::{ErrorContext as _, Result};
use crate::gate::{Gate, KernelSide, LazyMaps};
use crate::skeletons::gate::OpenGateMaps;
use crate::wire;

fn shrink_maps(maps: &mut OpenGateMaps) -> Result<()> {
    const SIZING: &str = "shrinking the maps of pace, which are not used";
    maps.bss_pace_tasks.set_value_size(size_of::<wire::pace_task>() as u32).doing(SIZING)?;
    maps.bss_pace_index.set_value_size(size_of::<u64>() as u32).doing(SIZING)?;
    maps.bss_pace_thr.set_value_size(size_of::<wire::pace_thread>() as u32).doing(SIZING)?;
    maps.bss_pace_rules.set_value_size(size_of::<wire::pace_rules>() as u32).doing(SIZING)?;
    maps.bss_pace_sched.set_value_size(size_of::<wire::pace_schedule>() as u32).doing(SIZING)?;
    maps.bss_pace_cpus.set_value_size(size_of::<wire::pace_cpu>() as u32).doing(SIZING)?;
    maps.bss_pace_dom.set_value_size(size_of::<wire::pace_domain>() as u32).doing(SIZING)?;
    maps.pace_types.set_max_entries(1).doing(SIZING)?;
    maps.pace_ended_tasks.set_max_entries(1).doing(SIZING)?;
    maps.pace_counters.set_max_entries(1).doing(SIZING)?;
    maps.pace_timers.set_max_entries(1).doing(SIZING)?;
    maps.pace_free_tasks.set_max_entries(1).doing(SIZING)
}

/// The verifier learns the size of a session's buffers from a first one.
fn fit_maps(maps: &mut OpenGateMaps) -> Result<MapHandle> {
    let buffers = ended_tasks::new_buffers()?;
    maps.pace_ended_tasks.set_inner_map_fd(buffers.as_fd()).doing("fitting the maps of pace")?;
    Ok(buffers)
}

/// Ends the tasks of sessions.
pub struct PaceKernelSide;

impl KernelSide for PaceKernelSide {
    fn lazy_maps(&self) -> Option<&'static LazyMaps> {
        Some(&LazyMaps {
            prefixes: &[
                "pace_",
                ".bss.pace_tasks",
                ".bss.pace_index",
                ".bss.pace_thr",
                ".bss.pace_rules",
                ".bss.pace_sched",
                ".bss.pace_cpus",
                ".bss.pace_dom",
            ],
            bit: wire::PACE,
            shrink: shrink_maps,
            fit: Some(fit_maps),
        })
    }

    fn release(&self, gate: &Gate, session: u32) {
        if gate.sessions.read(session).mask & wire::PACE == 0 {
            return;
        }
        ended_tasks::release(gate, session);
        if let Ok(tracking) = Tracking::open(gate) {
            tracking.stop_pacing(session);
            // A task that stays is only an entry that cannot be used again.
            let _ = tracking.release(gate, session);
            tracking.stop_counting(gate, session);
        }
    }
}
