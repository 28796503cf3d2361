//! The hooks at which a process has plugins.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use super::attach_point::AttachPoint;
use super::chain::{ALL_SESSIONS, ChainOrder};
use super::chain_slot::ChainSlot;
use super::hook::PluginHook;
use crate::error::{Error, Result};
use crate::gate::Gate;

/// All hooks with plugins of this process.
#[derive(Default)]
pub struct PluginHooks {
    /// Each lives as long as a plugin has a slot there.
    all: BTreeMap<AttachPoint, Weak<PluginHook>>,
    /// Threads that wait until no thread is in a plugin any more.
    retiring: Vec<JoinHandle<()>>,
}

impl PluginHooks {
    /// Reserves a slot for one more plugin there.
    pub fn reserve_slot(
        &mut self,
        site: &AttachPoint,
        gate: &Gate,
        turn: ChainOrder,
    ) -> Result<ChainSlot> {
        // Outside of the gate there are no sessions.
        let session =
            if matches!(site, AttachPoint::Gate(_)) { turn.session } else { ALL_SESSIONS };
        let hook = self.hook(site, gate)?;
        match ChainSlot::reserve(&hook, session, turn.priority) {
            Err(Error::NoSlotAtHook(_)) if !self.retiring.is_empty() => {
                self.wait_for_retired();
                ChainSlot::reserve(&hook, session, turn.priority)
            }
            place => place,
        }
    }

    fn hook(&mut self, site: &AttachPoint, gate: &Gate) -> Result<Arc<PluginHook>> {
        if let Some(hook) =
            self.all.get(site).and_then(Weak::upgrade).filter(|hook| !hook.is_device_gone())
        {
            return Ok(hook);
        }
        let hook = PluginHook::new(site, gate)?;
        let hook = Arc::new(hook);
        self.all.retain(|_, hook| hook.strong_count() > 0);
        self.all.insert(site.clone(), Arc::downgrade(&hook));
        Ok(hook)
    }

    /// Keeps a thread that waits until no thread is in a plugin any more.
    pub fn wait_later(&mut self, retiring: Option<JoinHandle<()>>) {
        self.retiring.retain(|one| !one.is_finished());
        self.retiring.extend(retiring);
    }

    /// Waits until all of those are gone and their slots are free.
    pub fn wait_for_retired(&mut self) {
        for one in self.retiring.drain(..) {
            let _ = one.join();
        }
    }
}

impl Drop for PluginHooks {
    fn drop(&mut self) {
        self.wait_for_retired();
    }
}
