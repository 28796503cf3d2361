//! The hooks at which a process has plugins. Outside of the gate, a program of a few instructions is attached for as long as there are
//! some, and goes over to the first.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::Arc;

use super::Turn;
use super::chain::{Chain, EVERYBODY, Place};
use super::load::load_program;
use super::section::Site;
use crate::error::Result;
use crate::gate::Gate;

#[derive(Default)]
pub struct Hooks(BTreeMap<Site, Hook>);

struct Hook {
    chain: Arc<Chain>,
    _attached: Vec<OwnedFd>,
}

impl Hooks {
    /// Those where no plugin is any more are let go.
    pub fn leave_unused(&mut self) {
        self.0.retain(|_, hook| Arc::strong_count(&hook.chain) > 1);
    }

    /// A place for one more plugin there.
    pub fn place(&mut self, site: &Site, gate: &Gate, turn: Turn) -> Result<Place> {
        // Outside of the gate, nobody knows of sessions.
        let turn = if matches!(site, Site::Gate(_)) { turn } else { Turn { session: EVERYBODY, ..turn } };
        self.leave_unused();
        if let Some(hook) = self.0.get(site) {
            return hook.chain.reserve(turn.session, turn.priority);
        }
        let hook = match site {
            Site::Gate(hook) => {
                let chain = Chain::of_gate(gate, *hook)?;
                Hook { chain: Arc::new(chain), _attached: Vec::new() }
            }
            _ => {
                let chain = Chain::new()?;
                let program = load_program(&way_in(&chain, site.goes_on()), &site.kind()?, None)?;
                Hook { chain: Arc::new(chain), _attached: site.attach(program.as_fd())? }
            }
        };
        let place = hook.chain.reserve(turn.session, turn.priority);
        self.0.insert(site.clone(), hook);
        place
    }
}

/// Goes over to the first plugin, if there is one.
fn way_in(chain: &Chain, goes_on: i32) -> Vec<[u8; 8]> {
    /// enum bpf_func_id, include/uapi/linux/bpf.h
    const TAIL_CALL: i32 = 12;
    let instruction = |code: u8, registers: u8, offset: i16, immediate: i32| {
        let mut bytes = [code, registers, 0, 0, 0, 0, 0, 0];
        bytes[2..4].copy_from_slice(&offset.to_le_bytes());
        bytes[4..].copy_from_slice(&immediate.to_le_bytes());
        bytes
    };
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
