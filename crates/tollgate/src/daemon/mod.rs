//! `tollgate daemon`: runs extensions on the whole machine, or on a part of it, until it is
//! stopped.

pub mod control;
mod event_log;
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
use kernel::plugin::ALL_SESSIONS;
use kernel::process::wait_for;
use kernel::session::SessionOptions;
use kernel::wire;
use libsystemd::daemon::{NotifyState, notify};

use crate::cli::Select;
use crate::format::number_of;
use crate::guard::{
    GuardOptions, GuardRequest, Mode, Policy, ProgramFilter, SaveScope, StoreOption,
};
use crate::plugin::{self, PluginOutput, Plugins};
use crate::process_selection;
use crate::report::GuardEvent;
use crate::service::{self, KIND, Services, parsed};
use crate::session_runner::SessionRunner;
use crate::source_file::SourceFile;
use control::{ControlSocket, EventSender, PendingRequest, Response, log_message};
use event_log::EventLog;
pub use event_log::event_line;
use metrics::Page;

#[derive(Args)]
#[command(after_long_help = EXAMPLES)]
pub struct DaemonArguments {
    /// Learn only, also report unusual calls, or also respond to them
    ///
    /// The default is watch, or no guard with --services or --plugin.
    #[arg(long = "guard", value_enum, value_name = "MODE", require_equals = true)]
    pub mode: Option<Mode>,
    /// Put the services and rules of this file in force (`tollgate service check` checks a file)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["unit", "cgroup"])]
    pub services: Option<PathBuf>,
    /// Run this plugin at its hooks; may be repeated (`tollgate plugin load` adds others later)
    ///
    /// If several files have the same name, the later ones are named NAME-2, NAME-3 and so on.
    #[arg(long = "plugin", value_name = "FILE")]
    pub plugins: Vec<PathBuf>,
    /// Guard only this executable; may be repeated
    #[arg(long, value_name = "PATH")]
    pub exe: Vec<PathBuf>,
    /// Gate only the processes of this systemd unit and those that they start; may be repeated
    #[arg(long, value_name = "UNIT")]
    pub unit: Vec<String>,
    /// Gate only the processes in or below this control group and those that they start; may be
    /// repeated
    #[arg(long, value_name = "PATH", value_parser = process_selection::parse_cgroup)]
    pub cgroup: Vec<String>,
    /// Never hold processes of this executable; may be repeated
    #[arg(long, value_name = "PATH")]
    pub exempt: Vec<PathBuf>,
    /// Append each event to this file, as a line of JSON
    #[arg(long, value_name = "FILE")]
    pub events: Option<PathBuf>,
    /// Serve metrics for Prometheus over HTTP at this address, such as 127.0.0.1:9478
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
  tollgate daemon --exe /usr/bin/redis-server --metrics 127.0.0.1:9478
  tollgate daemon --guard=enforce --events /var/log/tollgate.jsonl
  tollgate daemon --services /etc/tollgate/services.toml
  tollgate daemon --plugin /etc/tollgate/slow-open.ec";

/// Events that `guard events` can still show.
const MAX_RECENT_EVENTS: usize = 10_000;
const SAVE_EVERY: Duration = Duration::from_secs(60);
/// How often to search for new processes, to evict unused profiles and to refresh the metrics.
const REFRESH_INTERVAL: Duration = Duration::from_millis(500);

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

const NO_GUARD: &str = "this daemon guards nothing: it was started without --guard";
const NO_SERVICES: &str =
    "this daemon has no services: `tollgate daemon --services FILE` puts some in force";

struct Daemon<'a> {
    arguments: &'a DaemonArguments,
    select: Select,
    watch: SessionRunner,
    services: Option<Services>,
    plugins: Plugins,
    known: BTreeSet<u32>,
    began: SystemTime,
    journal: EventLog,
    file: Option<File>,
    recent_events: VecDeque<Arc<str>>,
    followers: Vec<EventSender>,
    plugin_log: plugin_log::LogFollowers,
    page: Page,
    last_refresh: Instant,
    saved: Instant,
    /// The failure is logged only once.
    balance_failure_logged: bool,
}

/// The policy of the guard; `None`: no guard.
fn policy(arguments: &DaemonArguments) -> Result<Option<Policy>> {
    let has_others = arguments.services.is_some() || !arguments.plugins.is_empty();
    let mode = arguments.mode.or((!has_others).then_some(Mode::Watch));
    let Some(mode) = mode else {
        if !arguments.exe.is_empty() || !arguments.exempt.is_empty() || arguments.events.is_some() {
            bail!(
                "--exe, --exempt and --events need a guard: with --services or --plugin, add \
                --guard=watch"
            );
        }
        return Ok(None);
    };
    let mut policy = arguments.options.policy(mode, &arguments.store.folder)?;
    policy.selection = ProgramFilter::of_machine(&arguments.exe, &arguments.exempt)?;
    policy.reports_holds = false;
    policy.wire.exempt_sid = policy.selection.exempt_sid.unwrap_or(wire::GUARD_NO_SID);
    Ok(Some(policy))
}

pub fn run(arguments: &DaemonArguments) -> Result<ExitCode> {
    let policy = policy(arguments)?;
    let rules =
        arguments.services.as_deref().map(|path| SourceFile::read(path, KIND)).transpose()?;
    // Checked before anything is started.
    let mask = rules.as_ref().map(parsed).transpose()?.map(|file| service::mask(&file));
    let plugins =
        arguments.plugins.iter().map(|path| plugin::read(path)).collect::<Result<Vec<_>>>()?;
    let mask =
        mask.unwrap_or_default() | plugin::mask(&plugins, usize::MAX, true, policy.is_some())?;
    let control = ControlSocket::listen(&arguments.socket.path)?;
    let file = arguments.events.as_ref().map(|path| {
        let options = OpenOptions::new().create(true).append(true).open(path);
        options.with_context(|| format!("cannot write events to {}", path.display()))
    });
    let file = file.transpose()?;
    let page = Page::default();
    if let Some(address) = &arguments.metrics {
        log_message(&format!(
            "metrics are served at {}",
            metrics::serve(address, Arc::clone(&page))?
        ));
    }
    kernel::guard::hold_table::release_orphaned_holds(false)?
        .failures
        .iter()
        .for_each(|failure| log_message(failure));
    let options = SessionOptions { mask, ..SessionOptions::default() };
    let has_guard = policy.is_some();
    let mut watch = match policy {
        Some(policy) => SessionRunner::start_guarded(options, policy)?,
        None => SessionRunner::start(options)?,
    };
    let services = match (&arguments.services, &rules) {
        (Some(path), Some(rules)) => {
            Some(Services::start(&mut watch.gate, &watch.session, path.clone(), rules)?)
        }
        _ => None,
    };
    let (unit, cgroup) = (arguments.unit.clone(), arguments.cgroup.clone());
    let select =
        Select { all: unit.is_empty() && cgroup.is_empty(), unit, cgroup, ..Select::default() };
    process_selection::warn_missing_cgroups(&select);
    // If only a part of the machine is gated, the plugins run only for the tasks of this session.
    let session = if select.all { ALL_SESSIONS } else { watch.session.index };
    let mut daemon = Daemon {
        arguments,
        select,
        watch,
        services,
        plugins: Plugins::of_session(session, has_guard),
        known: BTreeSet::new(),
        began: SystemTime::now(),
        journal: EventLog::new(),
        file,
        recent_events: VecDeque::new(),
        followers: Vec::new(),
        plugin_log: plugin_log::LogFollowers::default(),
        page,
        last_refresh: Instant::now(),
        saved: Instant::now(),
        balance_failure_logged: false,
    };
    kernel::signals::on_interrupt(&INTERRUPTED)?;
    daemon.plugins.load_files(&mut daemon.watch.gate, &plugins)?;
    let worked = daemon.attach_initial().and_then(|()| daemon.run_loop(&control));
    daemon.end(worked)
}

impl Daemon<'_> {
    fn attach_initial(&mut self) -> Result<()> {
        if let Some((guard, gate)) = self.watch.guard() {
            guard.preload_stored(gate)?;
        }
        if self.select.all {
            self.watch.gate.gate_new_processes(&self.watch.session);
        }
        // Further rounds find processes that others forked while the first ones were attached.
        for _ in 0..3 {
            self.refresh_processes()?;
        }
        if let Some(services) = &self.services {
            log_message(&format!(
                "{}; `tollgate service report` shows their use; SIGTERM or Ctrl-C ends the daemon",
                services.summary()
            ));
        }
        if !self.arguments.plugins.is_empty() {
            let plugins = number_of(self.arguments.plugins.len(), "plugin");
            log_message(&format!(
                "{plugins} loaded; `tollgate plugin list` lists them; SIGTERM or Ctrl-C ends the \
                daemon"
            ));
        }
        if let Some(mode) = self.watch.guard().map(|(guard, _)| guard.mode()) {
            self.log_guard_start(mode);
        }
        Ok(())
    }

    fn log_guard_start(&self, mode: Mode) {
        let exe = self
            .arguments
            .exe
            .iter()
            .map(|path| path.to_string_lossy())
            .collect::<Vec<_>>()
            .join(", ");
        let what = match (self.select.all, exe.as_str()) {
            (true, "") => "every process".into(),
            (true, exe) => format!("every process of {exe}"),
            (false, "") => number_of(self.known.len(), "process"),
            (false, exe) => format!("{exe} in {}", number_of(self.known.len(), "process")),
        };
        log_message(&format!(
            "guarding {what} ({}); `tollgate guard status` shows the state; SIGTERM or Ctrl-C \
            ends the daemon",
            mode.name()
        ));
        if !self.select.all && self.known.is_empty() {
            let named = self
                .arguments
                .unit
                .iter()
                .chain(&self.arguments.cgroup)
                .cloned()
                .collect::<Vec<_>>();
            log_message(&format!(
                "no process is in {} yet; later ones will be guarded",
                named.join(" or ")
            ));
        }
    }

    fn refresh_processes(&mut self) -> Result<()> {
        let running: BTreeSet<_> =
            process_selection::by_properties(&self.select).into_iter().collect();
        let new: Vec<_> = running.difference(&self.known).copied().collect();
        if !new.is_empty() {
            let scopes = match self.watch.guard() {
                Some((guard, gate)) => guard.preload_processes(gate, &new)?,
                None => BTreeMap::new(),
            };
            self.watch.gate.attach_tasks(&mut self.watch.session, &new, &scopes)?;
        }
        // Another process may have the same PID in the next round.
        self.known = running;
        Ok(())
    }

    fn run_loop(&mut self, control: &ControlSocket) -> Result<()> {
        let (asked, mut wake) = control.serve()?;
        // Without systemd, no process waits for this notification.
        let _ = notify(false, &[NotifyState::Ready]);
        while !INTERRUPTED.load(Ordering::Relaxed) {
            let descriptors = [self.watch.descriptor(), wake.as_raw_fd()];
            if wait_for(descriptors, self.plugins.deadline(self.watch.deadline()))[1] {
                let _ = wake.read(&mut [0; 64]);
            }
            // Requests are taken before events, so that a reply includes everything that happened
            // before its request.
            let asked: Vec<_> = asked.try_iter().collect();
            self.watch.tend()?;
            self.balance_services();
            self.publish_events();
            let mut is_told = false;
            for PendingRequest { process, request, answer } in asked {
                is_told |= matches!(request, control::Request::Plugin(_));
                if let Some((guard, gate)) = self.watch.guard() {
                    guard.note_operator(gate, process);
                }
                // The client may have disconnected.
                let _ = answer.send(self.handle(process, request));
            }
            if !is_told {
                self.publish_plugin_output()?;
            }
            if self.last_refresh.elapsed() > REFRESH_INTERVAL {
                self.last_refresh = Instant::now();
                self.refresh()?;
            }
        }
        Ok(())
    }

    fn balance_services(&mut self) {
        if let Some(services) = &mut self.services
            && let Err(error) = services.balance(&self.watch.gate)
            && !std::mem::replace(&mut self.balance_failure_logged, true)
        {
            log_message(&format!(
                "services may get less than their shares of processor time: {error:#}"
            ));
        }
    }

    fn refresh(&mut self) -> Result<()> {
        // In a system-wide session, the gate sees new processes when they start.
        if !self.select.all {
            self.refresh_processes()?;
        }
        self.followers.retain(EventSender::is_followed);
        self.plugin_log.remove_closed();
        self.journal.tend();
        if let Some(services) = &mut self.services
            && let Err(error) = services.tend()
        {
            log_message(&format!("{error:#}"));
        }
        let save = self.saved.elapsed() > SAVE_EVERY;
        if let Some((guard, gate)) = self.watch.guard() {
            let mut done = guard.evict_unused(gate);
            if save {
                self.saved = Instant::now();
                done = done.and(guard.save(gate, SaveScope::Changed));
            }
            // It may succeed the next time, for example after a disk was full.
            if let Err(error) = done {
                log_message(&format!("{error:#}"));
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

    fn service_report(&mut self) -> Result<crate::service::ServiceReport> {
        let losses = self.losses()?;
        let services = self.services.as_mut().context(NO_SERVICES)?;
        services.report(&self.watch.gate, losses)
    }

    fn publish_events(&mut self) {
        let Some((guard, _)) = self.watch.guard() else { return };
        for event in guard.take_events() {
            self.publish_event(&event);
        }
    }

    fn publish_event(&mut self, event: &GuardEvent) {
        self.journal.log_event(event);
        let line: Arc<str> = serde_json::to_string(event).unwrap_or_default().into();
        if let Some(Err(error)) = self.file.as_mut().map(|file| writeln!(file, "{line}")) {
            log_message(&format!("cannot write to the file of events, which ends here: {error}"));
            self.file = None;
        }
        if self.recent_events.len() == MAX_RECENT_EVENTS {
            self.recent_events.pop_front();
        }
        self.recent_events.push_back(Arc::clone(&line));
        for follower in &self.followers {
            follower.send_line(&line);
        }
    }

    fn handle(&mut self, process: u32, request: control::Request) -> Result<Response> {
        let request = match request {
            control::Request::Guard(request) => request,
            control::Request::Plugin(request) => return self.handle_plugin(request),
            control::Request::Service(service::ServiceRequest::Report) => {
                return Ok(Response::Value(serde_json::to_value(self.service_report()?)?));
            }
            control::Request::Service(request) => {
                let services = self.services.as_mut().context(NO_SERVICES)?;
                return Ok(Response::Value(services.answer(
                    &mut self.watch.gate,
                    process,
                    request,
                )?));
            }
        };
        let status = match request {
            GuardRequest::Status => Some(self.status()?),
            _ => None,
        };
        let (guard, gate) = self.watch.guard().context(NO_GUARD)?;
        let value = match request {
            GuardRequest::Events { follow } => {
                let kept = self.recent_events.iter().cloned().collect();
                let follower = follow.then(|| {
                    let (leader, follower) = EventSender::new();
                    self.followers.push(leader);
                    follower
                });
                return Ok(Response::Lines(kept, follower));
            }
            GuardRequest::Status => serde_json::to_value(status)?,
            GuardRequest::Store => {
                guard.save(gate, SaveScope::All)?;
                serde_json::to_value(self.arguments.store.folder.canonicalize()?)?
            }
            GuardRequest::Import { baselines, replace } => {
                serde_json::to_value(guard.import(gate, baselines, replace)?)?
            }
            GuardRequest::Verb { verb, programs } => {
                serde_json::to_value(guard.verb(gate, verb, &programs)?)?
            }
            GuardRequest::Off => serde_json::to_value(guard.switch(gate, true))?,
            GuardRequest::On => serde_json::to_value(guard.switch(gate, false))?,
            GuardRequest::Hold { pid } => serde_json::to_value(guard.hold(gate, pid)?)?,
            GuardRequest::Release { whom } => serde_json::to_value(guard.release(gate, &whom)?)?,
        };
        Ok(Response::Value(value))
    }

    fn handle_plugin(&mut self, request: plugin::PluginRequest) -> Result<Response> {
        // Earlier output does not belong to this request.
        self.publish_plugin_output()?;
        let (plugins, gate) = (&mut self.plugins, &mut self.watch.gate);
        let value = match request {
            plugin::PluginRequest::Load { name, priority, text } => {
                let source = SourceFile::new(text.name, text.text);
                serde_json::to_value(plugins.load(gate, &source, &name, priority)?)?
            }
            plugin::PluginRequest::Swap { name, text } => {
                let source = SourceFile::new(text.name, text.text);
                serde_json::to_value(plugins.swap(gate, &source, &name)?)?
            }
            plugin::PluginRequest::Unload { name } => {
                serde_json::to_value(plugins.unload(gate, &name)?)?
            }
            plugin::PluginRequest::List => serde_json::to_value(plugins.list()?)?,
            plugin::PluginRequest::Show { name, top } => {
                serde_json::to_value(plugins.show(&name, top)?)?
            }
            plugin::PluginRequest::Set { name, variables } => {
                plugins.set(&name, &variables)?;
                true.into()
            }
            plugin::PluginRequest::Open { name } => serde_json::to_value(plugins.open(&name)?)?,
            plugin::PluginRequest::Told { name, after } => {
                serde_json::to_value(plugins.output_since(&name, after))?
            }
            plugin::PluginRequest::Log { name, follow } => {
                let lines = plugins
                    .lines(name.as_deref())?
                    .into_iter()
                    .map(plugin_log::json)
                    .collect::<Result<_>>()?;
                // An unloaded plugin has no further output.
                let is_there = name.as_ref().is_none_or(|name| plugins.contains(name));
                let follower = (follow && is_there).then(|| self.plugin_log.add(name));
                return Ok(Response::Lines(lines, follower));
            }
        };
        Ok(Response::Value(value))
    }

    fn publish_plugin_output(&mut self) -> Result<()> {
        for line in self.plugins.tend()? {
            self.plugin_log.tell(&line)?;
            match line.told {
                PluginOutput::TakenOut(_) => {
                    log_message(&format!("plugin {}: {}", line.plugin, line.told.line()))
                }
                PluginOutput::Unloaded { .. } => self.plugin_log.retire(&line.plugin),
                _ => {}
            }
        }
        self.plugin_log.send_missed_counts()
    }

    /// Ends the daemon. Held processes are released whatever error ended its work.
    fn end(mut self, worked: Result<()>) -> Result<ExitCode> {
        let _ = notify(false, &[NotifyState::Stopping]);
        let worked = worked.and_then(|()| self.watch.tend());
        self.publish_events();
        let is_guard = self.watch.guard().is_some();
        let saved = self.watch.guard().map_or(Ok(()), |(guard, _)| guard.save_at_end());
        // Another session may get the same number at once.
        self.plugins.unload_all();
        self.watch.cancel()?;
        worked.and(saved)?;
        log_message(match is_guard {
            true => "ended; the baselines are stored, and no process is held",
            false => "ended",
        });
        Ok(ExitCode::SUCCESS)
    }
}
