//! `tollgate daemon`: runs extensions on the whole machine, or on a part of it, until it is
//! stopped.

mod arguments;
mod control_socket;
mod metrics_server;

use std::collections::BTreeSet;
use std::io::Read as _;
use std::os::fd::AsRawFd as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use control::Response;
use kernel::process::{has_own_proc, wait_for};
use kernel::wire;
use libsystemd::daemon::{NotifyState, notify, watchdog_enabled};
use serde_json::Value;

use crate::extension::{ExtensionSetup, NOT_UNDERSTOOD};
use crate::format::printable;
use crate::guard::{self, Events, ExemptProgram, GuardSetup, Mode, Policy, ProgramFilter};
use crate::lens::{InBandSocket, LensSetup};
use crate::output::{let_messages_be_written, log_message, wait_for_messages};
use crate::pace::{self, PacingSetup};
use crate::plugin::{self, PluginScope, PluginSetup};
use crate::process_selection::{self, Select};
use crate::service::{self, ServiceSetup};
use crate::session_runner::SessionRunner;
pub use arguments::DaemonArguments;
use control_socket::{ControlSocket, PendingRequest};
use metrics_server::Page;

/// How often to search for processes that the gate could not attach itself, and to refresh the
/// extensions and the metrics.
const REFRESH_INTERVAL: Duration = Duration::from_millis(500);

/// How long the end of the daemon waits for a reader of stderr.
const END_TIMEOUT: Duration = Duration::from_secs(1);

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// The replies to requests for an extension that this daemon does not have, by request key.
const ABSENT: [(&str, &str); 3] = [
    (guard::REQUEST_KEY, "this daemon guards nothing: it was started without --guard"),
    (
        service::REQUEST_KEY,
        "this daemon has no services: `tollgate daemon --services FILE` activates some",
    ),
    (pace::REQUEST_KEY, "this daemon paces nothing: it was started without --pace"),
];

struct Daemon<'a> {
    arguments: &'a DaemonArguments,
    select: Select,
    runner: SessionRunner,
    /// The processes that the last search found.
    attached: BTreeSet<u32>,
    page: Page,
    last_refresh: Instant,
}

/// The policy of the guard, or `None` for a daemon without a guard.
fn policy(arguments: &DaemonArguments) -> Result<Option<Policy>> {
    let has_others = arguments.services.is_some()
        || arguments.pace.file.is_some()
        || arguments.in_band
        || !arguments.plugins.is_empty();
    let mode = arguments.mode.or((!has_others).then_some(Mode::Watch));
    let Some(mode) = mode else {
        if !arguments.exe.is_empty() || !arguments.exempt.is_empty() || arguments.events.is_some() {
            bail!(
                "--exe, --exempt and --events need a guard: with --services, --pace, --plugin or \
                --in-band, add --guard=watch"
            );
        }
        return Ok(None);
    };
    let mut policy = arguments.options.policy(mode, &arguments.store.folder)?;
    let exempt = arguments.exempt.iter().map(|text| ExemptProgram::parse(text));
    let exempt = exempt.collect::<Result<Vec<_>>>()?;
    policy.selection = ProgramFilter::of_machine(&arguments.exe, &exempt)?;
    policy.reports_holds = false;
    policy.wire.exempt_sid = policy.selection.exempt_sid.unwrap_or(wire::GUARD_NO_SID);
    policy.wire.has_exempt_files = 1;
    policy.wire.has_selected_files = u16::from(!policy.selection.selected.is_empty());
    Ok(Some(policy))
}

/// Which tasks the daemon gates.
fn selection(arguments: &DaemonArguments) -> Select {
    let (unit, cgroup) = (arguments.unit.clone(), arguments.cgroup.clone());
    Select { all: unit.is_empty() && cgroup.is_empty(), unit, cgroup, ..Select::default() }
}

/// Runs the daemon until a signal ends it.
pub fn run(arguments: &DaemonArguments) -> Result<ExitCode> {
    // What the extensions need is checked before anything is started.
    let select = selection(arguments);
    ensure!(has_own_proc(), kernel::Error::NoProc);
    process_selection::check_cgroups(&select)?;
    let policy = policy(arguments)?;
    let has_guard = policy.is_some();
    let services = arguments.services.clone().map(ServiceSetup::read).transpose()?;
    let pace = PacingSetup::of_daemon(&arguments.pace)?;
    let sources = plugin::read_all(&arguments.plugins)?;
    let scope = match (select.all, arguments.plugins_machine_wide) {
        (true, false) if !arguments.exe.is_empty() => PluginScope::Unselected,
        (true, _) => PluginScope::Machine,
        (false, true) => PluginScope::Widened,
        (false, false) => PluginScope::Session,
    };
    let plugins = PluginSetup::of_daemon(sources, has_guard, scope)?;
    let control = ControlSocket::listen(&arguments.socket.path)?;
    let in_band = arguments.in_band.then(|| InBandSocket::beside(&arguments.socket.path));
    let in_band = in_band.transpose()?;
    // The extensions are called in this order.
    let mut extensions: Vec<Box<dyn ExtensionSetup>> = Vec::new();
    if let Some(policy) = policy {
        let events = Some(Events::start(arguments.events.as_deref())?);
        extensions.push(Box::new(GuardSetup {
            policy,
            events,
            executables: arguments.exe.clone(),
        }));
    }
    if let Some(services) = services {
        extensions.push(Box::new(services));
    }
    if let Some(pace) = pace {
        extensions.push(Box::new(pace));
    }
    extensions.push(Box::new(plugins));
    // `lens` is last, because it may read many counters, and the guard must release processes in
    // time.
    extensions.push(Box::new(in_band.map_or_else(LensSetup::off, LensSetup::in_band)));
    let page = Page::default();
    if let Some(address) = &arguments.metrics {
        log_message(&format!(
            "metrics are served at {}",
            metrics_server::serve(address, Arc::clone(&page))?
        ));
    }
    let runner = SessionRunner::start_for(&select, extensions)?;
    let mut daemon = Daemon {
        arguments,
        select,
        runner,
        attached: BTreeSet::new(),
        page,
        last_refresh: Instant::now(),
    };
    kernel::signals::on_interrupt(&INTERRUPTED)?;
    // The file of events is opened again without a signal.
    kernel::signals::ignore_user_signals();
    let worked = daemon.attach_initial(has_guard).and_then(|()| daemon.run_loop(&control));
    let ended = daemon.end(worked, has_guard);
    wait_for_messages(Some(END_TIMEOUT));
    ended
}

impl Daemon<'_> {
    fn attach_initial(&mut self, has_guard: bool) -> Result<()> {
        self.runner.prepare_machine()?;
        self.runner.follow_cgroups(&self.select)?;
        if self.select.all {
            self.runner.gate_new_processes();
        }
        // Further rounds find processes that were forked during the round before.
        for _ in 0..3 {
            self.refresh_processes()?;
        }
        let processes = (!self.select.all).then_some(self.attached.len());
        for summary in self.runner.summaries(processes) {
            log_message(&format!("{summary}; SIGTERM or Ctrl-C ends the daemon"));
        }
        if has_guard && processes == Some(0) {
            let named: Vec<_> =
                self.arguments.unit.iter().chain(&self.arguments.cgroup).cloned().collect();
            log_message(&format!(
                "no process is in {} yet; later ones will be guarded",
                printable(&named.join(" or "))
            ));
        }
        Ok(())
    }

    fn refresh_processes(&mut self) -> Result<()> {
        let running: BTreeSet<_> =
            process_selection::by_properties(&self.select).into_iter().collect();
        let new: Vec<_> = running.difference(&self.attached).copied().collect();
        if !new.is_empty() {
            self.runner.attach(&new)?;
        }
        // The PIDs of ended processes are dropped, because new processes may get them.
        self.attached = running;
        Ok(())
    }

    fn run_loop(&mut self, control: &ControlSocket) -> Result<()> {
        let (requests, mut wake) = control.serve()?;
        // Without systemd, no process waits for this notification.
        let _ = notify(false, &[NotifyState::Ready]);
        // sd_watchdog_enabled(3) recommends half of the time limit.
        let watchdog_interval = watchdog_enabled(false).map(|limit| limit / 2);
        let mut notified = Instant::now();
        while !INTERRUPTED.load(Ordering::Relaxed) {
            let descriptors = [self.runner.descriptor(), wake.as_raw_fd()];
            if wait_for(descriptors, self.runner.deadline())[1] {
                let _ = wake.read(&mut [0; 64]);
            }
            // Requests are taken before records, so that a reply includes everything that happened
            // before its request.
            let requests: Vec<_> = requests.try_iter().collect();
            self.runner.tend()?;
            for PendingRequest { process, request, reply } in requests {
                // The client may have disconnected.
                let _ = reply.send(self.reply(process, request));
            }
            if watchdog_interval.is_some_and(|interval| notified.elapsed() > interval) {
                notified = Instant::now();
                let _ = notify(false, &[NotifyState::Watchdog]);
            }
            if self.last_refresh.elapsed() > REFRESH_INTERVAL {
                self.last_refresh = Instant::now();
                self.refresh()?;
            }
        }
        Ok(())
    }

    fn reply(&mut self, process: u32, request: Value) -> Result<Response> {
        let absent = ABSENT.iter().find(|(key, _)| request.get(key).is_some());
        let reply = self.runner.reply(process, request);
        // A client that has its reply finds what was logged before in the log.
        let_messages_be_written();
        match reply {
            Some(reply) => reply,
            None => bail!(absent.map_or(NOT_UNDERSTOOD, |(_, message)| message)),
        }
    }

    fn refresh(&mut self) -> Result<()> {
        // The processes of a session that has ended are attached again.
        let has_rival_ended = self.runner.has_rival_ended();
        if has_rival_ended {
            self.attached.clear();
        }
        // In a system-wide session, the gate sees new processes when they start.
        if !self.select.all || has_rival_ended {
            self.refresh_processes()?;
        }
        for error in self.runner.refresh() {
            log_message(&format!("{error:#}"));
        }
        if self.arguments.metrics.is_some() {
            let page = self.runner.metrics()?;
            if let Ok(mut shown) = self.page.lock() {
                *shown = page;
            }
        }
        Ok(())
    }

    /// Ends the daemon. Held processes are released even after an error.
    fn end(mut self, worked: Result<()>, has_guard: bool) -> Result<ExitCode> {
        let _ = notify(false, &[NotifyState::Stopping]);
        let worked = worked.and_then(|()| self.runner.tend()).and_then(|()| self.runner.settle());
        let saved = self.runner.save();
        self.runner.cancel()?;
        worked.and(saved)?;
        log_message(match has_guard {
            true => "ended; the baselines are stored, and no process is held",
            false => "ended",
        });
        Ok(ExitCode::SUCCESS)
    }
}
