//! The replies of a daemon's plugins to requests, and their output to followers.

use anyhow::Result;
use control::Response;
use kernel::gate::Gate;

use super::extension::{Placement, Plugins};
use super::log_followers::{LogFollowers, json};
use super::records::PluginOutput;
use super::requests::{ListReport, PluginRequest, ShowReport};
use crate::extension::LossReader;
use crate::output::log_message;
use crate::source_file::SourceFile;

/// Carries out a request.
pub fn reply(
    plugins: &mut Plugins,
    followers: &mut LogFollowers,
    gate: &mut Gate,
    request: PluginRequest,
    losses: LossReader,
) -> Result<Response> {
    let value = match request {
        PluginRequest::Load { name, priority, machine_wide, text } => {
            let source = SourceFile::new(text.name, text.text);
            let placement = Placement { priority, is_machine_wide: machine_wide };
            serde_json::to_value(plugins.load(gate, &source, &name, placement)?)?
        }
        PluginRequest::Swap { name, text } => {
            let source = SourceFile::new(text.name, text.text);
            serde_json::to_value(plugins.swap(gate, &source, &name)?)?
        }
        PluginRequest::Unload { name } => serde_json::to_value(plugins.unload(gate, &name)?)?,
        PluginRequest::List => {
            let (plugins, losses) = (plugins.list()?, losses.read(gate)?);
            let schema = "tollgate.plugin.list/1".into();
            serde_json::to_value(ListReport { schema, plugins, losses })?
        }
        PluginRequest::Show { name, top } => {
            let (plugin, losses) = (plugins.show(&name, top)?, losses.read(gate)?);
            let schema = "tollgate.plugin.show/1".into();
            serde_json::to_value(ShowReport { schema, plugin, losses })?
        }
        PluginRequest::Set { name, variables } => {
            plugins.set(&name, &variables)?;
            true.into()
        }
        PluginRequest::Open { name } => serde_json::to_value(plugins.open(&name)?)?,
        PluginRequest::OutputSince { name, after } => {
            serde_json::to_value(plugins.output_since(&name, after))?
        }
        PluginRequest::Log { name, follow } => {
            let lines =
                plugins.lines(name.as_deref())?.into_iter().map(json).collect::<Result<_>>()?;
            // An unloaded plugin has no further output.
            let is_there = name.as_ref().is_none_or(|name| plugins.contains(name));
            let follower = (follow && is_there).then(|| followers.add(name));
            return Ok(Response::Lines(lines, follower));
        }
    };
    Ok(Response::Value(value))
}

/// Sends new output to followers, and logs which plugins were unlinked.
pub fn publish_output(plugins: &mut Plugins, followers: &mut LogFollowers) -> Result<()> {
    for line in plugins.tend()? {
        if let PluginOutput::Unlinked(_) = line.output {
            let text = line.output.line();
            let plugin = &line.plugin;
            log_message(&format!(
                "plugin {plugin}: {text}; replace it with `tollgate plugin swap`"
            ));
        }
        match line.output {
            PluginOutput::Unloaded { .. } => followers.end(&line)?,
            _ => followers.publish(&line)?,
        }
    }
    followers.send_missed_counts()
}
