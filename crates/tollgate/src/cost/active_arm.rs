//! An arm that is switched on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, bail};
use kernel::floor::Floor;

use super::arm_file::{FileArm, SettleRule};
use super::arms::ArmKind;
use super::other_gate::{ensure_no_other_gate, is_gated};
use super::process_group::{self, ProcessGroup};
use super::worker::{WorkerReply, WorkerRequest};
use super::worker_process::{WORKER_EXIT_LIMIT, Worker};
use crate::session_runner::SessionRunner;

/// The time that each benchmark adds to the limit of a worker. Even with the slowest arm, a
/// benchmark should take only about a fortieth of this time in a block.
const TASK_MARGIN: Duration = Duration::from_secs(10);

/// An arm that is on as long as this value exists.
pub enum ActiveArm {
    Nothing,
    Floor(#[expect(dead_code, reason = "held until the block is over")] Box<Floor>),
    /// `SessionRunner::tend` is not called while the worker runs, because its work would be
    /// measured as part of the arm.
    Gate {
        session: Box<SessionRunner>,
        bystander: bool,
    },
    File {
        arm: Box<FileArm>,
        background: Option<ProcessGroup>,
        started: bool,
    },
}

impl ActiveArm {
    /// Returns `None` if the run was cancelled meanwhile.
    pub fn switch_on(kind: &ArmKind, cancelled: &AtomicBool) -> Result<Option<Self>> {
        Ok(Some(match kind {
            ArmKind::Off => Self::Nothing,
            ArmKind::Empty { hooks, only } => Self::Floor(Box::new(Floor::attach(hooks, *only)?)),
            ArmKind::Gate { setups, bystander } => {
                let mut session =
                    SessionRunner::start(setups.iter().map(|setup| setup()).collect())?;
                session.prepare_machine()?;
                Self::Gate { session: Box::new(session), bystander: *bystander }
            }
            ArmKind::File(arm) => {
                let mut on =
                    Self::File { arm: Box::new(arm.clone()), background: None, started: false };
                match on.start_file_arm(cancelled) {
                    Ok(true) => on,
                    Ok(false) => {
                        on.switch_off()?;
                        return Ok(None);
                    }
                    Err(error) => {
                        // Stops the parts that did start.
                        let _ = on.switch_off();
                        return Err(error);
                    }
                }
            }
        }))
    }

    /// Returns false if the run was cancelled meanwhile.
    fn start_file_arm(&mut self, cancelled: &AtomicBool) -> Result<bool> {
        let Self::File { arm, background, started } = self else { return Ok(true) };
        if let Some(start) = &arm.start {
            // A start that fails half-way must be undone as well.
            *started = true;
            if !process_group::run(start, arm.limit(), cancelled)? {
                return Ok(false);
            }
        }
        if let Some(program) = &arm.background {
            *background = Some(process_group::background(program)?);
        }
        match arm.settle() {
            Some(SettleRule::Command(command)) => {
                process_group::run(&command, arm.limit(), cancelled)
            }
            Some(SettleRule::Time(time)) => {
                process_group::pause(time, cancelled);
                Ok(!cancelled.load(Ordering::Relaxed))
            }
            None => Ok(true),
        }
    }

    /// Fails if another process shares the arm's gate or has loaded a gate of its own. An arm of a
    /// file is not checked, because it may itself be Tollgate.
    pub fn ensure_sole_user(&self) -> Result<()> {
        ensure_no_other_gate(match self {
            Self::Gate { session, .. } => session.is_shared(),
            Self::File { .. } => false,
            Self::Nothing | Self::Floor(_) => is_gated(),
        })
    }

    pub fn run(
        &mut self,
        request: &WorkerRequest,
        cancelled: &AtomicBool,
    ) -> Result<Option<WorkerReply>> {
        let (under, limit) = match self {
            Self::File { arm, .. } => (arm.under.clone(), arm.limit()),
            _ => (None, WORKER_EXIT_LIMIT),
        };
        let limit = limit + TASK_MARGIN * request.tasks.len() as u32;
        let reply = match self {
            Self::Gate { session, bystander: false } => {
                let pending = session.pending_children()?;
                let worker = Worker::start(None)?;
                drop(pending);
                worker.finish(request, limit, cancelled)
            }
            _ => Worker::start(under.as_deref())?.finish(request, limit, cancelled),
        }?;
        if let Self::File { background: Some(program), .. } = self {
            program.still_runs()?;
        }
        Ok(reply)
    }

    pub fn loss(&self) -> Result<Option<u64>> {
        match self {
            Self::Gate { session, .. } => Ok(Some(session.losses()?.values().sum())),
            Self::File { arm, .. } => {
                let Some(command) = &arm.loss else { return Ok(None) };
                let printed = process_group::output_of(command, arm.limit())?;
                match printed.trim().parse() {
                    Ok(lost) => Ok(Some(lost)),
                    Err(_) => {
                        bail!("`{command}` printed {:?}, which is not a number", printed.trim())
                    }
                }
            }
            _ => Ok(None),
        }
    }

    pub fn switch_off(self) -> Result<()> {
        match self {
            Self::Nothing | Self::Floor(_) => Ok(()),
            Self::Gate { session, .. } => session.cancel(),
            Self::File { arm, background, started } => {
                let ended = background.map_or(Ok(()), ProcessGroup::end);
                match &arm.stop {
                    Some(stop) if started => ended.and(
                        process_group::run(stop, arm.limit(), &process_group::NEVER_CANCELLED)
                            .map(drop),
                    ),
                    _ => ended,
                }
            }
        }
    }
}
