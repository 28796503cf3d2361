//! A hook at which a process has plugins. Outside of the gate, a program is attached as long as
//! there are plugins; it enters the first one.

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::Arc;

use super::attach_point::{AttachPoint, is_detached};
use super::chain::Chain;
use super::load::{instruction, load_program};
use super::task_entry::load_task_entry;
use crate::error::Result;
use crate::gate::Gate;
use crate::wire;

/// A hook with a chain of plugins. Outside of the gate, it is attached until dropped.
pub struct PluginHook {
    /// The plugins at the hook.
    pub chain: Arc<Chain>,
    attached: Vec<OwnedFd>,
    is_device_hook: bool,
}

impl PluginHook {
    /// Outside of the gate, attaches a program that enters the plugins. The gate enters them
    /// itself. `has_sessions`: the process has plugins for the tasks of its session alone. Then the
    /// program finds the session of the task, if tasks pass the hook.
    pub fn new(point: &AttachPoint, gate: &Gate, has_sessions: bool) -> Result<Self> {
        if let AttachPoint::Gate(hook) = point {
            let chain = Arc::new(Chain::of_gate(gate, *hook)?);
            return Ok(Self { chain, attached: Vec::new(), is_device_hook: false });
        }
        let (chain, program) = match point {
            AttachPoint::Cgroup(hook) if has_sessions => {
                let chain = Chain::new(0..wire::SESSIONS)?;
                let program = load_task_entry(hook, &chain, gate)?;
                (chain, program)
            }
            _ => {
                let chain = Chain::new(0..1)?;
                let instructions = entry_program(&chain, point.default_return());
                let program = load_program(&instructions, &point.load_attributes()?, None)?;
                (chain, program)
            }
        };
        let chain = Arc::new(chain);
        let attached = point.attach(program.as_fd())?;
        Ok(Self { chain, attached, is_device_hook: point.is_device_hook() })
    }

    /// Whether the hook's network device is gone. A new device of the same name does not count.
    pub fn is_device_gone(&self) -> bool {
        self.is_device_hook && self.attached.iter().any(|link| is_detached(link.as_fd()))
    }
}

/// The instructions of a program that enters the first plugin, or returns `default_return` if there
/// is none.
fn entry_program(chain: &Chain, default_return: i32) -> Vec<[u8; 8]> {
    /// enum bpf_func_id, include/uapi/linux/bpf.h
    const TAIL_CALL: i32 = 12;
    let (memory, programs) = (chain.memory().as_raw_fd(), chain.programs().as_raw_fd());
    vec![
        // r3 = the first plugin's number, by its address (BPF_PSEUDO_MAP_VALUE)
        instruction(0x18, 0x23, 0, memory),
        instruction(0, 0, 0, chain.first_offset() as i32),
        instruction(0x71, 0x33, 0, 0),
        // If there is no plugin, skip the call.
        instruction(0x15, 0x03, 3, 0),
        // r2 = the programs (BPF_PSEUDO_MAP_FD); r1 is the context
        instruction(0x18, 0x12, 0, programs),
        instruction(0, 0, 0, 0),
        instruction(0x85, 0, 0, TAIL_CALL),
        instruction(0xb7, 0, 0, default_return),
        instruction(0x95, 0, 0, 0),
    ]
}
