//! Clients that follow the output of plugins (`tollgate plugin log --follow`).

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Result;
use control::{EventReceiver, EventSender};
use kernel::clock::now_ns;

use super::records::{Line, PluginOutput};

#[derive(Default)]
pub struct LogFollowers(Vec<LogFollower>);

struct LogFollower {
    /// The plugin to follow, or `None` for all plugins.
    plugin: Option<String>,
    sender: EventSender,
    /// How much of each plugin's output the follower did not get, by the cause.
    missed: BTreeMap<(String, MissingCause), u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum MissingCause {
    /// The follower was too slow for these lines.
    SlowFollower,
    /// The kernel's buffer was full, and the follower was too slow for the line that says so.
    FullBuffer,
}

impl MissingCause {
    fn output(self, count: u64) -> PluginOutput {
        match self {
            Self::SlowFollower => PluginOutput::Skipped(count),
            Self::FullBuffer => PluginOutput::Lost(count),
        }
    }
}

/// A line of output as a line of JSON.
pub fn json(line: &Line) -> Result<Arc<str>> {
    Ok(serde_json::to_string(line)?.into())
}

impl LogFollowers {
    pub fn add(&mut self, plugin: Option<String>) -> EventReceiver {
        let (sender, follower) = EventSender::new();
        self.0.push(LogFollower { plugin, sender, missed: BTreeMap::new() });
        follower
    }

    pub fn remove_closed(&mut self) {
        self.0.retain(|one| one.sender.is_followed());
    }

    /// Sends the last line of an unloaded plugin. It ends the connections of the followers of this
    /// plugin alone, who get it even if they are behind.
    pub fn end(&mut self, last: &Line) -> Result<()> {
        let is_of_plugin = |one: &mut LogFollower| one.plugin.as_ref() == Some(&last.plugin);
        for one in self.0.extract_if(.., is_of_plugin).collect::<Vec<_>>() {
            one.end_with(last)?;
        }
        self.publish(last)
    }

    /// Sends a line of output to each follower of its plugin. A line for which a follower has no
    /// room is counted as missed.
    pub fn publish(&mut self, line: &Line) -> Result<()> {
        let text = json(line)?;
        let follows = |one: &&mut LogFollower| {
            one.plugin.as_ref().is_none_or(|plugin| *plugin == line.plugin)
        };
        for one in self.0.iter_mut().filter(follows) {
            one.send_missed_counts()?;
            // The counts of what was missed precede later output.
            if !one.missed.is_empty() || !one.sender.send_line(&text) {
                let (cause, count) = match line.output {
                    PluginOutput::Lost(records) => (MissingCause::FullBuffer, records),
                    _ => (MissingCause::SlowFollower, 1),
                };
                *one.missed.entry((line.plugin.clone(), cause)).or_default() += count;
            }
        }
        Ok(())
    }

    /// Sends the counts of what was missed, so that they arrive even if there is no further output.
    pub fn send_missed_counts(&mut self) -> Result<()> {
        self.0.iter_mut().try_for_each(LogFollower::send_missed_counts)
    }
}

impl LogFollower {
    fn end_with(self, last: &Line) -> Result<()> {
        let missed =
            self.missed.iter().map(|((plugin, cause), count)| missed_line(plugin, *cause, *count));
        let lines = missed.chain([json(last)]).collect::<Result<Vec<_>>>()?;
        self.sender.end_with(lines);
        Ok(())
    }

    fn send_missed_counts(&mut self) -> Result<()> {
        while let Some(((plugin, cause), count)) = self.missed.first_key_value() {
            if !self.sender.send_line(&missed_line(plugin, *cause, *count)?) {
                break;
            }
            self.missed.pop_first();
        }
        Ok(())
    }
}

fn missed_line(plugin: &str, cause: MissingCause, count: u64) -> Result<Arc<str>> {
    json(&Line::new(plugin, now_ns(), cause.output(count)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn follower_that_is_behind_gets_the_end() {
        let mut followers = LogFollowers::default();
        let [one, all] = [Some("it".into()), None].map(|plugin| followers.add(plugin));
        let line = |output| Line::new("it", 0, output);
        // More than wait for a follower (`MAX_QUEUED_LINES` of the crate `control`).
        for _ in 0..12_000 {
            followers.publish(&line(PluginOutput::Printed("x".into()))).expect("JSON");
        }
        followers.publish(&line(PluginOutput::Lost(7))).expect("JSON");
        followers.end(&line(PluginOutput::Unloaded { unlink_us: 1.0 })).expect("JSON");
        let read = || one.next_line(Duration::from_secs(10)).ok();
        let lines: Vec<Line> = std::iter::from_fn(read)
            .map(|line| serde_json::from_str(&line).expect("JSON"))
            .collect();
        let [.., skipped, lost, last] = &lines[..] else { panic!("{} lines", lines.len()) };
        assert_eq!(skipped.output, PluginOutput::Skipped(12_000 - (lines.len() as u64 - 3)));
        assert_eq!(lost.output, PluginOutput::Lost(7));
        assert_eq!(last.output, PluginOutput::Unloaded { unlink_us: 1.0 });
        // The follower of all plugins stays.
        assert!(all.next_line(Duration::from_secs(10)).is_ok() && followers.0.len() == 1);
    }
}
