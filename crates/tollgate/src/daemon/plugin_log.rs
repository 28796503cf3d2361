//! Who follows what plugins tell (`tollgate plugin log --follow`).

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Result;
use kernel::clock::now_ns;

use super::control::{Follower, Leader};
use crate::plugin::{Line, Told};

#[derive(Default)]
pub struct Followers(Vec<One>);

struct One {
    /// Of one plugin, or of all.
    plugin: Option<String>,
    leader: Leader,
    /// Records, by plugin, for which it has been too slow.
    missed: BTreeMap<String, u64>,
}

pub fn json(line: &Line) -> Result<Arc<str>> {
    Ok(serde_json::to_string(line)?.into())
}

impl Followers {
    pub fn add(&mut self, plugin: Option<String>) -> Follower {
        let (leader, follower) = Leader::new();
        self.0.push(One { plugin, leader, missed: BTreeMap::new() });
        follower
    }

    pub fn leave_gone(&mut self) {
        self.0.retain(|one| one.leader.is_followed());
    }

    pub fn leave(&mut self, plugin: &str) {
        self.0.retain(|one| one.plugin.as_deref() != Some(plugin));
    }

    pub fn tell(&mut self, line: &Line) -> Result<()> {
        let text = json(line)?;
        let follows = |one: &&mut One| one.plugin.as_ref().is_none_or(|plugin| *plugin == line.plugin);
        for one in self.0.iter_mut().filter(follows) {
            one.tell_missed()?;
            // What comes after a loss is not to look as if it came before.
            if !one.missed.is_empty() || !one.leader.tell(&text) {
                let records = if let Told::Lost(records) = line.told { records } else { 1 };
                *one.missed.entry(line.plugin.clone()).or_default() += records;
            }
        }
        Ok(())
    }

    /// Also where nothing more is told.
    pub fn tell_missed(&mut self) -> Result<()> {
        self.0.iter_mut().try_for_each(One::tell_missed)
    }
}

impl One {
    fn tell_missed(&mut self) -> Result<()> {
        while let Some((plugin, records)) = self.missed.first_key_value() {
            if !self.leader.tell(&json(&Line::new(plugin, now_ns(), Told::Lost(*records)))?) {
                break;
            }
            self.missed.pop_first();
        }
        Ok(())
    }
}
