//! Explains which threads work for which service, and why.

use anyhow::{Context as _, Result};
use kernel::clock::now_ns;
use kernel::gate::Gate;
use kernel::service::Member;
use kernel::wire;

use super::{Services, TaskId, why};
use crate::service::explain_sockets::{self, SocketOwners};
use crate::service::requests::{
    ExplainedEnd, ExplainedRule, ExplainedThread, Explanation, List, ListRow, SocketExplanation,
};

impl Services {
    pub(super) fn list(&mut self, gate: &Gate, service: Option<&str>) -> Result<List> {
        let members = self.kernel.members()?;
        self.register_dynamic(gate)?;
        let only = service.map(|name| self.registry.require(name)).transpose()?;
        let workers = self.workers(&members);
        let rows = self
            .registry
            .in_tree_order()
            .into_iter()
            .filter(|(number, _)| only.is_none_or(|only| only == *number));
        let services = rows.map(|(number, depth)| {
            let own = workers.get(&number);
            ListRow {
                name: self.registry.get(number).name.clone(),
                parent: self.parent_of(number, depth),
                depth,
                processes: own.map_or(0, |own| own.processes.len()),
                threads: own.map_or(0, |own| own.threads),
            }
        });
        let is_selected = |member: &&Member| only == Some(self.registry.successor(member.service));
        let threads = members.iter().filter(is_selected).map(|member| self.explained(member));
        Ok(List {
            schema: "tollgate.service.list/1".into(),
            services: services.collect(),
            threads: threads.collect(),
        })
    }

    pub(super) fn explain(&mut self, gate: &Gate, who: TaskId) -> Result<Explanation> {
        let members = self.kernel.members()?;
        self.register_dynamic(gate)?;
        let pid = who.number;
        let mut threads: Vec<_> =
            members.iter().filter(|member| !who.is_thread && member.tgid == pid).collect();
        if threads.is_empty() {
            threads = members.iter().filter(|member| member.pid == pid).collect();
        }
        if threads.is_empty() {
            return Err(who.not_found());
        }
        let threads = threads.into_iter().map(|member| self.explained(member)).collect();
        Ok(Explanation { schema: "tollgate.service.explain/1".into(), pid, threads })
    }

    fn explained(&self, member: &Member) -> ExplainedThread {
        let successor = self.registry.successor(member.service);
        let name = |number| self.registry.get(number).name.clone();
        ExplainedThread {
            tid: member.pid,
            command: member.command.clone(),
            service: name(successor),
            removed: (successor != member.service).then(|| name(member.service)),
            is_on_behalf: u32::from(member.binding) != wire::BINDING_OWN,
            why: why(member.why).into(),
            rule: self.rule(member.rule, member.ruleset),
            since_ns: now_ns().saturating_sub(member.bound_ns.unwrap_or(self.active.since_ns)),
        }
    }

    pub(super) fn explain_socket(
        &mut self,
        gate: &Gate,
        socket: String,
    ) -> Result<SocketExplanation> {
        let wanted = service::listen(&socket)
            .with_context(|| format!("{socket:?} is not a socket address"))?;
        let connections = explain_sockets::connections(self.kernel.sockets(gate)?, &wanted);
        self.register_dynamic(gate)?;
        let owners = SocketOwners::read();
        let end = |record: &wire::service_socket_record| ExplainedEnd {
            sends_for: u16::try_from(record.service)
                .ok()
                .filter(|number| self.registry.is_known(*number))
                .map(|number| self.registry.get(self.registry.successor(number)).name.clone()),
            rule: self.rule((record.rule_number as usize).checked_sub(1), record.ruleset),
            ..explain_sockets::end(record, &owners)
        };
        Ok(SocketExplanation {
            schema: "tollgate.service.explain-socket/1".into(),
            listeners: explain_sockets::listeners(&wanted, &owners),
            connections: connections.iter().map(|ends| ends.iter().map(end).collect()).collect(),
            socket,
        })
    }

    fn rule(&self, precedence: Option<usize>, ruleset: u32) -> Option<ExplainedRule> {
        let files = self.previous.iter().chain([&self.active]);
        let of = files.into_iter().find(|file| file.ruleset == ruleset)?;
        let (line, name) = of.rules.get(precedence?)?.clone();
        Some(ExplainedRule {
            file: of.file.clone(),
            line,
            name,
            is_previous: ruleset != self.active.ruleset,
        })
    }
}
