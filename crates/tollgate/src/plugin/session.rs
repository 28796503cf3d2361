//! Plugins as an extension of a session.

use std::time::Duration;

use anyhow::{Result, ensure};
use control::Response;
use kernel::plugin::ALL_SESSIONS;
use kernel::session::SessionOptions;

use super::extension::{Placement, Plugins};
use super::log_followers::LogFollowers;
use super::replies::{publish_output, reply};
use super::report::PluginReport;
use super::requests::REQUEST_KEY;
use super::suitability::{PluginHost, mask};
use crate::extension::{Extension, ExtensionSetup, Joining, Losses, Request, SessionContext};
use crate::format::number_of;
use crate::output::{log_message, print_message};
use crate::report::Section;
use crate::source_file::SourceFile;

/// For whom the plugins of a session run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum PluginScope {
    /// For the tasks of the session.
    Session,
    /// At hooks of the gate for the tasks of the session, otherwise for the whole machine.
    Widened,
    Machine,
    /// For the whole machine, although the daemon guards selected programs. Each plugin needs the
    /// user's consent.
    Unselected,
}

/// Why a command's plugins cannot deny packets, and what can.
const ONLY_IN_A_DAEMON: &str = "load the plugin into a daemon with `tollgate plugin load`";
/// Why a daemon with --exe runs no plugins, and how it does.
const NEEDS_CONSENT: &str = "--exe selects what is guarded, and plugins run for all processes of \
    the machine: give --cgroup or --unit instead, or run them for all with --plugins-machine-wide";
/// How a daemon for a part of the machine denies packets.
const WIDEN_THE_DAEMON: &str = "--plugins-machine-wide runs the plugin all the same";

/// Plugins to load at the start of a session.
pub struct PluginSetup {
    sources: Vec<SourceFile>,
    mask: u32,
    host: PluginHost,
    scope: PluginScope,
    output: OutputTarget,
}

enum OutputTarget {
    Stderr,
    Followers(LogFollowers),
}

impl PluginSetup {
    /// Plugins of a command. Compiles them, and prints up to `top` problems of each.
    pub fn of_command(sources: Vec<SourceFile>, top: usize, has_guard: bool) -> Result<Self> {
        let host = PluginHost { has_guard, takes_calls: false };
        let mask = mask(&sources, top, Some(ONLY_IN_A_DAEMON), host)?;
        let (scope, output) = (PluginScope::Session, OutputTarget::Stderr);
        Ok(Self { sources, mask, host, scope, output })
    }

    /// Plugins of a daemon, which can load others later.
    pub fn of_daemon(
        sources: Vec<SourceFile>,
        has_guard: bool,
        scope: PluginScope,
    ) -> Result<Self> {
        ensure!(scope != PluginScope::Unselected || sources.is_empty(), NEEDS_CONSENT);
        let widen = (scope == PluginScope::Session).then_some(WIDEN_THE_DAEMON);
        let host = PluginHost { has_guard, takes_calls: true };
        let mask = mask(&sources, usize::MAX, widen, host)?;
        let output = OutputTarget::Followers(LogFollowers::default());
        Ok(Self { sources, mask, host, scope, output })
    }

    /// Plugins with these texts in an arm of the cost lab. `mask` is the mask that they need. With
    /// the mask `wire::PLUGIN` and no texts, the gate has hooks for plugins and runs none.
    pub fn of_arm(mask: u32, texts: &[&str]) -> Self {
        let source = |text: &&str| SourceFile::new("plugin".into(), (*text).into());
        let sources = texts.iter().map(source).collect();
        let (scope, output) = (PluginScope::Session, OutputTarget::Stderr);
        let host = PluginHost { has_guard: false, takes_calls: false };
        Self { sources, mask, host, scope, output }
    }
}

impl ExtensionSetup for PluginSetup {
    fn configure(&self, options: &mut SessionOptions) {
        options.mask |= self.mask;
    }

    fn start(self: Box<Self>, context: &mut SessionContext<'_>) -> Result<Box<dyn Extension>> {
        let session = match self.scope {
            PluginScope::Machine | PluginScope::Unselected => ALL_SESSIONS,
            PluginScope::Session | PluginScope::Widened => context.session.index,
        };
        let is_machine_wide = self.scope != PluginScope::Session;
        let placement = Placement { is_machine_wide, ..Placement::default() };
        let mut plugins = Plugins::of_session(session, self.host);
        plugins.are_unselected = self.scope == PluginScope::Unselected;
        let (sources, output) = (self.sources, self.output);
        let has_logged_ungated = false;
        Ok(Box::new(PluginsInSession { plugins, output, sources, placement, has_logged_ungated }))
    }
}

struct PluginsInSession {
    plugins: Plugins,
    output: OutputTarget,
    /// Plugins to load when the session begins.
    sources: Vec<SourceFile>,
    placement: Placement,
    /// Whether the log says that plugins do not run for all threads.
    has_logged_ungated: bool,
}

/// What to log if threads are not gated although a plugin could deny them something.
fn ungated_message(threads: u64) -> Option<String> {
    (threads > 0).then(|| {
        format!(
            "the gate has no room for {} of this session: no plugin denies them anything \
            (docs/ecode.md, Which tasks run a plugin)",
            number_of(threads as usize, "thread")
        )
    })
}

impl Extension for PluginsInSession {
    fn prepare(
        &mut self,
        context: &mut SessionContext<'_>,
        joining: &mut Joining<'_>,
    ) -> Result<()> {
        match joining {
            Joining::Later | Joining::Command { .. } => {
                self.plugins.load_files(context.gate, &self.sources, self.placement)
            }
            Joining::Processes { .. } => Ok(()),
        }
    }

    fn summary(&self, _processes: Option<usize>) -> Option<String> {
        let loaded = self.sources.len();
        let plugins = number_of(loaded, "plugin");
        (loaded > 0).then(|| format!("{plugins} loaded; `tollgate plugin list` lists them"))
    }

    fn tend(&mut self, _context: &mut SessionContext<'_>) -> Result<()> {
        match &mut self.output {
            OutputTarget::Followers(followers) => publish_output(&mut self.plugins, followers),
            OutputTarget::Stderr => {
                for line in self.plugins.tend()? {
                    // If stderr has no reader any more, the command continues all the same.
                    let _ = print_message(&line.with_name());
                }
                Ok(())
            }
        }
    }

    fn deadline(&self, longest: Duration) -> Duration {
        self.plugins.deadline(longest)
    }

    fn refresh(&mut self, context: &mut SessionContext<'_>) -> Result<()> {
        if !self.has_logged_ungated && self.plugins.denies_to_gated_threads() {
            let ungated = context.gate.threads_not_gated(context.session.index)?;
            if let Some(message) = ungated_message(ungated) {
                log_message(&message);
                self.has_logged_ungated = true;
            }
        }
        if let OutputTarget::Followers(followers) = &mut self.output {
            followers.remove_closed();
        }
        Ok(())
    }

    fn request_key(&self) -> Option<&'static str> {
        Some(REQUEST_KEY)
    }

    fn reply(&mut self, context: &mut SessionContext<'_>, request: Request) -> Result<Response> {
        // Earlier output does not belong to this request.
        self.tend(context)?;
        let (request, losses) = request.parse()?;
        match &mut self.output {
            OutputTarget::Followers(followers) => {
                reply(&mut self.plugins, followers, context.gate, request, losses)
            }
            OutputTarget::Stderr => anyhow::bail!("these plugins take no requests"),
        }
    }

    fn losses(&self) -> Losses {
        self.plugins.losses()
    }

    fn section(
        &mut self,
        context: &mut SessionContext<'_>,
        _notes: &mut Vec<String>,
    ) -> Result<Option<Box<dyn Section>>> {
        self.tend(context)?;
        self.plugins.halt()?;
        // What the plugins have written until they were stopped.
        self.tend(context)?;
        Ok(Some(Box::new(PluginReport(self.plugins.states()?))))
    }

    fn leave(&mut self) {
        self.plugins.unload_all();
    }
}
