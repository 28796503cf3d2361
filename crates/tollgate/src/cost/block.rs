//! A block: an arm is switched on, a new worker does the timed work, and the arm is switched off.

use std::sync::atomic::AtomicBool;
use std::time::Instant;

use anyhow::{Context as _, Result};

use super::active_arm::ActiveArm;
use super::arms::Arm;
use super::interleave::Interleave;
use super::other_gate::{ensure_no_other_gate, is_gated};
use super::worker::{WorkerReply, WorkerRequest};

/// The measurements of a block.
pub struct BlockResult {
    pub reply: WorkerReply,
    /// Events that the arm has dropped. `None` if it does not report them.
    pub loss: Option<u64>,
}

/// Switches the arm on, lets a new worker execute the request when `interleave` permits, and
/// switches the arm off again. Returns `None` if the run was cancelled.
pub fn run_block(
    arm: &Arm,
    request: &WorkerRequest,
    interleave: &mut Interleave,
    cancelled: &AtomicBool,
) -> Result<Option<BlockResult>> {
    ensure_no_other_gate(is_gated())?;
    let began = Instant::now();
    let Some(mut on) = ActiveArm::switch_on(&arm.kind, cancelled)
        .with_context(|| format!("arm {:?} could not be switched on", arm.name))?
    else {
        return Ok(None);
    };
    interleave.wait(began.elapsed(), cancelled);
    let reply = on.run(request, cancelled).with_context(|| format!("in arm {:?}", arm.name));
    interleave.worker_ended();
    let loss = match &reply {
        Ok(Some(_)) => on.ensure_sole_user().and_then(|()| on.loss()),
        _ => Ok(None),
    };
    let off =
        on.switch_off().with_context(|| format!("arm {:?} could not be switched off", arm.name));
    interleave.switched_off();
    // The first error is the one that matters.
    let Some(reply) = reply? else { return off.map(|()| None) };
    let loss = loss.with_context(|| format!("arm {:?}", arm.name))?;
    off?;
    Ok(Some(BlockResult { reply, loss }))
}
