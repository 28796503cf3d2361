//! User-defined arms, from a TOML file:
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
//! hooks = ["sys_enter"]
//!
//! [arm.strace]
//! under = "strace -c -f -o /dev/null"
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kernel::gate_programs::GateHook;
use kernel::wire;
use serde::Deserialize;

use crate::format::shown_path;
use crate::options::duration;

/// How to switch an agent, a tracer or a setting on and off around a block. /bin/sh runs the
/// commands.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileArm {
    /// Switches the arm on and then ends.
    pub start: Option<String>,
    /// Switches the arm off again.
    pub stop: Option<String>,
    /// Runs while the arm is on; SIGINT ends it, as Ctrl-C would.
    pub background: Option<String>,
    /// A command that runs the workload: the workload's command line is appended to it.
    pub under: Option<String>,
    /// What to wait for after the start: a time ("500ms"), or a command that ends when all is
    /// ready.
    pub settle: Option<String>,
    /// Prints the number of events dropped since the start; runs before the arm is switched off.
    pub loss: Option<String>,
    /// How long each of the commands may take (default: 30s).
    pub limit: Option<String>,
    /// The hooks that the arm uses (default: the six of the lens). Empty programs on them are its
    /// floor.
    pub hooks: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ArmFile {
    #[serde(default)]
    arm: BTreeMap<String, FileArm>,
}

const LIMIT: Duration = Duration::from_secs(30);

/// What to wait for before the block.
#[derive(Debug, Clone, PartialEq)]
pub enum SettleRule {
    Time(Duration),
    Command(String),
}

impl FileArm {
    pub fn limit(&self) -> Duration {
        self.limit.as_deref().and_then(|text| duration(text).ok()).unwrap_or(LIMIT)
    }

    /// The hooks in the kernel's order; unknown names were refused when the file was read.
    pub fn hooks(&self) -> Vec<GateHook> {
        let Some(names) = &self.hooks else { return GateHook::used(wire::LENS) };
        GateHook::all().filter(|hook| names.iter().any(|name| name == hook.name())).collect()
    }

    pub fn settle(&self) -> Option<SettleRule> {
        let text = self.settle.as_ref()?;
        Some(match duration(text) {
            Ok(time) => SettleRule::Time(time),
            Err(_) => SettleRule::Command(text.clone()),
        })
    }
}

pub fn read(path: &Path) -> Result<BTreeMap<String, FileArm>> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", shown_path(path)))?;
    parse(&text).with_context(|| format!("{} does not describe arms", shown_path(path)))
}

fn parse(text: &str) -> Result<BTreeMap<String, FileArm>> {
    // The message has the line, the column and the text of the line.
    let file: ArmFile = toml::from_str(text)
        .map_err(|error| anyhow::anyhow!("{}", error.to_string().trim_end()))?;
    if file.arm.is_empty() {
        bail!("it has no table [arm.NAME]");
    }
    for (name, arm) in &file.arm {
        if name.is_empty() || name.chars().any(char::is_control) {
            bail!("the name {name:?} of an arm is empty or not printable");
        }
        let texts = [&arm.start, &arm.stop, &arm.background, &arm.under, &arm.settle, &arm.loss];
        if texts.into_iter().flatten().any(|text| text.trim().is_empty()) {
            bail!("arm {name:?} has an empty command");
        }
        if arm.start.is_none() && arm.background.is_none() && arm.under.is_none() {
            bail!("arm {name:?} does nothing: it needs start, background or under");
        }
        if arm.start.is_some() != arm.stop.is_some() {
            bail!(
                "arm {name:?} has only one of start and stop, but needs both: each block switches \
                it on and off"
            );
        }
        match arm.limit.as_deref().map(duration) {
            Some(Err(error)) => bail!("the limit of arm {name:?}: {error}"),
            Some(Ok(Duration::ZERO)) => {
                bail!("the limit of arm {name:?} is 0, within which nothing can end")
            }
            _ => {}
        }
        // A text that begins with a digit is taken for a time, because no command begins with one.
        if let Some(text) =
            arm.settle.as_deref().filter(|text| text.starts_with(|c: char| c.is_ascii_digit()))
            && let Err(error) = duration(text)
        {
            bail!("the settle of arm {name:?}: {error}");
        }
        let known = GateHook::all().map(GateHook::name).collect::<Vec<_>>();
        if let Some(other) = arm.hooks.iter().flatten().find(|name| !known.contains(&name.as_str()))
        {
            bail!(
                "the hooks of arm {name:?}: unknown hook {other:?}; known hooks are {}",
                known.join(", ")
            );
        }
        if arm.hooks.as_ref().is_some_and(Vec::is_empty) {
            bail!(
                "the hooks of arm {name:?}: the list is empty; leave out `hooks` to compare with \
                the hooks of the lens"
            );
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
            "[arm.a]\nunder = \"strace -c\"\nsettle = \"1s\"\n[arm.b]\nstart = \"x\"\nstop = \
            \"y\"\nsettle = \"sleep 1\"\n",
        );
        let arms = arms.expect("two arms");
        assert_eq!(arms["a"].under.as_deref(), Some("strace -c"));
        assert_eq!(arms["a"].settle(), Some(SettleRule::Time(Duration::from_secs(1))));
        assert_eq!(arms["b"].settle(), Some(SettleRule::Command("sleep 1".into())));
    }

    #[track_caller]
    fn refused(text: &str, words: &str) {
        let error = format!("{:#}", parse(text).expect_err("it is wrong"));
        assert!(error.contains(words), "{error}");
    }

    #[test]
    fn errors_have_line_numbers() {
        refused("[arm.a]\nunder = 7\n", "line 2, column 9");
        refused("[arm.a]\nunter = \"strace\"\n", "line 2, column 1");
        refused("[arm.a\n", "line 1");
    }

    #[test]
    fn arms_that_could_not_be_toggled_are_refused() {
        refused("", "no table [arm.NAME]");
        refused("[arm.a]\nsettle = \"1s\"\n", "does nothing");
        refused("[arm.a]\nstart = \"agent\"\n", "needs both");
    }

    #[test]
    fn values_that_mean_nothing_are_refused() {
        refused("[arm.\"\"]\nunder = \"x\"\n", "empty or not printable");
        refused("[arm.\"a\\u001b[31m\"]\nunder = \"x\"\n", "empty or not printable");
        refused("[arm.a]\nstart = \"\"\nstop = \"true\"\n", "has an empty command");
        refused("[arm.a]\nunder = \"x\"\nlimit = \"0s\"\n", "within which nothing can end");
        refused("[arm.a]\nunder = \"x\"\nsettle = \"10\"\n", "has no unit");
    }

    #[test]
    fn arms_name_hooks_to_be_compared_on() {
        let hooks = |hooks: &str| {
            parse(&format!("[arm.a]\nunder = \"x\"\n{hooks}")).map(|arms| arms["a"].hooks())
        };
        assert_eq!(hooks("").expect("those of lens"), GateHook::used(wire::LENS));
        assert_eq!(hooks("hooks = [\"sys_enter\"]").expect("one"), [GateHook::SYS_ENTER]);
        refused(
            "[arm.a]\nunder = \"x\"\nhooks = [\"enter\"]\n",
            "unknown hook \"enter\"; known hooks are sched_switch",
        );
        refused("[arm.a]\nunder = \"x\"\nhooks = []\n", "the list is empty");
    }
}
