//! What is compared, and how each arm is switched on for a block.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use std::io::{Read as _, Write as _};

use anyhow::{Context, Result, bail};
use kernel::floor::{Floor, Hook, Only};
use kernel::gate::{Gate, Lock};
use kernel::process::wait_readable;
use kernel::session::{Options, Session};
use kernel::wire;

use super::arm_file::{FileArm, Settle};
use super::commands::{self, Group, Rest, Waited};
use super::worker::{Answer, Request};
use crate::plugin::Plugins;
use crate::source::Source;

pub const OFF: &str = "off";
pub const EMPTY: &str = "empty";

/// Arms of each run by which it judges itself.
pub const CONTROLS: [&str; 2] = ["aa", "injected"];

/// How often a block looks whether it is to be given up.
const LOOK: Duration = Duration::from_millis(100);

/// How long a worker that has answered may take to end, and one that nobody slows down for what is not timed.
const END: Duration = Duration::from_secs(30);

/// What a benchmark may add to that: with the slowest arm its part of a block is meant to take a fortieth of it.
const TASK: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub enum Kind {
    /// Nothing is on. The controls are this, too.
    Off,
    /// Empty programs on some of the gate's hooks, but for this.
    Empty {
        hooks: Vec<Hook>,
        only: Only,
    },
    /// Extensions of the gate; a bystander is not gated itself.
    Gate {
        mask: u32,
        with: With,
        bystander: bool,
    },
    File(FileArm),
}

/// What some extensions are to do.
#[derive(Debug, Clone, Copy)]
pub enum With {
    Nothing,
    /// Of services.
    Rules(&'static str),
    /// Their texts.
    Plugins(&'static [&'static str]),
}

#[derive(Debug, Clone)]
pub struct Arm {
    pub name: Arc<str>,
    pub kind: Kind,
    /// In the run only for others to be compared with: no verdict on it.
    pub is_reference: bool,
}

impl Arm {
    pub fn new(name: impl Into<Arc<str>>, kind: Kind) -> Self {
        Self { name: name.into(), kind, is_reference: false }
    }
}

/// Every built-in arm, with what it is.
pub fn built_in() -> Vec<(Arm, String)> {
    let lens = Hook::used(wire::LENS);
    let clocks = Arm::new("empty-clocks", Kind::Empty { hooks: lens.clone(), only: Only::Clocks });
    let place = Arm::new("empty-place", Kind::Empty { hooks: vec![Hook::SysEnter], only: Only::Place });
    let mut all = vec![
        (Arm::new(OFF, Kind::Off), "nothing: what all others are compared with".to_owned()),
        (
            Arm::floor(&lens),
            "empty programs on lens's six hooks: its floor; an arm of a file names its own hooks".to_owned(),
        ),
        (clocks, "the same with a clock reading at each side of a call".to_owned()),
        (
            place,
            "a place for plugins, without any, when a call begins; its floor is an empty program".to_owned(),
        ),
    ];
    for (name, mask, with, what) in GATED {
        let arm =
            |name: String, bystander| Arm::new(name, Kind::Gate { mask: *mask, with: *with, bystander });
        all.push((arm((*name).to_owned(), false), (*what).to_owned()));
        all.push((
            arm(format!("{name}-bystander"), true),
            format!("{name} is on, but the workload is not gated"),
        ));
    }
    all
}

/// The gate's extensions, as `tollgate run` would enable them.
const GATED: &[(&str, u32, With, &str)] = &[
    ("lens", wire::LENS | wire::LENS_SITES, With::Nothing, "lens, as `tollgate run` uses it"),
    ("lens-no-sites", wire::LENS, With::Nothing, "lens without blocking sites"),
    (
        "lens-sample",
        wire::LENS | wire::LENS_SITES | wire::LENS_SAMPLE,
        With::Nothing,
        "lens that times one in sixteen cheap calls",
    ),
    ("guard", wire::GUARD, With::Nothing, "guard with both models, which learns the workload"),
    ("lens+guard", wire::LENS | wire::LENS_SITES | wire::GUARD, With::Nothing, "lens and guard together"),
    (
        "service",
        wire::SERVICE,
        With::Rules(ADOPTS),
        "services in force, with a rule that is asked at each message",
    ),
    ("service-file", FILES, With::Rules(FILE), "services, with a rule for the file that open-close opens"),
    ("service-file-other", FILES, With::Rules(OTHER_FILE), "services, with a rule for another file"),
    (
        "service-file-changes",
        FILES,
        With::Rules(FILE_CHANGES),
        "services, with rules that change open-close's at each open",
    ),
    ("plugin", wire::PLUGIN, With::Plugins(&[]), "a gate for plugins that has none"),
    ("plugin-null", wire::PLUGIN, With::Plugins(&[NULL]), "a plugin that does nothing when a call begins"),
    ("plugin-null-4", wire::PLUGIN, With::Plugins(&[NULL; 4]), "four of them, one after the other"),
    ("plugin-count", wire::PLUGIN, With::Plugins(&[COUNT]), "a plugin that counts calls by their numbers"),
    (
        "plugin-histogram",
        BOTH_ENDS,
        With::Plugins(&[HISTOGRAM]),
        "a plugin that makes a histogram of calls' times",
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

/// Sees to it that all arms' workers come as long after the one before: waiting itself changes a machine, so an arm that
/// takes long to switch on would look dear.
#[derive(Debug, Default)]
pub struct Pace {
    /// From the end of a worker to the beginning of the next.
    pub apart: Duration,
    worker_ended: Option<Instant>,
    /// The longest so far.
    longest_on: Duration,
    longest_off: Duration,
}

impl Pace {
    fn wait(&mut self, took: Duration, given_up: &AtomicBool) {
        self.longest_on = self.longest_on.max(took);
        let since = self.worker_ended.map_or(Duration::ZERO, |ended| ended.elapsed());
        commands::pause(self.apart.saturating_sub(since), given_up);
    }

    fn worker_ended(&mut self) {
        self.worker_ended = Some(Instant::now());
    }

    fn switched_off(&mut self) {
        let took = self.worker_ended.map_or(Duration::ZERO, |ended| ended.elapsed());
        self.longest_off = self.longest_off.max(took);
    }

    /// Once every arm has been on: as long as the slowest need, and `settle` more.
    pub fn settle(&mut self, settle: Duration) {
        self.apart = self.longest_off + self.longest_on + settle;
    }
}

/// What is on while this lives.
enum On {
    Nothing,
    Floor(#[expect(dead_code, reason = "held until the block is over")] Box<Floor>),
    Gate { gate: Box<Gate>, session: Box<Session>, bystander: bool, _plugins: Plugins },
    File { arm: Box<FileArm>, background: Option<Group>, started: bool },
}

/// A block's figures.
pub struct Block {
    pub answer: Answer,
    /// Events that the arm says it has dropped; none: it does not say.
    pub loss: Option<u64>,
}

impl Arm {
    /// Nothing but empty programs on these hooks.
    pub fn floor(hooks: &[Hook]) -> Self {
        let names: Vec<_> = hooks.iter().map(|hook| hook.name()).collect();
        let name = match hooks {
            hooks if hooks == Hook::used(wire::LENS) => EMPTY.to_owned(),
            hooks if hooks == Hook::used(wire::GUARD) => format!("{EMPTY}-guard"),
            hooks if hooks == Hook::used(wire::LENS | wire::GUARD) => format!("{EMPTY}-lens+guard"),
            hooks if hooks == Hook::used(wire::SERVICE) => format!("{EMPTY}-service"),
            hooks if hooks == Hook::used(FILES) => format!("{EMPTY}-service-file"),
            _ => format!("{EMPTY}:{}", names.join(",")),
        };
        Self::new(name, Kind::Empty { hooks: hooks.to_vec(), only: Only::Nothing })
    }

    /// The hooks whose floor it is compared with; none: it is nothing more than a floor.
    pub fn hooks(&self) -> Option<Vec<Hook>> {
        match &self.kind {
            Kind::Off => None,
            Kind::Empty { only: Only::Nothing, .. } => None,
            Kind::Empty { hooks, .. } => Some(hooks.clone()),
            Kind::Gate { mask, .. } => Some(Hook::used(*mask)),
            Kind::File(arm) => Some(arm.hooks()),
        }
    }

    /// Whether it needs root.
    pub fn is_built_in_kernel(&self) -> bool {
        matches!(self.kind, Kind::Empty { .. } | Kind::Gate { .. })
    }

    /// Switches the arm on, has a new worker do the request once `pace` says so, and switches it off again. `None`:
    /// given up.
    pub fn block(&self, request: &Request, pace: &mut Pace, given_up: &AtomicBool) -> Result<Option<Block>> {
        ensure_nobody_else(is_gated())?;
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
            Ok(Some(_)) => on.ensure_alone().and_then(|()| on.loss()),
            _ => Ok(None),
        };
        let off = on.switch_off().with_context(|| format!("arm {:?} could not be switched off", self.name));
        pace.switched_off();
        // What went wrong first is what matters.
        let Some(answer) = answer? else { return off.map(|()| None) };
        let loss = loss.with_context(|| format!("arm {:?}", self.name))?;
        off?;
        Ok(Some(Block { answer, loss }))
    }

    /// `None`: given up meanwhile.
    fn switch_on(&self, given_up: &AtomicBool) -> Result<Option<On>> {
        Ok(Some(match &self.kind {
            Kind::Off => On::Nothing,
            Kind::Empty { hooks, only } => On::Floor(Box::new(Floor::attach(hooks, *only)?)),
            Kind::Gate { mask, with, bystander } => {
                let lock = Lock::take()?;
                let mut gate = Gate::open(&lock, *mask)?;
                let guard =
                    if mask & wire::GUARD != 0 { crate::guard::watching() } else { Default::default() };
                let options = Options { mask: *mask, per: wire::PER_ALL, guard, ..Options::default() };
                let session = gate.start_session(&lock, &options)?;
                if mask & wire::GUARD != 0 {
                    gate.make_profiles(&lock)?;
                }
                drop(lock);
                let mut plugins = Plugins::of_session(session.index, mask & wire::GUARD != 0);
                match with {
                    With::Nothing => {}
                    With::Rules(rules) => crate::service::in_force(&mut gate, &session, rules)?,
                    With::Plugins(texts) => {
                        for (number, text) in texts.iter().enumerate() {
                            let source = Source::new("plugin".into(), (*text).into());
                            plugins.load(&mut gate, &source, &number.to_string(), 0)?;
                        }
                    }
                }
                On::Gate {
                    gate: Box::new(gate),
                    session: Box::new(session),
                    bystander: *bystander,
                    _plugins: plugins,
                }
            }
            Kind::File(arm) => {
                let mut on = On::File { arm: Box::new(arm.clone()), background: None, started: false };
                match on.start_file_arm(given_up) {
                    Ok(true) => on,
                    Ok(false) => {
                        on.switch_off()?;
                        return Ok(None);
                    }
                    Err(error) => {
                        // What did start is stopped again.
                        let _ = on.switch_off();
                        return Err(error);
                    }
                }
            }
        }))
    }
}

/// Whether there is a gate; only root can tell.
pub fn is_gated() -> bool {
    kernel::process::is_root() && kernel::gate::is_loaded()
}

/// Another's gate costs every arm something, and an arm that joined it would cost less than it does by itself.
fn ensure_nobody_else(is_there: bool) -> Result<()> {
    if is_there {
        bail!("another Tollgate came: end it, and begin anew, as what it costs would be in the figures");
    }
    Ok(())
}

impl On {
    /// False: given up meanwhile.
    fn start_file_arm(&mut self, given_up: &AtomicBool) -> Result<bool> {
        let Self::File { arm, background, started } = self else { return Ok(true) };
        if let Some(start) = &arm.start {
            // Also a start that fails half-way is to be undone.
            *started = true;
            if !commands::run(start, arm.limit(), given_up)? {
                return Ok(false);
            }
        }
        if let Some(program) = &arm.background {
            *background = Some(commands::background(program)?);
        }
        match arm.settle() {
            Some(Settle::Command(command)) => commands::run(&command, arm.limit(), given_up),
            Some(Settle::Time(time)) => {
                commands::pause(time, given_up);
                Ok(!given_up.load(Ordering::Relaxed))
            }
            None => Ok(true),
        }
    }

    /// Whether nobody joined the arm's gate, or loaded one beside it; an arm of a file may be a Tollgate itself.
    fn ensure_alone(&self) -> Result<()> {
        ensure_nobody_else(match self {
            Self::Gate { gate, session, .. } => gate.is_shared(session),
            Self::File { .. } => false,
            Self::Nothing | Self::Floor(_) => is_gated(),
        })
    }

    fn run(&mut self, request: &Request, given_up: &AtomicBool) -> Result<Option<Answer>> {
        let (under, limit) = match self {
            Self::File { arm, .. } => (arm.under.clone(), arm.limit()),
            _ => (None, END),
        };
        let limit = limit + TASK * request.tasks.len() as u32;
        let answer = match self {
            Self::Gate { gate, session, bystander: false, .. } => {
                let nursery = gate.nursery(session, true)?;
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
                let ended = background.map_or(Ok(()), Group::end);
                match &arm.stop {
                    Some(stop) if started => {
                        ended.and(commands::run(stop, arm.limit(), &commands::NEVER).map(drop))
                    }
                    _ => ended,
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
        Ok(Self { group: Group::start(command, &worker_name(under, &own))? })
    }

    /// Sends the request and waits for the answer; `None`: given up meanwhile.
    fn finish(mut self, request: &Request, limit: Duration, given_up: &AtomicBool) -> Result<Option<Answer>> {
        let deadline = Instant::now() + limit;
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
        match self.group.wait(END, given_up, Rest::Ends)? {
            Waited::Ended(status) if status.success() => {}
            _ if given_up.load(Ordering::Relaxed) => return Ok(None),
            Waited::Ended(status) => bail!("the workload failed: {status}"),
            Waited::TooLong | Waited::GivenUp => bail!("the workload did not end"),
        }
        if bytes.is_empty() {
            bail!("the workload gave no answer: does what it runs under run its command line?");
        }
        let answer = serde_json::from_slice(&bytes);
        let written = "what the workload runs under wrote to stdout, which is the workload's";
        Ok(Some(answer.context(written)?))
    }
}

/// By name; if that was replaced meanwhile, by what this process runs.
fn own_program() -> Result<PathBuf> {
    let named = std::env::current_exe().context("cannot find this program's own file")?;
    Ok(if named.exists() { named } else { format!("/proc/{}/exe", std::process::id()).into() })
}

fn worker_name(under: Option<&str>, own: &Path) -> String {
    format!("{}{}{} cost worker", under.unwrap_or(""), if under.is_some() { " " } else { "" }, own.display())
}
