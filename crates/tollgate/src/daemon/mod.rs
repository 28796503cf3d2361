//! `tollgate daemon`: runs extensions on the whole machine, or on a part of it, until it is
//! stopped.

mod arguments;
mod control_socket;
mod metrics_server;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::os::fd::AsRawFd as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, bail};
use control::Response;
use kernel::plugins::ALL_SESSIONS;
use kernel::process::wait_for;
use kernel::session::SessionOptions;
use kernel::wire;
use libsystemd::daemon::{NotifyState, notify};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::format::number_of;
use crate::guard::{
    self, Events, GuardRequest, Mode, Policy, ProgramFilter, SaveScope, guard_metrics,
};
use crate::output::log_message;
use crate::plugin::{self, PluginRequest, Plugins};
use crate::process_selection::{self, Select};
use crate::service::{self, KIND, ServiceRequest, Services, parsed, service_metrics};
use crate::session_runner::SessionRunner;
use crate::source_file::SourceFile;
pub use arguments::DaemonArguments;
use control_socket::{ControlSocket, NOT_UNDERSTOOD, PendingRequest};
use metrics_server::Page;

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
    events: Events,
    plugin_log: plugin::LogFollowers,
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

fn understood<T: DeserializeOwned>(request: Value) -> Result<T> {
    serde_json::from_value(request).context(NOT_UNDERSTOOD)
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
    let events = Events::start(arguments.events.as_deref())?;
    let page = Page::default();
    if let Some(address) = &arguments.metrics {
        log_message(&format!(
            "metrics are served at {}",
            metrics_server::serve(address, Arc::clone(&page))?
        ));
    }
    kernel::hold_table::release_orphaned_holds(false)?
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
        events,
        plugin_log: plugin::LogFollowers::default(),
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
                is_told |= request.get(plugin::REQUEST_KEY).is_some();
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
        self.plugin_log.remove_closed();
        self.events.tend();
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
                guard_metrics(&mut page, &self.status()?);
            }
            if self.services.is_some() {
                service_metrics(&mut page, &self.service_report()?);
            }
            crate::metrics::losses(&mut page, &self.losses()?);
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

    fn status(&mut self) -> Result<guard::Status> {
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
            self.events.publish(&event);
        }
    }

    /// Handles a request, whose key says which extension it is for.
    fn handle(&mut self, process: u32, request: Value) -> Result<Response> {
        let is_for = |key| request.get(key).is_some();
        if is_for(guard::REQUEST_KEY) {
            self.handle_guard(understood(request)?)
        } else if is_for(service::REQUEST_KEY) {
            self.handle_service(process, understood(request)?)
        } else if is_for(plugin::REQUEST_KEY) {
            self.handle_plugin(understood(request)?)
        } else {
            bail!(NOT_UNDERSTOOD)
        }
    }

    fn handle_guard(&mut self, request: GuardRequest) -> Result<Response> {
        let (losses, began) = (self.losses()?, self.began);
        let (guard, gate) = self.watch.guard().context(NO_GUARD)?;
        guard::reply(guard, &mut self.events, gate, request, began, losses)
    }

    fn handle_service(&mut self, process: u32, request: ServiceRequest) -> Result<Response> {
        let losses = self.losses()?;
        let services = self.services.as_mut().context(NO_SERVICES)?;
        let value = services.answer(&mut self.watch.gate, process, request, losses)?;
        Ok(Response::Value(value))
    }

    fn handle_plugin(&mut self, request: PluginRequest) -> Result<Response> {
        // Earlier output does not belong to this request.
        self.publish_plugin_output()?;
        plugin::reply(&mut self.plugins, &mut self.plugin_log, &mut self.watch.gate, request)
    }

    fn publish_plugin_output(&mut self) -> Result<()> {
        plugin::publish_output(&mut self.plugins, &mut self.plugin_log)
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
