//! What is compared, and how each arm is switched on for a block.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use std::io::{Read as _, Write as _};

use anyhow::{Context, Result, bail};
use kernel::floor::Floor;
use kernel::gate::{Gate, Lock};
use kernel::process::wait_readable;
use kernel::session::{Options, Session};
use kernel::wire;

use super::arm_file::{FileArm, Settle};
use super::commands::{self, Group};
use super::worker::{Answer, Request};

pub const OFF: &str = "off";
pub const EMPTY: &str = "empty";

/// How often a block looks whether it is to be given up.
const LOOK: Duration = Duration::from_millis(100);

/// How long a worker that has answered may take to end.
const END: Duration = Duration::from_secs(30);

#[derive(Debug, Clone)]
pub enum Kind {
    /// Nothing is on. The controls are this, too.
    Off,
    /// Empty programs on the gate's hooks; with clocks, also two clock readings a call.
    Empty {
        clocks: bool,
    },
    /// Extensions of the gate; a bystander is not gated itself.
    Gate {
        mask: u32,
        bystander: bool,
    },
    File(FileArm),
}

#[derive(Debug, Clone)]
pub struct Arm {
    pub name: String,
    pub kind: Kind,
}

/// Every built-in arm, with what it is.
pub fn built_in() -> Vec<(Arm, &'static str)> {
    let sites = wire::LENS | wire::LENS_SITES;
    let gate = |name: &str, mask, bystander| Arm { name: name.into(), kind: Kind::Gate { mask, bystander } };
    vec![
        (Arm { name: OFF.into(), kind: Kind::Off }, "nothing: what all others are compared with"),
        (
            Arm { name: EMPTY.into(), kind: Kind::Empty { clocks: false } },
            "empty programs on the gate's six hooks: the floor",
        ),
        (
            Arm { name: "empty-clocks".into(), kind: Kind::Empty { clocks: true } },
            "the same with a clock reading at each side of a call",
        ),
        (gate("lens", sites, false), "lens, as `tollgate run` uses it"),
        (gate("lens-no-sites", wire::LENS, false), "lens without blocking sites"),
        (gate("lens-sample", sites | wire::LENS_SAMPLE, false), "lens that times one in sixteen cheap calls"),
        (gate("lens-bystander", sites, true), "lens is on, and somebody else is gated"),
    ]
}

/// What is on while this lives.
enum On {
    Nothing,
    Floor(#[expect(dead_code, reason = "held until the block is over")] Box<Floor>),
    Gate { gate: Box<Gate>, session: Box<Session>, bystander: bool },
    File { arm: Box<FileArm>, background: Option<Group>, started: bool },
}

/// A block's figures.
pub struct Block {
    pub answer: Answer,
    /// Events that the arm says it has dropped; none: it does not say.
    pub loss: Option<u64>,
}

impl Arm {
    /// Whether it needs root.
    pub fn is_built_in_kernel(&self) -> bool {
        matches!(self.kind, Kind::Empty { .. } | Kind::Gate { .. })
    }

    /// Switches the arm on, has a new worker do the request, and switches it off again. `None`: given up.
    pub fn block(
        &self,
        request: &Request,
        least_settle: Duration,
        given_up: &AtomicBool,
    ) -> Result<Option<Block>> {
        let mut on =
            self.switch_on().with_context(|| format!("arm {:?} could not be switched on", self.name))?;
        sleep(self.settle_time().max(least_settle));
        let answer = on.run(request, given_up).with_context(|| format!("in arm {:?}", self.name));
        let loss = match &answer {
            Ok(Some(_)) => on.loss(),
            _ => Ok(None),
        };
        let off = on.switch_off().with_context(|| format!("arm {:?} could not be switched off", self.name));
        // What went wrong first is what matters.
        let Some(answer) = answer? else { return off.map(|()| None) };
        let loss = loss.with_context(|| format!("arm {:?} does not tell its losses", self.name))?;
        off?;
        Ok(Some(Block { answer, loss }))
    }

    /// The time it asks for between its start and the block.
    pub fn settle_time(&self) -> Duration {
        match &self.kind {
            Kind::File(arm) => match arm.settle() {
                Some(Settle::Time(time)) => time,
                _ => Duration::ZERO,
            },
            _ => Duration::ZERO,
        }
    }

    fn switch_on(&self) -> Result<On> {
        Ok(match &self.kind {
            Kind::Off => On::Nothing,
            Kind::Empty { clocks } => On::Floor(Box::new(Floor::attach(*clocks)?)),
            Kind::Gate { mask, bystander } => {
                let lock = Lock::take()?;
                let gate = Gate::open(&lock, *mask)?;
                let options = Options { mask: *mask, per: wire::PER_ALL, slower_ns: 0 };
                let session = gate.start_session(&lock, &options)?;
                On::Gate { gate: Box::new(gate), session: Box::new(session), bystander: *bystander }
            }
            Kind::File(arm) => {
                let mut on = On::File { arm: Box::new(arm.clone()), background: None, started: false };
                let switched = on.start_file_arm();
                match switched {
                    Ok(()) => on,
                    Err(error) => {
                        // What did start is stopped again.
                        let _ = on.switch_off();
                        return Err(error);
                    }
                }
            }
        })
    }
}

impl On {
    fn start_file_arm(&mut self) -> Result<()> {
        let Self::File { arm, background, started } = self else { return Ok(()) };
        if let Some(start) = &arm.start {
            // Also a start that fails half-way is to be undone.
            *started = true;
            commands::run(start, arm.limit())?;
        }
        if let Some(program) = &arm.background {
            *background = Some(commands::background(program)?);
        }
        if let Some(Settle::Command(command)) = arm.settle() {
            commands::run(&command, arm.limit())?;
        }
        Ok(())
    }

    fn run(&mut self, request: &Request, given_up: &AtomicBool) -> Result<Option<Answer>> {
        let under = match self {
            Self::File { arm, .. } => arm.under.clone(),
            _ => None,
        };
        let answer = match self {
            Self::Gate { gate, session, bystander: false } => {
                let nursery = gate.nursery(session, true)?;
                let worker = Worker::start(None)?;
                drop(nursery);
                worker.finish(request, given_up)
            }
            _ => Worker::start(under.as_deref())?.finish(request, given_up),
        }?;
        if let Self::File { background: Some(program), .. } = self {
            program.still_runs()?;
        }
        Ok(answer)
    }

    fn loss(&self) -> Result<Option<u64>> {
        match self {
            Self::Gate { gate, session, .. } => Ok(Some(gate.losses(session.index)?.iter().sum())),
            Self::File { arm, .. } => {
                let Some(command) = &arm.loss else { return Ok(None) };
                let printed = commands::ask(command, arm.limit())?;
                match printed.trim().parse() {
                    Ok(lost) => Ok(Some(lost)),
                    Err(_) => bail!("`{command}` printed {:?}, which is no number", printed.trim()),
                }
            }
            _ => Ok(None),
        }
    }

    fn switch_off(self) -> Result<()> {
        match self {
            Self::Nothing | Self::Floor(_) => Ok(()),
            Self::Gate { gate, session, .. } => Ok(gate.end_session(&session)?),
            Self::File { arm, background, started } => {
                if let Some(mut program) = background {
                    program.end();
                }
                match &arm.stop {
                    Some(stop) if started => commands::run(stop, arm.limit()),
                    _ => Ok(()),
                }
            }
        }
    }
}

struct Worker {
    group: Group,
}

impl Worker {
    fn start(under: Option<&str>) -> Result<Self> {
        let own = std::env::current_exe().context("cannot find this program's own file")?;
        let mut command = match under {
            None => Command::new(&own),
            Some(prefix) => {
                let mut shell = Command::new("/bin/sh");
                shell.args(["-c", &format!("exec {prefix} \"$0\" \"$@\"")]).arg(&own);
                shell
            }
        };
        command.args(["cost", "worker"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        Ok(Self { group: Group::start(command, &worker_name(under, &own))? })
    }

    /// Sends the request and waits for the answer; `None`: given up meanwhile.
    fn finish(mut self, request: &Request, given_up: &AtomicBool) -> Result<Option<Answer>> {
        let child = self.group.child();
        let mut to = child.stdin.take().expect("it is piped");
        let mut from = child.stdout.take().expect("it is piped");
        // A worker that is gone already says so by its status.
        let _ = to.write_all(&serde_json::to_vec(request)?);
        drop(to);
        let mut bytes = Vec::new();
        let mut buffer = vec![0; 1 << 16];
        loop {
            if given_up.load(Ordering::Relaxed) {
                return Ok(None);
            }
            if !wait_readable(std::os::fd::AsRawFd::as_raw_fd(&from), LOOK) {
                continue;
            }
            match from.read(&mut buffer).context("cannot read the worker's answer")? {
                0 => break,
                n => bytes.extend_from_slice(&buffer[..n]),
            }
        }
        match self.group.ended_within(END)? {
            Some(status) if status.success() => {}
            _ if given_up.load(Ordering::Relaxed) => return Ok(None),
            Some(status) => bail!("the workload failed: {status}"),
            None => bail!("the workload did not end"),
        }
        Ok(Some(serde_json::from_slice(&bytes).context("the workload's answer was cut short")?))
    }
}

fn worker_name(under: Option<&str>, own: &Path) -> String {
    format!("{}{}{} cost worker", under.unwrap_or(""), if under.is_some() { " " } else { "" }, own.display())
}
