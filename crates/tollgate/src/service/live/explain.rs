//! Who works for which service, and why.

use anyhow::{Context as _, Result};
use kernel::clock::now_ns;
use kernel::gate::Gate;
use kernel::services::Member;
use kernel::wire;

use super::{Numbered, Services, why};
use crate::service::control::{
    ExplainedEnd, ExplainedRule, ExplainedThread, Explanation, List, ListRow, SocketExplanation,
};
use crate::service::sockets::{self, Owners};

impl Services {
    pub(super) fn list(&mut self, gate: &Gate, service: Option<&str>) -> Result<List> {
        let members = self.kernel.members()?;
        self.name_started(gate)?;
        let only = service.map(|name| self.numbers.named(name)).transpose()?;
        let workers = self.workers(&members);
        let rows =
            self.numbers.as_tree().into_iter().filter(|(number, _)| only.is_none_or(|only| only == *number));
        let services = rows.map(|(number, depth)| {
            let own = workers.get(&number);
            ListRow {
                name: self.numbers.get(number).name.clone(),
                parent: self.parent_of(number, depth),
                depth,
                processes: own.map_or(0, |own| own.processes.len()),
                threads: own.map_or(0, |own| own.threads),
            }
        });
        let is_asked_for = |member: &&Member| only == Some(self.numbers.heir(member.service));
        let threads = members.iter().filter(is_asked_for).map(|member| self.explained(member));
        Ok(List {
            schema: "tollgate.service.list/1".into(),
            services: services.collect(),
            threads: threads.collect(),
        })
    }

    pub(super) fn explain(&mut self, gate: &Gate, who: Numbered) -> Result<Explanation> {
        let members = self.kernel.members()?;
        self.name_started(gate)?;
        let pid = who.number;
        let mut threads: Vec<_> =
            members.iter().filter(|member| !who.is_thread && member.tgid == pid).collect();
        if threads.is_empty() {
            threads = members.iter().filter(|member| member.pid == pid).collect();
        }
        if threads.is_empty() {
            return Err(who.is_nobody());
        }
        let threads = threads.into_iter().map(|member| self.explained(member)).collect();
        Ok(Explanation { schema: "tollgate.service.explain/1".into(), pid, threads })
    }

    fn explained(&self, member: &Member) -> ExplainedThread {
        ExplainedThread {
            tid: member.pid,
            command: member.command.clone(),
            service: self.numbers.get(self.numbers.heir(member.service)).name.clone(),
            borrowed: u32::from(member.borrowed) != wire::BORROWED_NOT,
            why: why(member.why).into(),
            rule: self.rule(member.rule, member.book),
            since_ns: now_ns().saturating_sub(member.labelled_ns.unwrap_or(self.in_force.since_ns)),
        }
    }

    pub(super) fn explain_socket(&mut self, gate: &Gate, socket: String) -> Result<SocketExplanation> {
        let wanted = service::listen(&socket).with_context(|| format!("{socket:?} is no socket"))?;
        let connections = sockets::connections(self.kernel.sockets(gate)?, &wanted);
        self.name_started(gate)?;
        let owners = Owners::read();
        let end = |record: &wire::service_socket_record| ExplainedEnd {
            sends_for: u16::try_from(record.service)
                .ok()
                .filter(|number| self.numbers.is_known(*number))
                .map(|number| self.numbers.get(self.numbers.heir(number)).name.clone()),
            rule: self.rule((record.rule as usize).checked_sub(1), record.book),
            ..sockets::end(record, &owners)
        };
        Ok(SocketExplanation {
            schema: "tollgate.service.explain-socket/1".into(),
            listeners: sockets::listeners(&wanted, &owners),
            connections: connections.iter().map(|ends| ends.iter().map(end).collect()).collect(),
            socket,
        })
    }

    fn rule(&self, place: Option<usize>, book: u32) -> Option<ExplainedRule> {
        let files = self.former.iter().chain([&self.in_force]);
        let of = files.into_iter().find(|file| file.book == book)?;
        let (line, name) = of.rules.get(place?)?.clone();
        Some(ExplainedRule { file: of.file.clone(), line, name, is_former: book != self.in_force.book })
    }
}
