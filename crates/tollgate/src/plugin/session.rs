//! Plugins as an extension of a session.

use std::time::Duration;

use anyhow::Result;
use control::Response;
use kernel::plugin::ALL_SESSIONS;
use kernel::session::SessionOptions;

use super::extension::{Plugins, mask};
use super::log_followers::LogFollowers;
use super::replies::{publish_output, reply};
use super::report::PluginReport;
use super::requests::REQUEST_KEY;
use crate::extension::{Context, Extension, ExtensionSetup, Losses, Request};
use crate::format::number_of;
use crate::output::print_message;
use crate::report::Section;
use crate::source_file::SourceFile;

/// The tasks at whose hooks plugins run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum PluginScope {
    Session,
    Machine,
}

/// Plugins to load at the start of a session.
pub struct PluginSetup {
    sources: Vec<SourceFile>,
    mask: u32,
    has_guard: bool,
    scope: PluginScope,
    output: PluginOutputTo,
}

enum PluginOutputTo {
    Stderr,
    Followers(LogFollowers),
}

impl PluginSetup {
    /// Plugins of a command. Compiles them, and prints up to `top` problems of each.
    pub fn of_command(sources: Vec<SourceFile>, top: usize, has_guard: bool) -> Result<Self> {
        let mask = mask(&sources, top, false, has_guard)?;
        let (scope, output) = (PluginScope::Session, PluginOutputTo::Stderr);
        Ok(Self { sources, mask, has_guard, scope, output })
    }

    /// Plugins of a daemon, which can load others later.
    pub fn of_daemon(
        sources: Vec<SourceFile>,
        has_guard: bool,
        scope: PluginScope,
    ) -> Result<Self> {
        let mask = mask(&sources, usize::MAX, true, has_guard)?;
        let output = PluginOutputTo::Followers(LogFollowers::default());
        Ok(Self { sources, mask, has_guard, scope, output })
    }
}

impl ExtensionSetup for PluginSetup {
    fn configure(&self, options: &mut SessionOptions) {
        options.mask |= self.mask;
    }

    fn start(self: Box<Self>, context: &mut Context<'_>) -> Result<Box<dyn Extension>> {
        let session = match self.scope {
            PluginScope::Machine => ALL_SESSIONS,
            PluginScope::Session => context.session.index,
        };
        let mut plugins = Plugins::of_session(session, self.has_guard);
        plugins.load_files(context.gate, &self.sources)?;
        let loaded = self.sources.len();
        Ok(Box::new(PluginsInSession { plugins, output: self.output, loaded }))
    }
}

struct PluginsInSession {
    plugins: Plugins,
    output: PluginOutputTo,
    /// How many were loaded at the start.
    loaded: usize,
}

impl Extension for PluginsInSession {
    fn summary(&self, _processes: Option<usize>) -> Option<String> {
        let plugins = number_of(self.loaded, "plugin");
        (self.loaded > 0).then(|| format!("{plugins} loaded; `tollgate plugin list` lists them"))
    }

    fn tend(&mut self, _context: &mut Context<'_>) -> Result<()> {
        match &mut self.output {
            PluginOutputTo::Followers(followers) => publish_output(&mut self.plugins, followers),
            PluginOutputTo::Stderr => {
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

    fn refresh(&mut self, _context: &mut Context<'_>) -> Result<()> {
        if let PluginOutputTo::Followers(followers) = &mut self.output {
            followers.remove_closed();
        }
        Ok(())
    }

    fn request_key(&self) -> Option<&'static str> {
        Some(REQUEST_KEY)
    }

    fn reply(&mut self, context: &mut Context<'_>, request: Request<'_>) -> Result<Response> {
        // Earlier output does not belong to this request.
        self.tend(context)?;
        let asked = request.understood()?;
        match &mut self.output {
            PluginOutputTo::Followers(followers) => {
                reply(&mut self.plugins, followers, context.gate, asked)
            }
            PluginOutputTo::Stderr => anyhow::bail!("these plugins take no requests"),
        }
    }

    fn losses(&self) -> Losses {
        self.plugins.losses()
    }

    fn section(
        &mut self,
        context: &mut Context<'_>,
        _notes: &mut Vec<String>,
    ) -> Result<Option<Box<dyn Section>>> {
        self.tend(context)?;
        Ok(Some(Box::new(PluginReport(self.plugins.states()?))))
    }

    fn leave(&mut self) {
        self.plugins.unload_all();
    }
}
