//! The replies of a daemon's guard to requests.

use std::time::SystemTime;

use anyhow::Result;
use control::Response;
use kernel::gate::Gate;

use super::events::Events;
use super::extension::Guard;
use super::persist::SaveScope;
use super::requests::GuardRequest;
use crate::extension::LossReader;

/// Carries out a request. `since` is the start of the daemon.
pub fn reply(
    guard: &mut Guard,
    events: &mut Events,
    gate: &Gate,
    request: GuardRequest,
    since: SystemTime,
    losses: LossReader,
) -> Result<Response> {
    let value = match request {
        GuardRequest::Events { follow } => return Ok(events.lines(follow)),
        GuardRequest::Status => {
            serde_json::to_value(guard.status(gate, since, losses.read(gate)?))?
        }
        GuardRequest::Store => {
            guard.programs.save(gate, SaveScope::Active)?;
            serde_json::to_value(guard.programs.store.folder().canonicalize()?)?
        }
        GuardRequest::Import { baselines, replace } => {
            serde_json::to_value(guard.programs.import(gate, baselines, replace)?)?
        }
        GuardRequest::Transition { transition, programs } => {
            serde_json::to_value(guard.programs.apply_transition(gate, transition, &programs)?)?
        }
        GuardRequest::Off => serde_json::to_value(guard.holds.switch(gate, &guard.programs, true))?,
        GuardRequest::On => serde_json::to_value(guard.holds.switch(gate, &guard.programs, false))?,
        GuardRequest::Hold { pid } => serde_json::to_value(guard.holds.hold(gate, pid)?)?,
        GuardRequest::Release { targets } => {
            serde_json::to_value(guard.holds.release(gate, &guard.programs, &targets)?)?
        }
    };
    Ok(Response::Value(value))
}
