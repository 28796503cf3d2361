//! The hooks at which this process has plugins.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use super::attach_point::AttachPoint;
use super::chain::{ALL_SESSIONS, ChainOrder};
use super::chain_slot::ChainSlot;
use super::hook::PluginHook;
use crate::error::{Error, Result};
use crate::gate::Gate;

/// All hooks at which this process has plugins. When dropped, it waits until its retired plugins
/// are freed.
#[derive(Default)]
pub struct PluginHooks {
    /// Each hook lives as long as a plugin has a slot there.
    all: BTreeMap<AttachPoint, Weak<PluginHook>>,
    /// Threads that free retired plugins, once no thread is in them any more.
    retiring: Vec<JoinHandle<()>>,
}

impl PluginHooks {
    /// Reserves a slot for one more plugin at a hook. If all slots are taken, waits for retired
    /// plugins to free theirs.
    pub fn reserve_slot(
        &mut self,
        point: &AttachPoint,
        gate: &Gate,
        order: ChainOrder,
    ) -> Result<ChainSlot> {
        let session = match point {
            AttachPoint::Gate(_) => order.session,
            AttachPoint::Cgroup(_) if !order.is_machine_wide => order.session,
            // No task passes there, or the plugin can only observe.
            _ => ALL_SESSIONS,
        };
        let hook = self.hook(point, gate, order.session != ALL_SESSIONS)?;
        match ChainSlot::reserve(&hook, session, order.priority) {
            Err(Error::NoSlotAtHook(_)) if !self.retiring.is_empty() => {
                self.wait_for_retired();
                ChainSlot::reserve(&hook, session, order.priority)
            }
            slot => slot,
        }
    }

    fn hook(
        &mut self,
        point: &AttachPoint,
        gate: &Gate,
        has_sessions: bool,
    ) -> Result<Arc<PluginHook>> {
        if let Some(hook) =
            self.all.get(point).and_then(Weak::upgrade).filter(|hook| !hook.is_device_gone())
        {
            return Ok(hook);
        }
        let hook = PluginHook::new(point, gate, has_sessions)?;
        let hook = Arc::new(hook);
        self.all.retain(|_, hook| hook.strong_count() > 0);
        self.all.insert(point.clone(), Arc::downgrade(&hook));
        Ok(hook)
    }

    /// Takes over a thread that frees a retired plugin.
    pub fn add_retiring(&mut self, retiring: Option<JoinHandle<()>>) {
        self.retiring.retain(|thread| !thread.is_finished());
        self.retiring.extend(retiring);
    }

    /// Waits until all retired plugins are freed, with their slots.
    pub fn wait_for_retired(&mut self) {
        for thread in self.retiring.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for PluginHooks {
    fn drop(&mut self) {
        self.wait_for_retired();
    }
}
