//! Arms of one's own, from a TOML file:
//!
//! ```toml
//! [arm.audit]
//! start = "auditctl -a always,exit -F arch=b64 -S acct"
//! stop = "auditctl -D"
//! loss = "auditctl -s | sed -n 's/^lost //p'"
//!
//! [arm.bpftrace]
//! background = "bpftrace -e 'tracepoint:raw_syscalls:sys_enter { @ = count(); }'"
//! settle = "1s"
//!
//! [arm.strace]
//! under = "strace -c -f -o /dev/null"
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::cli::duration;

/// How an agent, a tracer or a setting is switched on around a block. Commands are run by /bin/sh.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileArm {
    /// Switches it on, and ends.
    pub start: Option<String>,
    /// Switches it off again.
    pub stop: Option<String>,
    /// Runs while it is on; ended by SIGINT, as by Ctrl-C.
    pub background: Option<String>,
    /// What the workload runs under: its command line is appended.
    pub under: Option<String>,
    /// Waited for after the start: a time ("500ms"), or a command that ends when all is ready.
    pub settle: Option<String>,
    /// Prints how many events were dropped since the start, before it is switched off.
    pub loss: Option<String>,
    /// How long each of the commands may take (default: 30s).
    pub limit: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ArmFile {
    #[serde(default)]
    arm: BTreeMap<String, FileArm>,
}

const LIMIT: Duration = Duration::from_secs(30);

/// What is waited for before the block.
#[derive(Debug, Clone, PartialEq)]
pub enum Settle {
    Time(Duration),
    Command(String),
}

impl FileArm {
    pub fn limit(&self) -> Duration {
        self.limit.as_deref().and_then(|text| duration(text).ok()).unwrap_or(LIMIT)
    }

    pub fn settle(&self) -> Option<Settle> {
        let text = self.settle.as_ref()?;
        Some(match duration(text) {
            Ok(time) => Settle::Time(time),
            Err(_) => Settle::Command(text.clone()),
        })
    }
}

pub fn read(path: &Path) -> Result<BTreeMap<String, FileArm>> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text).with_context(|| format!("{} does not describe arms", path.display()))
}

fn parse(text: &str) -> Result<BTreeMap<String, FileArm>> {
    // The message has line, column and the line itself.
    let file: ArmFile =
        toml::from_str(text).map_err(|error| anyhow::anyhow!("{}", error.to_string().trim_end()))?;
    if file.arm.is_empty() {
        bail!("it has no table such as [arm.NAME]");
    }
    for (name, arm) in &file.arm {
        if arm.start.is_none() && arm.background.is_none() && arm.under.is_none() {
            bail!("arm {name:?} does nothing: it needs start, background or under");
        }
        if arm.start.is_some() != arm.stop.is_some() {
            bail!(
                "arm {name:?} has one of start and stop: it needs both, as it is switched on and off for each block"
            );
        }
        if let Some(Err(error)) = arm.limit.as_deref().map(duration) {
            bail!("the limit of arm {name:?}: {error}");
        }
    }
    Ok(file.arm)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arms_have_commands() {
        let arms = parse(
            "[arm.a]\nunder = \"strace -c\"\nsettle = \"1s\"\n[arm.b]\nstart = \"x\"\nstop = \"y\"\nsettle = \"sleep 1\"\n",
        );
        let arms = arms.expect("two arms");
        assert_eq!(arms["a"].under.as_deref(), Some("strace -c"));
        assert_eq!(arms["a"].settle(), Some(Settle::Time(Duration::from_secs(1))));
        assert_eq!(arms["b"].settle(), Some(Settle::Command("sleep 1".into())));
    }

    #[track_caller]
    fn refused(text: &str, words: &str) {
        let error = format!("{:#}", parse(text).expect_err("it is wrong"));
        assert!(error.contains(words), "{error}");
    }

    #[test]
    fn mistakes_are_placed() {
        refused("[arm.a]\nunder = 7\n", "line 2, column 9");
        refused("[arm.a]\nunter = \"strace\"\n", "line 2, column 1");
        refused("[arm.a\n", "line 1");
    }

    #[test]
    fn arms_that_could_not_be_toggled_are_refused() {
        refused("", "no table such as [arm.NAME]");
        refused("[arm.a]\nsettle = \"1s\"\n", "does nothing");
        refused("[arm.a]\nstart = \"agent\"\n", "needs both");
    }
}
