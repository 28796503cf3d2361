//! The hooks at which a process has plugins. Outside of the gate, a program of a few instructions is attached for as long as there are
//! some, and goes over to the first.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use super::chain::{Chain, EVERYBODY, Place};
use super::load::{instruction, load_program};
use super::section::{Site, is_detached};
use super::{Plugin, Turn};
use crate::error::{Error, Result};
use crate::gate::Gate;

#[derive(Default)]
pub struct Hooks {
    /// Each is there as long as a plugin has a place there.
    all: BTreeMap<Site, Weak<Hook>>,
    /// Those that wait until nobody is in a plugin any more.
    leaving: Vec<JoinHandle<()>>,
}

pub struct Hook {
    pub chain: Arc<Chain>,
    attached: Vec<OwnedFd>,
    is_of_device: bool,
}

impl Hook {
    /// Whether the network device is gone that it is of: one of the same name is another one.
    pub fn is_lost(&self) -> bool {
        self.is_of_device && self.attached.iter().any(|link| is_detached(link.as_fd()))
    }
}

impl Hooks {
    /// A place for one more plugin there.
    pub fn place(&mut self, site: &Site, gate: &Gate, turn: Turn) -> Result<Place> {
        // Outside of the gate, nobody knows of sessions.
        let session = if matches!(site, Site::Gate(_)) { turn.session } else { EVERYBODY };
        let hook = self.hook(site, gate)?;
        match Place::reserve(&hook, session, turn.priority) {
            Err(Error::NoPlaceAtHook(_)) if !self.leaving.is_empty() => {
                self.wait_for_leaving();
                Place::reserve(&hook, session, turn.priority)
            }
            place => place,
        }
    }

    fn hook(&mut self, site: &Site, gate: &Gate) -> Result<Arc<Hook>> {
        if let Some(hook) = self.all.get(site).and_then(Weak::upgrade).filter(|hook| !hook.is_lost()) {
            return Ok(hook);
        }
        let hook = match site {
            Site::Gate(hook) => {
                let chain = Chain::of_gate(gate, *hook)?;
                Hook { chain: Arc::new(chain), attached: Vec::new(), is_of_device: false }
            }
            _ => {
                let chain = Chain::new()?;
                let program = load_program(&way_in(&chain, site.goes_on()), &site.kind()?, None)?;
                let attached = site.attach(program.as_fd())?;
                Hook { chain: Arc::new(chain), attached, is_of_device: site.is_of_device() }
            }
        };
        let hook = Arc::new(hook);
        self.all.retain(|_, hook| hook.strong_count() > 0);
        self.all.insert(site.clone(), Arc::downgrade(&hook));
        Ok(hook)
    }

    /// Drops a plugin without waiting for those who are in it still.
    pub fn leave(&mut self, plugin: Plugin) {
        self.leaving.retain(|one| !one.is_finished());
        self.leaving.extend(plugin.leave());
    }

    /// Until all of those are gone, and their places free.
    pub fn wait_for_leaving(&mut self) {
        for one in self.leaving.drain(..) {
            let _ = one.join();
        }
    }
}

impl Drop for Hooks {
    fn drop(&mut self) {
        self.wait_for_leaving();
    }
}

/// Goes over to the first plugin, if there is one.
fn way_in(chain: &Chain, goes_on: i32) -> Vec<[u8; 8]> {
    /// enum bpf_func_id, include/uapi/linux/bpf.h
    const TAIL_CALL: i32 = 12;
    let (memory, programs) = (chain.memory().as_raw_fd(), chain.programs().as_raw_fd());
    vec![
        // r3 = the first one's number, by its address (BPF_PSEUDO_MAP_VALUE)
        instruction(0x18, 0x23, 0, memory),
        instruction(0, 0, 0, chain.first_offset() as i32),
        instruction(0x71, 0x33, 0, 0),
        // None: to the end.
        instruction(0x15, 0x03, 3, 0),
        // r2 = the programs (BPF_PSEUDO_MAP_FD); r1 is the context
        instruction(0x18, 0x12, 0, programs),
        instruction(0, 0, 0, 0),
        instruction(0x85, 0, 0, TAIL_CALL),
        instruction(0xb7, 0, 0, goes_on),
        instruction(0x95, 0, 0, 0),
    ]
}
