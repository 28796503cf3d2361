//! Services of a running session: the active rule file, and what each service uses.

mod explain;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, anyhow, bail};
use kernel::clock::now_ns;
use kernel::gate::Gate;
use kernel::process;
use kernel::service::{KernelServices, Member, ServiceUsage, salt};
use kernel::session::Session;
use kernel::wire;
use service::{AtEnd, RuleEvent, RuleFile, Tree};

use super::dynamic_names;
use super::limits::{Limiter, OwnLimits};
use super::machine_cpu_time::busy_ns;
use super::registry::ServiceRegistry;
use super::requests::{
    LimitChange, LimitReport, RequestedTask, RuleText, ServiceReport, ServiceRequest, ServiceRow,
};
use super::rule_file::{KIND, parsed};
use super::wire_rules::wire_ruleset;
use crate::extension::LossReader;
use crate::format::shown_path;
use crate::output::log_message;
use crate::source_file::SourceFile;

/// The rules of a ruleset, as reports name them.
struct ActiveRules {
    ruleset: u32,
    since_ns: u64,
    file: String,
    /// The line and the name of each rule.
    rules: Vec<(usize, Option<String>)>,
}

/// The maximum number of previous rulesets that are stored. They name the rules that decided about
/// a thread or a socket.
const MAX_PREVIOUS: usize = 16;

/// The processes and threads that work for a service.
#[derive(Default)]
struct Workers {
    threads: usize,
    processes: BTreeSet<u32>,
}

impl Workers {
    fn add(&mut self, member: &Member) {
        self.threads += 1;
        self.processes.insert(member.tgid);
    }
}

pub struct Services {
    kernel: KernelServices,
    /// The file that `apply` reads again if the request has none.
    path: PathBuf,
    registry: ServiceRegistry,
    active: ActiveRules,
    /// Previous rulesets, the latest last.
    previous: VecDeque<ActiveRules>,
    limiter: Limiter,
    /// Usage of removed services, by their successors.
    inherited_usage: BTreeMap<u16, ServiceUsage>,
    reported_usage: BTreeMap<u16, ServiceUsage>,
    since: SystemTime,
    began: Instant,
    busy_ns: u64,
    next_balance: Instant,
}

/// Two periods of quotas, so that one interval covers more than one time slice of a thread.
const BALANCE_INTERVAL: Duration = Duration::from_millis(200);
/// The minimum interval between two balancings, for each microsecond that the first one takes. With
/// it, balancing uses at most a fiftieth of a processor.
const BALANCE_COST_FACTOR: Duration = Duration::from_micros(50);

impl Services {
    /// Activates a rule file. The caller attaches the running processes after that.
    pub fn start(
        gate: &mut Gate,
        session: &Session,
        path: PathBuf,
        source: &SourceFile,
    ) -> Result<Self> {
        let mut registry = ServiceRegistry::default();
        // The kernel side has the root and `shared` from the beginning.
        registry.update(&Tree::default())?;
        let mut services = Self {
            kernel: KernelServices::start(gate, session)?,
            path,
            registry,
            active: ActiveRules {
                ruleset: 0,
                since_ns: now_ns(),
                file: String::new(),
                rules: Vec::new(),
            },
            previous: VecDeque::new(),
            limiter: Limiter::start(gate)?,
            inherited_usage: BTreeMap::new(),
            reported_usage: BTreeMap::new(),
            since: SystemTime::now(),
            began: Instant::now(),
            busy_ns: busy_ns(),
            next_balance: Instant::now(),
        };
        services.activate(gate, source)?;
        Ok(services)
    }

    /// Handles a request of a process.
    pub fn reply(
        &mut self,
        gate: &mut Gate,
        process: u32,
        request: ServiceRequest,
        losses: LossReader,
    ) -> Result<serde_json::Value> {
        Ok(match request {
            ServiceRequest::Apply { file } => serde_json::to_value(self.apply(gate, file)?)?,
            ServiceRequest::Report => {
                let losses = losses.read(gate)?;
                serde_json::to_value(self.report(gate, losses)?)?
            }
            ServiceRequest::List { service } => {
                serde_json::to_value(self.list(gate, service.as_deref())?)?
            }
            ServiceRequest::Explain { who } => {
                serde_json::to_value(self.explain(gate, task_id_of(who, process)?)?)?
            }
            ServiceRequest::ExplainSocket { socket } => {
                serde_json::to_value(self.explain_socket(gate, socket)?)?
            }
            ServiceRequest::Assign { who, service } => {
                serde_json::to_value(self.assign(task_id_of(who, process)?, &service)?)?
            }
            ServiceRequest::Limit { change } => serde_json::to_value(self.limit(gate, change)?)?,
        })
    }

    pub fn apply(&mut self, gate: &mut Gate, file: Option<RuleText>) -> Result<String> {
        let source = match file {
            Some(RuleText { name, text }) => SourceFile::new(name, text),
            None if self.path.as_os_str() == "-" => {
                bail!("the daemon has read its file from stdin: give the file to apply")
            }
            None if std::fs::metadata(&self.path).is_ok_and(|of| !of.is_file()) => {
                bail!(
                    "{} cannot be read again, as it is not a regular file: give the file to apply",
                    shown_path(&self.path)
                )
            }
            None => SourceFile::read(&self.path, KIND)?,
        };
        self.activate(gate, &source)?;
        self.kernel.reclassify_all()?;
        self.limiter.migrate_own(&self.kernel, &self.registry)?;
        Ok(self.summary())
    }

    pub fn summary(&self) -> String {
        use crate::format::{number_of, printable};
        format!(
            "{}: {} and {} are active",
            printable(&self.active.file),
            number_of(self.registry.active().count(), "service"),
            number_of(self.active.rules.len(), "rule")
        )
    }

    fn activate(&mut self, gate: &mut Gate, source: &SourceFile) -> Result<()> {
        let file = parsed(source)?;
        self.register_dynamic(gate)?;
        let mut registry = self.registry.clone();
        let change = registry.update(&file.tree)?;
        let ruleset = wire_ruleset(&file, salt(gate), &registry)?;
        for number in &change.added {
            self.kernel.add(gate, *number)?;
        }
        let before = (self.limiter.own().clone(), self.limiter.at_end());
        let own = own_limits(&file, &registry);
        let limited = self.limiter.activate(&self.kernel, &registry, own, file.at_end);
        let number = match limited.and_then(|()| Ok(self.kernel.activate(gate, &ruleset)?)) {
            Ok(number) => number,
            Err(error) => {
                self.restore_limits(before);
                return Err(error);
            }
        };
        self.registry = registry;
        let started = self.kernel.dynamic_services(gate)?;
        for (number, successor) in self.registry.removed() {
            match started.iter().find(|started| started.number == number) {
                Some(started) => self.kernel.remove_dynamic_service(gate, started, successor),
                None => self.kernel.set_successor(number, successor),
            }
        }
        // Once every processor has left the gate's programs, no thread charges the removed services
        // any more.
        kernel::cpus::wait_for_all();
        let accounts = self.kernel.accounts(gate)?;
        for (number, successor) in &change.removed {
            // A service of the same name that comes back later starts from zero.
            self.reported_usage.remove(number);
            let used = accounts.get(number).copied().unwrap_or_default();
            self.inherited_usage.entry(*successor).or_default().add(used);
            if let Some(more) = self.inherited_usage.remove(number) {
                self.inherited_usage.entry(*successor).or_default().add(more);
            }
        }
        let rules = file.ruleset.rules().iter();
        let active = ActiveRules {
            ruleset: number,
            since_ns: now_ns(),
            file: source.name.clone(),
            rules: rules.map(|rule| (source.line(rule.span.start), rule.name.clone())).collect(),
        };
        self.previous.push_back(std::mem::replace(&mut self.active, active));
        self.previous.drain(..self.previous.len().saturating_sub(MAX_PREVIOUS));
        Ok(())
    }

    /// Names the dynamic services that rules have created since the last call.
    fn register_dynamic(&mut self, gate: &Gate) -> Result<()> {
        let started = self.kernel.dynamic_services(gate)?;
        let new: Vec<_> =
            started.into_iter().filter(|started| !self.registry.is_known(started.number)).collect();
        if new.is_empty() {
            return Ok(());
        }
        let members = self.kernel.members()?;
        for started in new {
            let below = self.registry.successor(started.parent);
            let value = dynamic_names::dynamic_name(&started, &members);
            let mut name = format!("{}:{value}", self.registry.get(below).name);
            // If another program's service has this name, the file at the path was replaced, or
            // another mount namespace has a file with the same path.
            if self.registry.find(&name).is_some() {
                name = format!("{name}#{}", started.number);
            }
            self.registry.add_dynamic(started.number, name, below);
            // Limits may have changed since the kernel side created the service.
            self.limiter.add_dynamic_service(&self.kernel, &self.registry, started.number);
        }
        Ok(())
    }

    fn usage_by_service(
        &mut self,
        accounts: BTreeMap<u16, ServiceUsage>,
        members: &[Member],
    ) -> BTreeMap<u16, ServiceUsage> {
        let mut all = accounts;
        all.retain(|number, _| {
            self.registry.is_known(*number) && self.registry.get(*number).is_active
        });
        for (number, more) in &self.inherited_usage {
            all.entry(*number).or_default().add(*more);
        }
        for member in members {
            all.entry(self.registry.successor(member.uncharged_for))
                .or_default()
                .add(member.uncharged);
        }
        for (number, usage) in &mut all {
            // Usage that was charged between the readings of accounts and members is in neither of
            // them, so the sum may be lower than before.
            let before = self.reported_usage.get(number).copied().unwrap_or_default();
            *usage = usage.non_negative().monotonic_from(before);
            self.reported_usage.insert(*number, *usage);
        }
        all
    }

    /// The own usage of each service, and all members.
    fn used(&mut self, gate: &Gate) -> Result<(BTreeMap<u16, ServiceUsage>, Vec<Member>)> {
        self.register_dynamic(gate)?;
        // Read the accounts first: a charge between the two readings is then in neither of them,
        // instead of in both.
        let accounts = self.kernel.accounts(gate)?;
        let mut members = self.kernel.members()?;
        // Members of services that were created since then are left to the next report.
        let registry = &self.registry;
        members.retain(|member| {
            [member.service, member.uncharged_for].iter().all(|one| registry.is_known(*one))
        });
        Ok((self.usage_by_service(accounts, &members), members))
    }

    fn workers(&self, members: &[Member]) -> BTreeMap<u16, Workers> {
        let mut workers: BTreeMap<u16, Workers> = BTreeMap::new();
        for member in members {
            workers.entry(self.registry.successor(member.service)).or_default().add(member);
        }
        workers
    }

    fn parent_of(&self, number: u16, depth: usize) -> Option<String> {
        (depth > 0).then(|| self.registry.get(self.registry.get(number).parent).name.clone())
    }

    pub fn report(&mut self, gate: &Gate, losses: BTreeMap<String, u64>) -> Result<ServiceReport> {
        let (usage, members) = self.used(gate)?;
        let machine_cpu_ns = busy_ns().saturating_sub(self.busy_ns);
        let cpu_ns: u64 = usage.values().map(|usage| usage.cpu_ns).sum();
        let workers = self.workers(&members);
        let rows = self.registry.in_tree_order().into_iter().map(|(number, depth)| {
            let counts = self.limiter.counts(number);
            let (service, own) = (self.registry.get(number), workers.get(&number));
            ServiceRow {
                name: service.name.clone(),
                id: number,
                parent: self.parent_of(number, depth),
                depth,
                processes: own.map_or(0, |own| own.processes.len()),
                threads: own.map_or(0, |own| own.threads),
                sockets: counts.sockets,
                refused: counts.refused + counts.rebound,
                used: usage.get(&number).copied().unwrap_or_default(),
            }
        });
        Ok(ServiceReport {
            schema: "tollgate.service.report/1".into(),
            since: humantime::format_rfc3339_seconds(self.since).to_string(),
            elapsed_ns: self.began.elapsed().as_nanos() as u64,
            file: self.active.file.clone(),
            rules: self.active.rules.len(),
            services: rows.collect(),
            machine_cpu_ns,
            kernel_cpu_ns: machine_cpu_ns.saturating_sub(cpu_ns),
            migrations: self.limiter.migrations().into(),
            losses,
        })
    }

    /// Keeps the services at their shares of the machine while processors are contended.
    pub fn balance(&mut self, gate: &Gate) -> Result<()> {
        let now = Instant::now();
        if now < self.next_balance {
            return Ok(());
        }
        self.next_balance = now + BALANCE_INTERVAL;
        let used = match self.limiter.is_contended(&self.kernel, BALANCE_INTERVAL) {
            true => Some(self.used(gate)?.0),
            false if self.limiter.is_balanced() => return Ok(()),
            false => None,
        };
        let shared = self.limiter.balance(&self.registry, used);
        self.next_balance =
            now + BALANCE_INTERVAL.max(BALANCE_COST_FACTOR * now.elapsed().as_micros() as u32);
        shared
    }

    /// Does the periodic work.
    pub fn tend(&mut self) -> Result<()> {
        self.limiter.tend()
    }

    fn limit(&mut self, gate: &Gate, change: Option<LimitChange>) -> Result<LimitReport> {
        self.register_dynamic(gate)?;
        if let Some(change) = change {
            let mut own = self.limiter.own().clone();
            let number = self.registry.require(&change.service)?;
            if number == wire::SERVICE_ROOT as u16 || number == wire::SERVICE_SHARED as u16 {
                bail!("{} cannot have limits: it is for work of no service", change.service);
            }
            own.entry(number).or_default().change(&change, &self.registry)?;
            own.retain(|_, own| *own != OwnLimits::default());
            let before = (self.limiter.own().clone(), self.limiter.at_end());
            if let Err(error) = self.limiter.activate(&self.kernel, &self.registry, own, before.1) {
                self.restore_limits(before);
                return Err(error);
            }
            self.limiter.migrate_own(&self.kernel, &self.registry)?;
        }
        Ok(self.limiter.report(&self.registry))
    }

    /// Restores the previous limits after others could not be activated.
    fn restore_limits(&mut self, before: (BTreeMap<u16, OwnLimits>, AtEnd)) {
        let limited = self.limiter.activate(&self.kernel, &self.registry, before.0, before.1);
        let limited = limited.and_then(|()| self.limiter.migrate_own(&self.kernel, &self.registry));
        if let Err(error) = limited {
            log_message(&format!("cannot restore the previous limits: {error:#}"));
        }
    }

    fn assign(&self, who: TaskId, service: &str) -> Result<usize> {
        let number = self.registry.require(service)?;
        let members = || {
            let mut members = self.kernel.members()?;
            members.retain(|member| {
                who.number == if who.is_thread { member.pid } else { member.tgid }
            });
            anyhow::Ok(members)
        };
        if who.number == std::process::id() {
            bail!("process {} is this daemon, which cannot be assigned to a service", who.number);
        }
        // Migrate the threads before they belong to the service, so that whatever they start from
        // then on is under the limits.
        let found = members()?;
        let migrated = found.iter().try_for_each(|member| {
            self.limiter.migrate(&self.kernel, member, number, &self.registry)
        });
        if let Err(error) = migrated {
            for member in &found {
                // The member may not have been migrated at all.
                let _ = self.limiter.migrate(&self.kernel, member, member.service, &self.registry);
            }
            return Err(
                error.context(format!("cannot put {} under the limits of {service}", who.number))
            );
        }
        // Include threads that were started meanwhile, or that have executed another program.
        let mut assigned = BTreeSet::new();
        for _ in 0..MAX_ROUNDS {
            let mut left = members()?;
            left.retain(|member| !assigned.contains(&member.pid));
            if left.is_empty() {
                break;
            }
            left.retain(|member| self.kernel.assign(member, number));
            assigned.extend(left.iter().map(|member| member.pid));
        }
        if assigned.is_empty() {
            return Err(who.not_found());
        }
        Ok(assigned.len())
    }
}

/// A process that starts threads all the time must not keep this loop running.
const MAX_ROUNDS: usize = 10;

/// A process, or one thread.
#[derive(Clone, Copy)]
struct TaskId {
    number: u32,
    is_thread: bool,
}

impl TaskId {
    fn not_found(self) -> anyhow::Error {
        let number = self.number;
        match process::process_of_thread(number) {
            None => anyhow!("there is no process or thread {number}"),
            Some(leader) if leader != number && !self.is_thread => {
                anyhow!(
                    "{number} is a thread of process {leader}: use --thread for a single thread"
                )
            }
            Some(leader) if !process::is_alive(leader) => {
                anyhow!("{number} has ended and is a zombie")
            }
            Some(_) if process::is_kernel_thread(number) => {
                anyhow!("{number} is a kernel thread, which has no service")
            }
            Some(_) if number == std::process::id() => {
                anyhow!("{number} is the daemon itself, which has no service")
            }
            Some(_) => anyhow!(
                "{number} has no service: it is Tollgate's, in another container, or hidden by the \
                kernel"
            ),
        }
    }
}

/// Resolves the requested task. `process` sent the request.
fn task_id_of(who: RequestedTask, process: u32) -> Result<TaskId> {
    let number = match who {
        RequestedTask::OwnProcess => process,
        RequestedTask::Process(pid) => pid,
        RequestedTask::Thread(tid) => tid,
        RequestedTask::OwnThread(tid) => process::thread_of_own_number(process, tid)
            .with_context(|| format!("process {process} has no thread {tid}"))?,
    };
    Ok(TaskId {
        number,
        is_thread: matches!(who, RequestedTask::OwnThread(_) | RequestedTask::Thread(_)),
    })
}

/// The file's limits by the numbers of their services.
fn own_limits(file: &RuleFile, registry: &ServiceRegistry) -> BTreeMap<u16, OwnLimits> {
    let own = file.limits.iter().map(|(id, limits)| {
        let works_for = match limits.over_limit {
            service::OverLimit::WorksFor(other) => Some(registry.of(&file.tree, other)),
            service::OverLimit::Fails(_) => None,
        };
        (registry.of(&file.tree, *id), OwnLimits { limits: limits.clone(), works_for })
    });
    own.collect()
}

/// What the gate must do for a file's rules: bits of [`wire::gate_mask`].
pub fn mask(file: &RuleFile) -> u32 {
    let has_file_rules =
        file.ruleset.rules().iter().any(|rule| rule.events.contains(&RuleEvent::Open));
    if has_file_rules { wire::SERVICE | wire::SERVICE_FILES } else { wire::SERVICE }
}

fn why(why: u8) -> &'static str {
    match u32::from(why) {
        wire::WHY_FORK => "fork",
        wire::WHY_EXEC => "exec",
        wire::WHY_ATTACHED => "found",
        wire::WHY_USER => "user",
        wire::WHY_RECEIVED => "receive",
        wire::WHY_OPENED => "open",
        wire::WHY_RESUMED => "reply",
        wire::WHY_ASSIGNED => "assigned",
        wire::WHY_IO_URING => "io_uring",
        wire::WHY_LIMITED => "limit",
        wire::WHY_SIGNALLED => "asked",
        wire::WHY_SHARED_REPLY => "several",
        _ => "inherited",
    }
}
