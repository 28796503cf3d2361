//! What an operator asks of a guard that is at work, and what it answers.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use anyhow::{Result, bail};
use kernel::clock::now_ns;
use kernel::gate::Gate;
use kernel::guarded::Held;
use kernel::process::{has_terminal, session_of};
use kernel::wire;
use serde::{Deserialize, Serialize};

use super::baseline::Baseline;
use super::exchange;
use super::keep::Save;
use super::live::{Guard, path_of};
use super::placement::Placement;
use super::select::{is_in_scope, with_scope};
use super::verbs::{self, Done, Verb};
use crate::format::printable;
use crate::report::GuardedProgram;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case")]
pub enum Request {
    Status,
    /// All that are kept, and with `follow` those to come.
    Events {
        follow: bool,
    },
    /// Answered with the folder of the store, in which everything is up to date then.
    Store,
    Import {
        baselines: Vec<Baseline>,
        replace: bool,
    },
    Verb {
        verb: Verb,
        programs: Vec<String>,
    },
    Off,
    On,
    Hold {
        pid: u32,
    },
    /// Process numbers, or names or paths of programs; none: all.
    Release {
        whom: Vec<String>,
    },
}

/// `tollgate guard status --json`
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Status {
    pub schema: String,
    /// learn, watch or enforce
    pub mode: String,
    pub response: String,
    /// An operator has switched responses off.
    pub is_off: bool,
    pub pid: u32,
    /// RFC 3339
    pub since: String,
    /// Processes that may be held at the same time.
    pub held_most: u32,
    pub held: Vec<HeldProcess>,
    pub programs: Vec<GuardedProgram>,
    pub losses: BTreeMap<String, u64>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct HeldProcess {
    pub pid: u32,
    pub program: String,
    #[serde(default)]
    pub scope: Option<String>,
    pub command: String,
    pub unit: Option<String>,
    pub container: Option<String>,
    /// Nanoseconds until it is let go; none: not before somebody does.
    pub left_ns: Option<u64>,
}

impl Guard {
    pub fn status(&self, gate: &Gate, since: SystemTime, losses: BTreeMap<String, u64>) -> Status {
        let held = gate.held(self.session).iter().map(|held| self.held_process(held)).collect();
        Status {
            schema: "tollgate-guard-status/1".into(),
            mode: self.policy.mode.name().into(),
            response: self.response(),
            is_off: self.is_off,
            pid: std::process::id(),
            since: humantime::format_rfc3339_seconds(since).to_string(),
            held_most: self.policy.wire.held_most,
            held,
            programs: self.accounts(),
            losses,
        }
    }

    fn held_process(&self, held: &Held) -> HeldProcess {
        let Placement { unit, container } = Placement::of(held.tgid);
        let command = std::fs::read_to_string(format!("/proc/{}/comm", held.tgid)).unwrap_or_default();
        HeldProcess {
            pid: held.tgid,
            program: self.program_of(held),
            scope: self.scope_of(held).map(str::to_owned),
            command: command.trim_end().to_owned(),
            unit,
            container,
            left_ns: (held.until_ns != u64::MAX).then(|| held.until_ns.saturating_sub(now_ns())),
        }
    }

    fn program_of(&self, held: &Held) -> String {
        self.programs.get(&held.profile).map_or_else(String::new, |(program, _)| path_of(program))
    }

    fn scope_of(&self, held: &Held) -> Option<&str> {
        self.programs.get(&held.profile).and_then(|(program, _)| program.scope.as_deref())
    }

    pub fn verb(&mut self, gate: &Gate, verb: Verb, programs: &[String]) -> Result<Vec<Done>> {
        self.save(gate, Save::All)?;
        let done = verbs::apply(&self.store, verb, programs)?;
        self.reload_all(gate, done)
    }

    pub fn import(&mut self, gate: &Gate, baselines: Vec<Baseline>, replace: bool) -> Result<Vec<Done>> {
        self.save(gate, Save::All)?;
        let done = exchange::add(&self.store, baselines, replace)?;
        self.reload_all(gate, done)
    }

    fn reload_all(&mut self, gate: &Gate, done: Vec<Done>) -> Result<Vec<Done>> {
        done.iter().filter(|done| done.is_changed).try_for_each(|done| self.reload(gate, &done.identity))?;
        Ok(done)
    }

    /// Nobody is held, denied or killed any more, until it is switched on again. Returns who was let go.
    pub fn switch(&mut self, gate: &Gate, off: bool) -> Vec<String> {
        self.is_off = off;
        gate.respond(self.session, if off { wire::GUARD_OBSERVE } else { self.policy.wire.response });
        if off { self.release(gate, &[]).unwrap_or_default() } else { Vec::new() }
    }

    /// Somebody at this process's terminal works with the guard. Where nobody was at the one that the guard was started
    /// from, such as by systemd, theirs is the operator's session until they log out.
    pub fn note_operator(&mut self, gate: &Gate, process: u32) {
        let Some(spared) = &mut self.policy.selection.spared_sid else { return };
        if !has_terminal(*spared)
            && has_terminal(process)
            && let Some(session) = session_of(process)
        {
            *spared = session;
            gate.spare_session(self.session, session);
        }
    }

    pub fn hold(&mut self, gate: &Gate, pid: u32) -> Result<()> {
        if self.is_off {
            bail!("the guard is off: `tollgate guard on` first");
        }
        if self.warden.is_none() {
            bail!("this guard holds nobody: it was not started with --guard=enforce");
        }
        if pid == std::process::id() || self.warden.as_ref().is_some_and(|warden| warden.pid() == pid) {
            bail!("process {pid} is this guard's own: nobody would let it go");
        }
        // pid_namespaces(7): it gets no signal of its own namespace that it has no handler for.
        if pid == 1 {
            bail!("process 1 cannot be stopped");
        }
        // To the kernel, 0 is whoever asks.
        if pid != 0 && self.policy.selection.spared_sid.is_some_and(|spared| session_of(pid) == Some(spared))
        {
            bail!("process {pid} is of the operator's own session, who could not let it go then");
        }
        if !gate.hold(self.session, pid, u64::MAX) {
            bail!(
                "process {pid} is not guarded here: it may have ended, be a kernel thread, or run a program that was not chosen"
            );
        }
        Ok(())
    }

    /// Whom it lets go, in a line each.
    pub fn release(&mut self, gate: &Gate, whom: &[String]) -> Result<Vec<String>> {
        let held = gate.held(self.session);
        let is_meant = |held: &Held, who: &String| {
            let (program, (name, scope)) = (self.program_of(held), with_scope(who));
            let is_named = name == program || program.rsplit('/').next() == Some(name);
            *who == held.tgid.to_string()
                || is_named && scope.is_none_or(|scope| is_in_scope(self.scope_of(held), scope))
        };
        let unknown = whom.iter().filter(|who| !held.iter().any(|held| is_meant(held, who)));
        let unknown: Vec<_> =
            unknown.map(|who| format!("nobody is held by this number or name: {who}")).collect();
        if !whom.is_empty() && unknown.len() == whom.len() {
            bail!("{}; `tollgate guard status` lists who is", unknown.join("; "));
        }
        let meant = held.iter().filter(|held| whom.is_empty() || whom.iter().any(|who| is_meant(held, who)));
        let released = meant.map(|held| {
            gate.forgive(self.session, held);
            format!("{} {}: released", held.tgid, self.program_of(held))
        });
        Ok(released.chain(unknown).map(|line| printable(&line)).collect())
    }
}

impl HeldProcess {
    pub fn left(&self) -> String {
        self.left_ns.map_or_else(
            || "until released".into(),
            |ns| format!("{} more", crate::format::span(Duration::from_nanos(ns).as_secs())),
        )
    }
}
