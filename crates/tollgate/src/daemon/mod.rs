//! `tollgate daemon`: extensions at work on the whole machine, or a part of it, until it is stopped.

pub mod control;
mod journal;
mod metrics;
mod plugin_log;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use kernel::plugins::EVERYBODY;
use kernel::process::wait_for;
use kernel::session::Options;
use kernel::wire;
use libsystemd::daemon::{NotifyState, notify};

use crate::cli::Select;
use crate::format::number_of;
use crate::guard::{GuardOptions, Mode, Policy, Request, Save, Selection, StoreOption};
use crate::plugin::{self, Plugins, Told};
use crate::report::Event;
use crate::select;
use crate::service::{self, KIND, Services, parsed};
use crate::source::Source;
use crate::watch::Watch;
use control::{Ask, Control, Leader, Response, tell};
use journal::Journal;
pub use journal::line;
use metrics::Page;

#[derive(Args)]
#[command(after_long_help = EXAMPLES)]
pub struct DaemonArguments {
    /// Learn only, also tell what is unusual, or also respond to it
    ///
    /// Without --services and --plugin, watch is the default.
    #[arg(long = "guard", value_enum, value_name = "MODE", require_equals = true)]
    pub mode: Option<Mode>,
    /// Put these services and rules in force (`tollgate service check` shows what is in a file)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["unit", "cgroup"])]
    pub services: Option<PathBuf>,
    /// Run this plugin at its hooks; may be repeated (`tollgate plugin load` adds others later)
    ///
    /// Of several files with the same name, the later ones are called NAME-2, NAME-3 and so on.
    #[arg(long = "plugin", value_name = "FILE")]
    pub plugins: Vec<PathBuf>,
    /// Guard only this executable; may be repeated
    #[arg(long, value_name = "PATH")]
    pub exe: Vec<PathBuf>,
    /// Gate only processes of this systemd unit, and what they start; may be repeated
    #[arg(long, value_name = "UNIT")]
    pub unit: Vec<String>,
    /// Gate only processes in this control group or below it, and what they start; may be repeated
    #[arg(long, value_name = "PATH", value_parser = select::parse_cgroup)]
    pub cgroup: Vec<String>,
    /// Never hold this executable; may be repeated
    #[arg(long, value_name = "PATH")]
    pub spare: Vec<PathBuf>,
    /// Append each event to this file, as a line of JSON
    #[arg(long, value_name = "FILE")]
    pub events: Option<PathBuf>,
    /// Serve counts for Prometheus by HTTP, such as at 127.0.0.1:9478
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics: Option<String>,
    #[command(flatten)]
    pub socket: SocketOption,
    #[command(flatten)]
    pub store: StoreOption,
    #[command(flatten, next_help_heading = "Guard")]
    pub options: GuardOptions,
}

#[derive(Args)]
pub struct SocketOption {
    /// The daemon's control socket
    #[arg(
        long = "socket",
        value_name = "PATH",
        env = "TOLLGATE_SOCKET",
        hide_env_values = true,
        default_value = "/run/tollgate/control.sock"
    )]
    pub path: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  tollgate daemon
  tollgate daemon --guard=enforce --unit nginx --unit php8.2-fpm --respond deny
  tollgate daemon --exe /usr/bin/redis-server --metrics 127.0.0.1:9478 --events /var/log/tollgate.jsonl
  tollgate daemon --services /etc/tollgate/services.toml
  tollgate daemon --plugin /etc/tollgate/slow-open.ec";

/// Events that `guard events` can still show.
const KEPT: usize = 10_000;
const SAVE_EVERY: Duration = Duration::from_secs(60);
/// How often later processes are looked for, profiles given back, and counts made anew.
const LOOK_EVERY: Duration = Duration::from_millis(500);

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

const NO_GUARD: &str = "this daemon guards nothing: it was started without --guard";
const NO_SERVICES: &str = "this daemon has no services: `tollgate daemon --services FILE` puts some in force";

struct Daemon<'a> {
    arguments: &'a DaemonArguments,
    select: Select,
    watch: Watch,
    services: Option<Services>,
    plugins: Plugins,
    known: BTreeSet<u32>,
    began: SystemTime,
    journal: Journal,
    file: Option<File>,
    kept: VecDeque<Arc<str>>,
    followers: Vec<Leader>,
    plugin_log: plugin_log::Followers,
    page: Page,
    looked: Instant,
    saved: Instant,
    /// Told once.
    has_failed_to_share: bool,
}

/// What is to be guarded, and how; `None`: nothing.
fn policy(arguments: &DaemonArguments) -> Result<Option<Policy>> {
    let has_others = arguments.services.is_some() || !arguments.plugins.is_empty();
    let mode = arguments.mode.or((!has_others).then_some(Mode::Watch));
    let Some(mode) = mode else {
        if !arguments.exe.is_empty() || !arguments.spare.is_empty() || arguments.events.is_some() {
            bail!(
                "--exe, --spare and --events are for a guard, beside --services and --plugin: --guard=watch begins one"
            );
        }
        return Ok(None);
    };
    let mut policy = arguments.options.policy(mode, &arguments.store.folder)?;
    policy.selection = Selection::of_machine(&arguments.exe, &arguments.spare)?;
    policy.tells_of_holds = false;
    policy.wire.spared_sid = policy.selection.spared_sid.unwrap_or(wire::GUARD_NO_SID);
    Ok(Some(policy))
}

pub fn run(arguments: &DaemonArguments) -> Result<ExitCode> {
    let policy = policy(arguments)?;
    let rules = arguments.services.as_deref().map(|path| Source::read(path, KIND)).transpose()?;
    // Before anything is begun.
    let mask = rules.as_ref().map(parsed).transpose()?.map(|file| service::mask(&file));
    let plugins = arguments.plugins.iter().map(|path| plugin::read(path)).collect::<Result<Vec<_>>>()?;
    let mask = mask.unwrap_or_default() | plugin::mask(&plugins, usize::MAX, true, policy.is_some())?;
    let control = Control::listen(&arguments.socket.path)?;
    let file = arguments.events.as_ref().map(|path| {
        let options = OpenOptions::new().create(true).append(true).open(path);
        options.with_context(|| format!("cannot write events to {}", path.display()))
    });
    let file = file.transpose()?;
    let page = Page::default();
    if let Some(address) = &arguments.metrics {
        tell(&format!("counts are at {}", metrics::serve(address, Arc::clone(&page))?));
    }
    kernel::pinned::release(false)?.failures.iter().for_each(|failure| tell(failure));
    let options = Options { mask, ..Options::default() };
    let has_guard = policy.is_some();
    let mut watch = match policy {
        Some(policy) => Watch::start_guarded(options, policy)?,
        None => Watch::start(options)?,
    };
    let services = match (&arguments.services, &rules) {
        (Some(path), Some(rules)) => {
            Some(Services::start(&mut watch.gate, &watch.session, path.clone(), rules)?)
        }
        _ => None,
    };
    let (unit, cgroup) = (arguments.unit.clone(), arguments.cgroup.clone());
    let select = Select { all: unit.is_empty() && cgroup.is_empty(), unit, cgroup, ..Select::default() };
    select::tell_of_absent(&select);
    // Of a part of the machine, only that part's are theirs.
    let session = if select.all { EVERYBODY } else { watch.session.index };
    let mut daemon = Daemon {
        arguments,
        select,
        watch,
        services,
        plugins: Plugins::of_session(session, has_guard),
        known: BTreeSet::new(),
        began: SystemTime::now(),
        journal: Journal::new(),
        file,
        kept: VecDeque::new(),
        followers: Vec::new(),
        plugin_log: plugin_log::Followers::default(),
        page,
        looked: Instant::now(),
        saved: Instant::now(),
        has_failed_to_share: false,
    };
    kernel::signals::on_interrupt(&INTERRUPTED)?;
    daemon.plugins.load_files(&mut daemon.watch.gate, &plugins)?;
    let worked = daemon.take_in().and_then(|()| daemon.work(&control));
    daemon.end(worked)
}

impl Daemon<'_> {
    fn take_in(&mut self) -> Result<()> {
        if let Some((guard, gate)) = self.watch.guard() {
            guard.expect_stored(gate)?;
        }
        if self.select.all {
            self.watch.gate.gate_everything_new(&self.watch.session);
        }
        // Those that were forked by others while the first were taken in.
        for _ in 0..3 {
            self.look()?;
        }
        if let Some(services) = &self.services {
            tell(&format!(
                "{}; `tollgate service report` tells how it goes, SIGTERM or Ctrl-C ends it",
                services.summary()
            ));
        }
        if !self.arguments.plugins.is_empty() {
            let plugins = number_of(self.arguments.plugins.len(), "plugin");
            tell(&format!(
                "{plugins} loaded; `tollgate plugin list` tells of them, SIGTERM or Ctrl-C ends it"
            ));
        }
        if let Some(mode) = self.watch.guard().map(|(guard, _)| guard.mode()) {
            self.tell_of_guard(mode);
        }
        Ok(())
    }

    fn tell_of_guard(&self, mode: Mode) {
        let exe = self.arguments.exe.iter().map(|path| path.to_string_lossy()).collect::<Vec<_>>().join(", ");
        let what = match (self.select.all, exe.as_str()) {
            (true, "") => "every process".into(),
            (true, exe) => format!("every process of {exe}"),
            (false, "") => number_of(self.known.len(), "process"),
            (false, exe) => format!("{}, of these {exe}", number_of(self.known.len(), "process")),
        };
        tell(&format!(
            "guarding {what} ({}); `tollgate guard status` tells how it goes, SIGTERM or Ctrl-C ends it",
            mode.name()
        ));
        if !self.select.all && self.known.is_empty() {
            let named = self.arguments.unit.iter().chain(&self.arguments.cgroup).cloned().collect::<Vec<_>>();
            tell(&format!("there is no process in {} yet; those that come are guarded", named.join(" or ")));
        }
    }

    fn look(&mut self) -> Result<()> {
        let running: BTreeSet<_> = select::matching(&self.select).into_iter().collect();
        let new: Vec<_> = running.difference(&self.known).copied().collect();
        if !new.is_empty() {
            let scopes = match self.watch.guard() {
                Some((guard, gate)) => guard.expect_processes(gate, &new)?,
                None => BTreeMap::new(),
            };
            self.watch.gate.adopt(&mut self.watch.session, &new, &scopes)?;
        }
        // A number may be another process's by the next time.
        self.known = running;
        Ok(())
    }

    fn work(&mut self, control: &Control) -> Result<()> {
        let (asked, mut wake) = control.serve()?;
        // Nobody waits for it, where it was not started by systemd.
        let _ = notify(false, &[NotifyState::Ready]);
        while !INTERRUPTED.load(Ordering::Relaxed) {
            let descriptors = [self.watch.descriptor(), wake.as_raw_fd()];
            if wait_for(descriptors, self.plugins.patience(self.watch.patience()))[1] {
                let _ = wake.read(&mut [0; 64]);
            }
            // Taken before the events, so that an answer has what happened before the question.
            let asked: Vec<_> = asked.try_iter().collect();
            self.watch.tend()?;
            self.share();
            self.tell_events();
            let mut is_told = false;
            for Ask { process, request, answer } in asked {
                is_told |= matches!(request, control::Request::Plugin(_));
                if let Some((guard, gate)) = self.watch.guard() {
                    guard.note_operator(gate, process);
                }
                // Whoever asked may be gone.
                let _ = answer.send(self.answer(process, request));
            }
            if !is_told {
                self.tell_of_plugins()?;
            }
            if self.looked.elapsed() > LOOK_EVERY {
                self.looked = Instant::now();
                self.look_after()?;
            }
        }
        Ok(())
    }

    fn share(&mut self) {
        if let Some(services) = &mut self.services
            && let Err(error) = services.share(&self.watch.gate)
            && !std::mem::replace(&mut self.has_failed_to_share, true)
        {
            tell(&format!("services may have less than their shares of the processors: {error:#}"));
        }
    }

    fn look_after(&mut self) -> Result<()> {
        // New ones of the whole machine are seen as they begin.
        if !self.select.all {
            self.look()?;
        }
        self.followers.retain(Leader::is_followed);
        self.plugin_log.leave_gone();
        self.journal.tend();
        if let Some(services) = &mut self.services
            && let Err(error) = services.tend()
        {
            tell(&format!("{error:#}"));
        }
        let save = self.saved.elapsed() > SAVE_EVERY;
        if let Some((guard, gate)) = self.watch.guard() {
            let mut done = guard.retire_unused(gate);
            if save {
                self.saved = Instant::now();
                done = done.and(guard.save(gate, Save::Changed));
            }
            // It may be possible the next time, such as on a disk that was full.
            if let Err(error) = done {
                tell(&format!("{error:#}"));
            }
        }
        if self.arguments.metrics.is_some() {
            let mut page = String::new();
            if self.watch.guard().is_some() {
                metrics::guard(&mut page, &self.status()?);
            }
            if self.services.is_some() {
                metrics::services(&mut page, &self.service_report()?);
            }
            metrics::losses(&mut page, &self.losses()?);
            if let Ok(mut shown) = self.page.lock() {
                *shown = page;
            }
        }
        Ok(())
    }

    fn losses(&self) -> Result<BTreeMap<String, u64>> {
        let mut losses = self.watch.losses()?;
        losses.extend(self.plugins.losses());
        Ok(losses)
    }

    fn status(&mut self) -> Result<crate::guard::Status> {
        let (losses, began) = (self.losses()?, self.began);
        let (guard, gate) = self.watch.guard().context(NO_GUARD)?;
        Ok(guard.status(gate, began, losses))
    }

    fn service_report(&mut self) -> Result<crate::service::Report> {
        let losses = self.losses()?;
        let services = self.services.as_mut().context(NO_SERVICES)?;
        services.report(&self.watch.gate, losses)
    }

    fn tell_events(&mut self) {
        let Some((guard, _)) = self.watch.guard() else { return };
        for event in guard.take_events() {
            self.tell_event(&event);
        }
    }

    fn tell_event(&mut self, event: &Event) {
        self.journal.tell(event);
        let line: Arc<str> = serde_json::to_string(event).unwrap_or_default().into();
        if let Some(Err(error)) = self.file.as_mut().map(|file| writeln!(file, "{line}")) {
            tell(&format!("no more events are written to the file: {error}"));
            self.file = None;
        }
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(Arc::clone(&line));
        for follower in &self.followers {
            follower.tell(&line);
        }
    }

    fn answer(&mut self, process: u32, request: control::Request) -> Result<Response> {
        let request = match request {
            control::Request::Guard(request) => request,
            control::Request::Plugin(request) => return self.answer_on_plugins(request),
            control::Request::Service(service::Request::Report) => {
                return Ok(Response::Value(serde_json::to_value(self.service_report()?)?));
            }
            control::Request::Service(request) => {
                let services = self.services.as_mut().context(NO_SERVICES)?;
                return Ok(Response::Value(services.answer(&mut self.watch.gate, process, request)?));
            }
        };
        let status = match request {
            Request::Status => Some(self.status()?),
            _ => None,
        };
        let (guard, gate) = self.watch.guard().context(NO_GUARD)?;
        let value = match request {
            Request::Events { follow } => {
                let kept = self.kept.iter().cloned().collect();
                let follower = follow.then(|| {
                    let (leader, follower) = Leader::new();
                    self.followers.push(leader);
                    follower
                });
                return Ok(Response::Lines(kept, follower));
            }
            Request::Status => serde_json::to_value(status)?,
            Request::Store => {
                guard.save(gate, Save::All)?;
                serde_json::to_value(self.arguments.store.folder.canonicalize()?)?
            }
            Request::Import { baselines, replace } => {
                serde_json::to_value(guard.import(gate, baselines, replace)?)?
            }
            Request::Verb { verb, programs } => serde_json::to_value(guard.verb(gate, verb, &programs)?)?,
            Request::Off => serde_json::to_value(guard.switch(gate, true))?,
            Request::On => serde_json::to_value(guard.switch(gate, false))?,
            Request::Hold { pid } => serde_json::to_value(guard.hold(gate, pid)?)?,
            Request::Release { whom } => serde_json::to_value(guard.release(gate, &whom)?)?,
        };
        Ok(Response::Value(value))
    }

    fn answer_on_plugins(&mut self, request: plugin::Request) -> Result<Response> {
        // What was told before is not of what is asked for.
        self.tell_of_plugins()?;
        let (plugins, gate) = (&mut self.plugins, &mut self.watch.gate);
        let value = match request {
            plugin::Request::Load { name, priority, text } => {
                let source = Source::new(text.name, text.text);
                serde_json::to_value(plugins.load(gate, &source, &name, priority)?)?
            }
            plugin::Request::Swap { name, text } => {
                let source = Source::new(text.name, text.text);
                serde_json::to_value(plugins.swap(gate, &source, &name)?)?
            }
            plugin::Request::Unload { name } => serde_json::to_value(plugins.unload(gate, &name)?)?,
            plugin::Request::List => serde_json::to_value(plugins.list()?)?,
            plugin::Request::Show { name, top } => serde_json::to_value(plugins.show(&name, top)?)?,
            plugin::Request::Set { name, variables } => {
                plugins.set(&name, &variables)?;
                true.into()
            }
            plugin::Request::Open { name } => serde_json::to_value(plugins.open(&name)?)?,
            plugin::Request::Told { name, after } => serde_json::to_value(plugins.told_since(&name, after))?,
            plugin::Request::Log { name, follow } => {
                let lines = plugins
                    .lines(name.as_deref())?
                    .into_iter()
                    .map(plugin_log::json)
                    .collect::<Result<_>>()?;
                // What was unloaded tells no more.
                let is_there = name.as_ref().is_none_or(|name| plugins.has(name));
                let follower = (follow && is_there).then(|| self.plugin_log.add(name));
                return Ok(Response::Lines(lines, follower));
            }
        };
        Ok(Response::Value(value))
    }

    fn tell_of_plugins(&mut self) -> Result<()> {
        for line in self.plugins.tend()? {
            self.plugin_log.tell(&line)?;
            match line.told {
                Told::TakenOut(_) => tell(&format!("plugin {}: {}", line.plugin, line.told.line())),
                Told::Unloaded { .. } => self.plugin_log.leave(&line.plugin),
                _ => {}
            }
        }
        self.plugin_log.tell_missed()
    }

    /// Whatever kept it from its work, who is held is let go.
    fn end(mut self, worked: Result<()>) -> Result<ExitCode> {
        let _ = notify(false, &[NotifyState::Stopping]);
        let worked = worked.and_then(|()| self.watch.tend());
        self.tell_events();
        let is_guard = self.watch.guard().is_some();
        let saved = self.watch.guard().map_or(Ok(()), |(guard, _)| guard.save_finally());
        // The session's number may be another's at once.
        self.plugins.unload_all();
        self.watch.give_up()?;
        worked.and(saved)?;
        tell(match is_guard {
            true => "ended; what was learned is stored, and nobody is held",
            false => "ended",
        });
        Ok(ExitCode::SUCCESS)
    }
}
