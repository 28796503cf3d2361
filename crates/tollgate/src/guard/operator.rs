//! What a running guard does at the request of an operator.

use std::collections::BTreeMap;
use std::time::SystemTime;

use anyhow::{Result, bail};
use kernel::clock::now_ns;
use kernel::gate::Gate;
use kernel::guard::holds::{HeldProcess, Holds, hold};
use kernel::process::{has_terminal, session_of};
use kernel::wire;

use super::baseline::Baseline;
use super::extension::{Guard, path_of};
use super::import::add;
use super::persist::SaveScope;
use super::placement::UnitAndContainer;
use super::requests::{HeldProcessReport, Status};
use super::resolve::{is_in_scope, split_scope};
use super::transitions::{self, Transition, TransitionResult};
use crate::format::printable;

impl Guard {
    pub fn status(&self, gate: &Gate, since: SystemTime, losses: BTreeMap<String, u64>) -> Status {
        let held = Holds::new(gate, self.session).held();
        let held = held.iter().map(|held| self.held_process(held)).collect();
        Status {
            schema: "tollgate-guard-status/1".into(),
            mode: self.policy.mode.name().into(),
            response: self.response(),
            is_off: self.is_off,
            pid: std::process::id(),
            since: humantime::format_rfc3339_seconds(since).to_string(),
            held_most: self.policy.wire.max_held,
            held,
            programs: self.program_reports(),
            losses,
        }
    }

    fn held_process(&self, held: &HeldProcess) -> HeldProcessReport {
        let UnitAndContainer { unit, container } = UnitAndContainer::of(held.tgid);
        let command =
            std::fs::read_to_string(format!("/proc/{}/comm", held.tgid)).unwrap_or_default();
        HeldProcessReport {
            pid: held.tgid,
            program: self.program_of(held),
            scope: self.scope_of(held).map(str::to_owned),
            command: command.trim_end().to_owned(),
            unit,
            container,
            left_ns: (held.until_ns != u64::MAX).then(|| held.until_ns.saturating_sub(now_ns())),
        }
    }

    fn program_of(&self, held: &HeldProcess) -> String {
        self.programs.get(&held.profile).map_or_else(String::new, |(program, _)| path_of(program))
    }

    fn scope_of(&self, held: &HeldProcess) -> Option<&str> {
        self.programs.get(&held.profile).and_then(|(program, _)| program.scope.as_deref())
    }

    pub fn verb(
        &mut self,
        gate: &Gate,
        verb: Transition,
        programs: &[String],
    ) -> Result<Vec<TransitionResult>> {
        self.save(gate, SaveScope::All)?;
        let done = transitions::apply(&self.store, verb, programs)?;
        self.reload_all(gate, done)
    }

    pub fn import(
        &mut self,
        gate: &Gate,
        baselines: Vec<Baseline>,
        replace: bool,
    ) -> Result<Vec<TransitionResult>> {
        self.save(gate, SaveScope::All)?;
        let done = add(&self.store, baselines, replace)?;
        self.reload_all(gate, done)
    }

    fn reload_all(
        &mut self,
        gate: &Gate,
        done: Vec<TransitionResult>,
    ) -> Result<Vec<TransitionResult>> {
        done.iter()
            .filter(|done| done.is_changed)
            .try_for_each(|done| self.reload(gate, &done.identity))?;
        Ok(done)
    }

    /// Switches responses off or on. While they are off, no process is held, denied or killed.
    /// Returns a line for each released process.
    pub fn switch(&mut self, gate: &Gate, off: bool) -> Vec<String> {
        self.is_off = off;
        let response = if off { wire::GUARD_OBSERVE } else { self.policy.wire.response };
        Holds::new(gate, self.session).set_response(response);
        if off { self.release(gate, &[]).unwrap_or_default() } else { Vec::new() }
    }

    /// Records that a user at this process's terminal operates the guard. If the session from which
    /// the guard was started has no terminal, as under systemd, the user's session becomes the
    /// exempt one until the user logs out.
    pub fn note_operator(&mut self, gate: &Gate, process: u32) {
        let Some(spared) = &mut self.policy.selection.exempt_sid else { return };
        if !has_terminal(*spared)
            && has_terminal(process)
            && let Some(session) = session_of(process)
        {
            *spared = session;
            Holds::new(gate, self.session).set_exempt_session(session);
        }
    }

    pub fn hold(&mut self, gate: &Gate, pid: u32) -> Result<()> {
        if self.is_off {
            bail!("the guard is switched off: run `tollgate guard on` first");
        }
        if self.watchdog.is_none() {
            bail!("this guard cannot hold processes: it was started without --guard=enforce");
        }
        if pid == std::process::id()
            || self.watchdog.as_ref().is_some_and(|watchdog| watchdog.pid() == pid)
        {
            bail!("process {pid} is part of the guard: nothing could release it");
        }
        // pid_namespaces(7): process 1 gets no signal from its own namespace for which it has no
        // handler.
        if pid == 1 {
            bail!("process 1 cannot be stopped");
        }
        // For getsid(), 0 stands for the calling process.
        if pid != 0
            && self
                .policy
                .selection
                .exempt_sid
                .is_some_and(|spared| session_of(pid) == Some(spared))
        {
            bail!("process {pid} is in the operator's session, which could then not release it");
        }
        if !hold(gate, self.session, pid, u64::MAX) {
            bail!(
                "process {pid} is not guarded here: it may have ended, be a kernel thread, or run \
                a program that was not selected"
            );
        }
        Ok(())
    }

    /// Releases processes, and returns a line for each.
    pub fn release(&mut self, gate: &Gate, whom: &[String]) -> Result<Vec<String>> {
        let held = Holds::new(gate, self.session).held();
        let is_meant = |held: &HeldProcess, who: &String| {
            let (program, (name, scope)) = (self.program_of(held), split_scope(who));
            let is_named = name == program || program.rsplit('/').next() == Some(name);
            *who == held.tgid.to_string()
                || is_named && scope.is_none_or(|scope| is_in_scope(self.scope_of(held), scope))
        };
        let unknown = whom.iter().filter(|who| !held.iter().any(|held| is_meant(held, who)));
        let unknown: Vec<_> =
            unknown.map(|who| format!("no held process has this ID or name: {who}")).collect();
        if !whom.is_empty() && unknown.len() == whom.len() {
            bail!("{}; `tollgate guard status` lists the held processes", unknown.join("; "));
        }
        let meant = held
            .iter()
            .filter(|held| whom.is_empty() || whom.iter().any(|who| is_meant(held, who)));
        let released = meant.map(|held| {
            Holds::new(gate, self.session).release_and_reset(held);
            format!("{} {}: released", held.tgid, self.program_of(held))
        });
        Ok(released.chain(unknown).map(|line| printable(&line)).collect())
    }
}
