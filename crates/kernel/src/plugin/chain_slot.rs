//! The slot that a plugin has at a hook.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use super::chain::{Chain, MAX_LINKED, linked};
use super::hook::PluginHook;
use crate::error::{Error, HookUse, Result};
use crate::gate::Lock;
use crate::wire::plugin_slot;

/// A plugin's slot at a hook. It is freed when dropped.
pub struct ChainSlot {
    chain: Arc<Chain>,
    number: u32,
    /// `None` if the plugin is being retired.
    hook: Option<Arc<PluginHook>>,
}

impl ChainSlot {
    /// Reserves a slot for a plugin of a session's tasks, or of all tasks.
    pub fn reserve(hook: &Arc<PluginHook>, session: u32, priority: i32) -> Result<Self> {
        let number = hook.chain.reserve(session, priority)?;
        Ok(Self { chain: Arc::clone(&hook.chain), number, hook: Some(Arc::clone(hook)) })
    }

    /// Gives up the hook of an unlinked plugin. The hook is detached if no other plugin uses it,
    /// even if threads are still in this plugin.
    pub fn detach(&mut self) {
        self.hook = None;
    }

    /// The chain that the slot is part of.
    pub fn chain(&self) -> &Chain {
        &self.chain
    }

    /// See [`Chain::next_offset`].
    pub fn next_offset(&self) -> u32 {
        self.chain.next_offset(self.number)
    }

    /// Stores the program in the slot, which is not linked yet.
    pub fn set_program(&self, program: BorrowedFd<'_>) -> Result<()> {
        self.chain.set_program(self.number, program)
    }

    /// Replaces the program, which no thread can enter any more, by one that does nothing. The
    /// entry is not deleted, because the kernel would wait for one more grace period if the map
    /// belongs to the gate. A process that stores a program meanwhile would wait as well (v6.18
    /// bpf_arch_poke_desc_update). If the plugin is still linked, its program stays.
    pub fn clear_program(&self, nothing: Result<OwnedFd>) {
        if !self.is_linked()
            && nothing.and_then(|program| self.set_program(program.as_fd())).is_err()
        {
            self.chain.delete(self.number);
        }
    }

    /// See [`PluginHook::is_device_gone`].
    pub fn is_device_gone(&self) -> bool {
        self.hook.as_ref().is_some_and(|hook| hook.is_device_gone())
    }

    /// Whether threads enter the plugin here.
    pub fn is_linked(&self) -> bool {
        self.chain.slots()[self.number as usize].is_linked != 0
    }

    /// Links the plugin. With `instead_of`, it replaces another plugin by a single store, so that
    /// each call runs one of the two. Fails if the session has [`MAX_LINKED`] plugins there
    /// already.
    pub fn link(&self, instead_of: Option<&Self>) -> Result<Duration> {
        let _lock = Lock::take_chain_lock()?;
        let (number, slots) = (self.number as usize, self.chain.slots());
        let others = linked(&slots, slots[number].session);
        let is_replaced = instead_of.is_some_and(Self::is_linked);
        if others.len() >= MAX_LINKED && !is_replaced {
            let owner = |number: &u8| slots[usize::from(*number)].owner_pid;
            let owners = others.iter().map(owner).collect();
            return Err(Error::HookFull(HookUse { owners, ..HookUse::default() }));
        }
        Ok(self.chain.change(|slots| {
            if let Some(other) = instead_of {
                slots[other.number as usize].is_linked = 0;
                // This plugin gets the position of the one that it replaces.
                slots[number].since = slots[other.number as usize].since;
            }
            slots[number].is_linked = 1;
        }))
    }

    /// Unlinks the plugin. Threads that have read its number already still enter it, until
    /// [`crate::cpus::wait_for_all`] returns.
    pub fn unlink(&self) -> Result<Duration> {
        let _lock = Lock::take_chain_lock()?;
        Ok(self.chain.change(|slots| slots[self.number as usize].is_linked = 0))
    }
}

impl Drop for ChainSlot {
    fn drop(&mut self) {
        // If the lock fails, the slot is freed by the first sweep after the end of this process.
        if let Ok(_lock) = Lock::take_chain_lock() {
            if self.is_linked() {
                self.chain.unlink_slot(self.number);
                self.chain.delete(self.number);
            }
            self.chain.write_slot(self.number, plugin_slot::default());
        }
    }
}
