//! A hook at which a process has plugins. Outside of the gate, a program of a few instructions is
//! attached as long as there are plugins, and enters the first one.

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::Arc;

use super::attach_point::{AttachPoint, is_detached};
use super::chain::Chain;
use super::load::{instruction, load_program};
use crate::error::Result;
use crate::gate::Gate;

/// Attached until dropped.
pub struct PluginHook {
    pub chain: Arc<Chain>,
    attached: Vec<OwnedFd>,
    is_device_hook: bool,
}

impl PluginHook {
    /// Attaches what enters the plugins; the gate needs nothing for that.
    pub fn new(site: &AttachPoint, gate: &Gate) -> Result<Self> {
        if let AttachPoint::Gate(hook) = site {
            let chain = Arc::new(Chain::of_gate(gate, *hook)?);
            return Ok(Self { chain, attached: Vec::new(), is_device_hook: false });
        }
        let chain = Arc::new(Chain::new()?);
        let program = load_program(
            &entry_program(&chain, site.default_return()),
            &site.load_attributes()?,
            None,
        )?;
        let attached = site.attach(program.as_fd())?;
        Ok(Self { chain, attached, is_device_hook: site.is_device_hook() })
    }

    /// Whether the hook's network device is gone: a new device of the same name is another one.
    pub fn is_device_gone(&self) -> bool {
        self.is_device_hook && self.attached.iter().any(|link| is_detached(link.as_fd()))
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
