//! The arms that are compared, and how each is switched on for a block.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use std::io::{Read as _, Write as _};

use anyhow::{Context, Result, bail};
use kernel::extensions;
use kernel::floor::{Floor, FloorProgram};
use kernel::gate::{Gate, Lock};
use kernel::gate_programs::GateHook;
use kernel::guard::profile_table::ProfileTable;
use kernel::process::wait_readable;
use kernel::session::{Session, SessionOptions};
use kernel::wire;

use super::arm_file::{FileArm, SettleRule};
use super::process_group::{self, LeaderExit, ProcessGroup, WaitResult};
use super::worker::{WorkerReply, WorkerRequest};
use crate::plugin::Plugins;
use crate::source_file::SourceFile;

pub const OFF: &str = "off";
pub const EMPTY: &str = "empty";

/// The controls, which are arms of each run.
pub const CONTROLS: [&str; 2] = ["aa", "injected"];

/// How often a block checks whether the run was cancelled.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How long a worker may take to end after its reply, and how long its untimed work may take
/// without a slow arm.
const WORKER_EXIT_LIMIT: Duration = Duration::from_secs(30);

/// What each benchmark adds to that limit. With the slowest arm, its part of a block should take a
/// fortieth of this.
const TASK_MARGIN: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub enum ArmKind {
    /// Nothing is on, as in the controls.
    Off,
    /// Programs on some of the gate's hooks that do nothing except `only`.
    Empty {
        hooks: Vec<GateHook>,
        only: FloorProgram,
    },
    /// Extensions of the gate; the workload is not gated if it is a bystander.
    Gate {
        mask: u32,
        with: ArmSetup,
        bystander: bool,
    },
    File(FileArm),
}

/// How an arm's extensions are set up.
#[derive(Debug, Clone, Copy)]
pub enum ArmSetup {
    Nothing,
    /// A rule file of services.
    Rules(&'static str),
    /// The sources of plugins.
    Plugins(&'static [&'static str]),
}

#[derive(Debug, Clone)]
pub struct Arm {
    pub name: Arc<str>,
    pub kind: ArmKind,
    /// Only a reference for other arms, without a verdict of its own.
    pub is_reference: bool,
}

impl Arm {
    pub fn new(name: impl Into<Arc<str>>, kind: ArmKind) -> Self {
        Self { name: name.into(), kind, is_reference: false }
    }
}

/// All built-in arms, with descriptions.
pub fn built_in() -> Vec<(Arm, String)> {
    let lens = GateHook::used(wire::LENS);
    let clocks = Arm::new(
        "empty-clocks",
        ArmKind::Empty { hooks: lens.clone(), only: FloorProgram::Clocks },
    );
    let place = Arm::new(
        "empty-place",
        ArmKind::Empty { hooks: vec![GateHook::SYS_ENTER], only: FloorProgram::Chain },
    );
    let mut all =
        vec![
        (Arm::new(OFF, ArmKind::Off), "nothing is on: the base of all comparisons".to_owned()),
        (
            Arm::floor(&lens),
            "empty programs on lens's six hooks, its floor; arms from a file name their own \
            hooks".to_owned(),
        ),
        (clocks, "as empty, with one clock reading at each end of a call".to_owned()),
        (
            place,
            "a hook for plugins at the beginning of a call, without a plugin; its floor is one \
            empty program".to_owned(),
        ),
    ];
    for (name, mask, with, what) in GATED {
        let arm = |name: String, bystander| {
            Arm::new(name, ArmKind::Gate { mask: *mask, with: *with, bystander })
        };
        all.push((arm((*name).to_owned(), false), (*what).to_owned()));
        all.push((
            arm(format!("{name}-bystander"), true),
            format!("{name} is on, but the workload is not gated"),
        ));
    }
    all
}

/// The gate's extensions, as `tollgate run` would enable them.
const GATED: &[(&str, u32, ArmSetup, &str)] = &[
    ("lens", wire::LENS | wire::LENS_SITES, ArmSetup::Nothing, "lens, as `tollgate run` uses it"),
    ("lens-no-sites", wire::LENS, ArmSetup::Nothing, "lens without blocking sites"),
    (
        "lens-sample",
        wire::LENS | wire::LENS_SITES | wire::LENS_SAMPLE,
        ArmSetup::Nothing,
        "lens that times one in sixteen cheap calls",
    ),
    ("guard", wire::GUARD, ArmSetup::Nothing, "guard with both models, which learns the workload"),
    (
        "lens+guard",
        wire::LENS | wire::LENS_SITES | wire::GUARD,
        ArmSetup::Nothing,
        "lens and guard together",
    ),
    (
        "service",
        wire::SERVICE,
        ArmSetup::Rules(ADOPTS),
        "services, with a rule that applies to each message",
    ),
    (
        "service-file",
        FILES,
        ArmSetup::Rules(FILE),
        "services, with a rule for the file that open-close opens",
    ),
    (
        "service-file-other",
        FILES,
        ArmSetup::Rules(OTHER_FILE),
        "services, with a rule for another file",
    ),
    (
        "service-file-changes",
        FILES,
        ArmSetup::Rules(FILE_CHANGES),
        "services, with rules that change the service at each open of open-close",
    ),
    (
        "plugin",
        wire::PLUGIN,
        ArmSetup::Plugins(&[]),
        "a gate with hooks for plugins, without a plugin",
    ),
    (
        "plugin-null",
        wire::PLUGIN,
        ArmSetup::Plugins(&[NULL]),
        "a plugin that does nothing when a call begins",
    ),
    (
        "plugin-null-4",
        wire::PLUGIN,
        ArmSetup::Plugins(&[NULL; 4]),
        "four plugins that do nothing, one after the other",
    ),
    (
        "plugin-count",
        wire::PLUGIN,
        ArmSetup::Plugins(&[COUNT]),
        "a plugin that counts calls by number",
    ),
    (
        "plugin-histogram",
        BOTH_ENDS,
        ArmSetup::Plugins(&[HISTOGRAM]),
        "a plugin that makes a histogram of the times of calls",
    ),
];

const BOTH_ENDS: u32 = wire::PLUGIN | wire::PLUGIN_EXIT;
const NULL: &str = "on enter {}";
const COUNT: &str = "map<u32, u64> count[600]; on enter { count[call]++; }";
const HISTOGRAM: &str = "
map<u32, u64> began[10240];
u64 times[64];
on enter { began[tid()] = now(); }
on exit {
    u64 took = now() - began[tid()];
    int bucket = 0;
    while (took >>= 1)
        bucket++;
    times[bucket]++;
}";
const FILES: u32 = wire::SERVICE | wire::SERVICE_FILES;

const ADOPTS: &str = "[[rule]]\nadopts-peer = true";
const FILE: &str = "service.a = {}\n[[rule]]\nfile = '/dev/null'\nbelongs-to = 'a'";
const OTHER_FILE: &str = "service.a = {}\n[[rule]]\nfile = '/dev/zero'\nbelongs-to = 'a'";
const FILE_CHANGES: &str = "
service = { a = {}, b = {} }
rule = [
    { file = '/dev/null', belongs-to = 'a' },
    { file = '/dev/null', service = 'a', belongs-to = 'b' },
]";

/// Keeps the pauses between workers the same for all arms. Waiting itself changes the state of a
/// machine, so an arm that takes long to switch on would otherwise seem more expensive.
#[derive(Debug, Default)]
pub struct Interleave {
    /// From the end of a worker to the start of the next.
    pub gap: Duration,
    worker_ended: Option<Instant>,
    /// The longest switching times so far.
    longest_on: Duration,
    longest_off: Duration,
}

impl Interleave {
    fn wait(&mut self, took: Duration, given_up: &AtomicBool) {
        self.longest_on = self.longest_on.max(took);
        let since = self.worker_ended.map_or(Duration::ZERO, |ended| ended.elapsed());
        process_group::pause(self.gap.saturating_sub(since), given_up);
    }

    fn worker_ended(&mut self) {
        self.worker_ended = Some(Instant::now());
    }

    fn switched_off(&mut self) {
        let took = self.worker_ended.map_or(Duration::ZERO, |ended| ended.elapsed());
        self.longest_off = self.longest_off.max(took);
    }

    /// Sets the gap, once every arm has been on, to what the slowest arms need and `settle` more.
    pub fn settle(&mut self, settle: Duration) {
        self.gap = self.longest_off + self.longest_on + settle;
    }
}

/// An arm that is on as long as this value exists.
enum ActiveArm {
    Nothing,
    Floor(#[expect(dead_code, reason = "held until the block is over")] Box<Floor>),
    Gate { gate: Box<Gate>, session: Box<Session>, bystander: bool, _plugins: Plugins },
    File { arm: Box<FileArm>, background: Option<ProcessGroup>, started: bool },
}

/// The measurements of a block.
pub struct BlockResult {
    pub answer: WorkerReply,
    /// Events that the arm has dropped; none: it does not report them.
    pub loss: Option<u64>,
}

impl Arm {
    /// The arm of empty programs on these hooks.
    pub fn floor(hooks: &[GateHook]) -> Self {
        let names: Vec<_> = hooks.iter().map(|hook| hook.name()).collect();
        let name = match hooks {
            hooks if hooks == GateHook::used(wire::LENS) => EMPTY.to_owned(),
            hooks if hooks == GateHook::used(wire::GUARD) => format!("{EMPTY}-guard"),
            hooks if hooks == GateHook::used(wire::LENS | wire::GUARD) => {
                format!("{EMPTY}-lens+guard")
            }
            hooks if hooks == GateHook::used(wire::SERVICE) => format!("{EMPTY}-service"),
            hooks if hooks == GateHook::used(FILES) => format!("{EMPTY}-service-file"),
            _ => format!("{EMPTY}:{}", names.join(",")),
        };
        Self::new(name, ArmKind::Empty { hooks: hooks.to_vec(), only: FloorProgram::Nothing })
    }

    /// The hooks whose floor the arm is compared with; none: it is only a floor itself.
    pub fn hooks(&self) -> Option<Vec<GateHook>> {
        match &self.kind {
            ArmKind::Off => None,
            ArmKind::Empty { only: FloorProgram::Nothing, .. } => None,
            ArmKind::Empty { hooks, .. } => Some(hooks.clone()),
            ArmKind::Gate { mask, .. } => Some(GateHook::used(*mask)),
            ArmKind::File(arm) => Some(arm.hooks()),
        }
    }

    /// Whether it needs root.
    pub fn is_built_in_kernel(&self) -> bool {
        matches!(self.kind, ArmKind::Empty { .. } | ArmKind::Gate { .. })
    }

    /// Switches the arm on, lets a new worker execute the request when `pace` permits, and switches
    /// the arm off again. `None`: the run was cancelled.
    pub fn run_block(
        &self,
        request: &WorkerRequest,
        pace: &mut Interleave,
        given_up: &AtomicBool,
    ) -> Result<Option<BlockResult>> {
        ensure_no_other_gate(is_gated())?;
        let began = Instant::now();
        let Some(mut on) = self
            .switch_on(given_up)
            .with_context(|| format!("arm {:?} could not be switched on", self.name))?
        else {
            return Ok(None);
        };
        pace.wait(began.elapsed(), given_up);
        let answer = on.run(request, given_up).with_context(|| format!("in arm {:?}", self.name));
        pace.worker_ended();
        let loss = match &answer {
            Ok(Some(_)) => on.ensure_sole_user().and_then(|()| on.loss()),
            _ => Ok(None),
        };
        let off = on
            .switch_off()
            .with_context(|| format!("arm {:?} could not be switched off", self.name));
        pace.switched_off();
        // The first error is the one that matters.
        let Some(answer) = answer? else { return off.map(|()| None) };
        let loss = loss.with_context(|| format!("arm {:?}", self.name))?;
        off?;
        Ok(Some(BlockResult { answer, loss }))
    }

    /// `None`: the run was cancelled meanwhile.
    fn switch_on(&self, given_up: &AtomicBool) -> Result<Option<ActiveArm>> {
        Ok(Some(match &self.kind {
            ArmKind::Off => ActiveArm::Nothing,
            ArmKind::Empty { hooks, only } => {
                ActiveArm::Floor(Box::new(Floor::attach(hooks, *only)?))
            }
            ArmKind::Gate { mask, with, bystander } => {
                let lock = Lock::take()?;
                let mut gate = Gate::open(&lock, *mask, &extensions::ALL)?;
                let guard = if mask & wire::GUARD != 0 {
                    crate::guard::watching()
                } else {
                    Default::default()
                };
                let options = SessionOptions {
                    mask: *mask,
                    per: wire::PER_ALL,
                    guard,
                    ..SessionOptions::default()
                };
                let session = gate.start_session(&lock, &options)?;
                if mask & wire::GUARD != 0 {
                    ProfileTable::new(&gate).make_profiles(&lock)?;
                }
                drop(lock);
                let mut plugins = Plugins::of_session(session.index, mask & wire::GUARD != 0);
                match with {
                    ArmSetup::Nothing => {}
                    ArmSetup::Rules(rules) => {
                        crate::service::activate_for_measuring(&mut gate, &session, rules)?
                    }
                    ArmSetup::Plugins(texts) => {
                        for (number, text) in texts.iter().enumerate() {
                            let source = SourceFile::new("plugin".into(), (*text).into());
                            plugins.load(&mut gate, &source, &number.to_string(), 0)?;
                        }
                    }
                }
                ActiveArm::Gate {
                    gate: Box::new(gate),
                    session: Box::new(session),
                    bystander: *bystander,
                    _plugins: plugins,
                }
            }
            ArmKind::File(arm) => {
                let mut on = ActiveArm::File {
                    arm: Box::new(arm.clone()),
                    background: None,
                    started: false,
                };
                match on.start_file_arm(given_up) {
                    Ok(true) => on,
                    Ok(false) => {
                        on.switch_off()?;
                        return Ok(None);
                    }
                    Err(error) => {
                        // Stops what did start.
                        let _ = on.switch_off();
                        return Err(error);
                    }
                }
            }
        }))
    }
}

/// Whether a gate is loaded; false without root, which cannot find out.
pub fn is_gated() -> bool {
    kernel::process::is_root() && kernel::gate::is_loaded()
}

/// The gate of another process slows every arm down, and an arm that shared it would cost less than
/// by itself.
fn ensure_no_other_gate(is_there: bool) -> Result<()> {
    if is_there {
        bail!(
            "another Tollgate process has loaded a gate, whose cost would be in the figures: end \
            it, and start the run again"
        );
    }
    Ok(())
}

impl ActiveArm {
    /// False: the run was cancelled meanwhile.
    fn start_file_arm(&mut self, given_up: &AtomicBool) -> Result<bool> {
        let Self::File { arm, background, started } = self else { return Ok(true) };
        if let Some(start) = &arm.start {
            // A start that fails half-way must be undone as well.
            *started = true;
            if !process_group::run(start, arm.limit(), given_up)? {
                return Ok(false);
            }
        }
        if let Some(program) = &arm.background {
            *background = Some(process_group::background(program)?);
        }
        match arm.settle() {
            Some(SettleRule::Command(command)) => {
                process_group::run(&command, arm.limit(), given_up)
            }
            Some(SettleRule::Time(time)) => {
                process_group::pause(time, given_up);
                Ok(!given_up.load(Ordering::Relaxed))
            }
            None => Ok(true),
        }
    }

    /// Fails if another process shares the arm's gate or loaded one beside it; the arm of a file
    /// may itself be Tollgate.
    fn ensure_sole_user(&self) -> Result<()> {
        ensure_no_other_gate(match self {
            Self::Gate { gate, session, .. } => gate.is_shared(session),
            Self::File { .. } => false,
            Self::Nothing | Self::Floor(_) => is_gated(),
        })
    }

    fn run(
        &mut self,
        request: &WorkerRequest,
        given_up: &AtomicBool,
    ) -> Result<Option<WorkerReply>> {
        let (under, limit) = match self {
            Self::File { arm, .. } => (arm.under.clone(), arm.limit()),
            _ => (None, WORKER_EXIT_LIMIT),
        };
        let limit = limit + TASK_MARGIN * request.tasks.len() as u32;
        let answer = match self {
            Self::Gate { gate, session, bystander: false, .. } => {
                let nursery = gate.pending_children(session, true)?;
                let worker = Worker::start(None)?;
                drop(nursery);
                worker.finish(request, limit, given_up)
            }
            _ => Worker::start(under.as_deref())?.finish(request, limit, given_up),
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
                let printed = process_group::ask(command, arm.limit())?;
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

    fn switch_off(self) -> Result<()> {
        match self {
            Self::Nothing | Self::Floor(_) => Ok(()),
            Self::Gate { gate, session, .. } => Ok(gate.end_session(&session)?),
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

struct Worker {
    group: ProcessGroup,
}

impl Worker {
    fn start(under: Option<&str>) -> Result<Self> {
        let own = own_program()?;
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
        Ok(Self { group: ProcessGroup::start(command, &worker_name(under, &own))? })
    }

    /// Sends the request and waits for the reply; `None`: the run was cancelled meanwhile.
    fn finish(
        mut self,
        request: &WorkerRequest,
        limit: Duration,
        given_up: &AtomicBool,
    ) -> Result<Option<WorkerReply>> {
        let deadline = Instant::now() + limit;
        let child = self.group.child();
        let mut to = child.stdin.take().expect("it is piped");
        let mut from = child.stdout.take().expect("it is piped");
        // If the worker has ended already, its status is the error to report.
        let _ = to.write_all(&serde_json::to_vec(request)?);
        drop(to);
        let mut bytes = Vec::new();
        let mut buffer = vec![0; 1 << 16];
        loop {
            if given_up.load(Ordering::Relaxed) {
                return Ok(None);
            }
            if !wait_readable(std::os::fd::AsRawFd::as_raw_fd(&from), POLL_INTERVAL) {
                if Instant::now() > deadline {
                    bail!("the workload did not end within {limit:?}");
                }
                continue;
            }
            match from.read(&mut buffer).context("cannot read the worker's answer")? {
                0 => break,
                n => bytes.extend_from_slice(&buffer[..n]),
            }
        }
        match self.group.wait(WORKER_EXIT_LIMIT, given_up, LeaderExit::Ends)? {
            WaitResult::Ended(status) if status.success() => {}
            _ if given_up.load(Ordering::Relaxed) => return Ok(None),
            WaitResult::Ended(status) => bail!("the workload failed: {status}"),
            WaitResult::TooLong | WaitResult::GivenUp => bail!("the workload did not end"),
        }
        if bytes.is_empty() {
            bail!(
                "the workload gave no answer: does the command of `under` run the command line \
                that is appended to it?"
            );
        }
        let answer = serde_json::from_slice(&bytes);
        let written = "the command of `under` wrote to stdout, which is reserved for the workload";
        Ok(Some(answer.context(written)?))
    }
}

/// This program's file by name; if that was replaced meanwhile, by the process.
fn own_program() -> Result<PathBuf> {
    let named = std::env::current_exe().context("cannot find this program's own file")?;
    Ok(if named.exists() { named } else { format!("/proc/{}/exe", std::process::id()).into() })
}

fn worker_name(under: Option<&str>, own: &Path) -> String {
    format!(
        "{}{}{} cost worker",
        under.unwrap_or(""),
        if under.is_some() { " " } else { "" },
        own.display()
    )
}
