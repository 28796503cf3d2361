//! The hooks at which a process has plugins. Outside of the gate, a program of a few instructions
//! is attached as long as there are plugins, and enters the first one.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use super::attach_point::{AttachPoint, is_detached};
use super::chain::{ALL_SESSIONS, Chain, ChainSlot};
use super::load::{instruction, load_program};
use super::{ChainOrder, LoadedPlugin};
use crate::error::{Error, Result};
use crate::gate::Gate;

#[derive(Default)]
pub struct PluginHooks {
    /// Each lives as long as a plugin has a slot there.
    all: BTreeMap<AttachPoint, Weak<PluginHook>>,
    /// Threads that wait until no thread is in a plugin any more.
    retiring: Vec<JoinHandle<()>>,
}

pub struct PluginHook {
    pub chain: Arc<Chain>,
    attached: Vec<OwnedFd>,
    is_device_hook: bool,
}

impl PluginHook {
    /// Whether the hook's network device is gone: a new device of the same name is another one.
    pub fn is_device_gone(&self) -> bool {
        self.is_device_hook && self.attached.iter().any(|link| is_detached(link.as_fd()))
    }
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
        let hook = match site {
            AttachPoint::Gate(hook) => {
                let chain = Chain::of_gate(gate, *hook)?;
                PluginHook { chain: Arc::new(chain), attached: Vec::new(), is_device_hook: false }
            }
            _ => {
                let chain = Chain::new()?;
                let program = load_program(
                    &entry_program(&chain, site.default_return()),
                    &site.load_attributes()?,
                    None,
                )?;
                let attached = site.attach(program.as_fd())?;
                PluginHook {
                    chain: Arc::new(chain),
                    attached,
                    is_device_hook: site.is_device_hook(),
                }
            }
        };
        let hook = Arc::new(hook);
        self.all.retain(|_, hook| hook.strong_count() > 0);
        self.all.insert(site.clone(), Arc::downgrade(&hook));
        Ok(hook)
    }

    /// Drops a plugin without waiting for the threads that are still in it.
    pub fn retire(&mut self, plugin: LoadedPlugin) {
        self.retiring.retain(|one| !one.is_finished());
        self.retiring.extend(plugin.retire());
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

/// Enters the first plugin, if there is one.
fn entry_program(chain: &Chain, goes_on: i32) -> Vec<[u8; 8]> {
    /// enum bpf_func_id, include/uapi/linux/bpf.h
    const TAIL_CALL: i32 = 12;
    let (memory, programs) = (chain.memory().as_raw_fd(), chain.programs().as_raw_fd());
    vec![
        // r3 = the first plugin's number, by its address (BPF_PSEUDO_MAP_VALUE)
        instruction(0x18, 0x23, 0, memory),
        instruction(0, 0, 0, chain.first_offset() as i32),
        instruction(0x71, 0x33, 0, 0),
        // No plugin: to the end.
        instruction(0x15, 0x03, 3, 0),
        // r2 = the programs (BPF_PSEUDO_MAP_FD); r1 is the context
        instruction(0x18, 0x12, 0, programs),
        instruction(0, 0, 0, 0),
        instruction(0x85, 0, 0, TAIL_CALL),
        instruction(0xb7, 0, 0, goes_on),
        instruction(0x95, 0, 0, 0),
    ]
}
