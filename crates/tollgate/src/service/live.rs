//! Services at work: a rule file in force, and what each service uses.

mod explain;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, anyhow, bail};
use kernel::clock::now_ns;
use kernel::gate::Gate;
use kernel::process;
use kernel::services::{self, Figures, Member};
use kernel::session::Session;
use kernel::wire;
use service::{AtEnd, Directive, Each, Event, Keys, RuleFile, Tree};

use super::control::{LimitChange, LimitReport, Report, Request, RuleText, ServiceRow, Who};
use super::limit::changed;
use super::limits::{Limiter, Own};
use super::machine_time::busy_ns;
use super::named;
use super::numbers::Numbers;
use super::problems::{KIND, parsed};
use crate::daemon::control::tell;
use crate::source::Source;

/// The rules of a book, as they are told of.
struct InForce {
    book: u32,
    since_ns: u64,
    file: String,
    /// Lines and names.
    rules: Vec<(usize, Option<String>)>,
}

/// Files whose rules are still told of to who was decided on by them.
const FORMER: usize = 16;

/// Who works for a service.
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
    kernel: kernel::services::Services,
    /// Where `apply` without a file reads it again.
    path: PathBuf,
    numbers: Numbers,
    in_force: InForce,
    /// The latest last.
    former: VecDeque<InForce>,
    limiter: Limiter,
    /// Of services that are gone, to whom they went.
    inherited: BTreeMap<u16, Figures>,
    told: BTreeMap<u16, Figures>,
    since: SystemTime,
    began: Instant,
    busy_ns: u64,
    share_again: Instant,
}

/// Some periods of quotas, so that a step has more in it than one thread's turn.
const SHARE_EVERY: Duration = Duration::from_millis(200);
/// For each microsecond that it takes: no more than a fiftieth of a processor goes into it.
const SHARE_REST: Duration = Duration::from_micros(50);

impl Services {
    /// Puts a rule file in force; whoever runs is to be taken in after that.
    pub fn start(gate: &mut Gate, session: &Session, path: PathBuf, source: &Source) -> Result<Self> {
        let mut numbers = Numbers::default();
        // These the kernel side has from the beginning.
        numbers.take(&Tree::default())?;
        let mut services = Self {
            kernel: kernel::services::Services::start(gate, session)?,
            path,
            numbers,
            in_force: InForce { book: 0, since_ns: now_ns(), file: String::new(), rules: Vec::new() },
            former: VecDeque::new(),
            limiter: Limiter::start(gate)?,
            inherited: BTreeMap::new(),
            told: BTreeMap::new(),
            since: SystemTime::now(),
            began: Instant::now(),
            busy_ns: busy_ns(),
            share_again: Instant::now(),
        };
        services.put_in_force(gate, source)?;
        Ok(services)
    }

    /// Of a process; the report is the daemon's to ask for, which knows what is missing in it.
    pub fn answer(&mut self, gate: &mut Gate, process: u32, request: Request) -> Result<serde_json::Value> {
        Ok(match request {
            Request::Apply { file } => serde_json::to_value(self.apply(gate, file)?)?,
            Request::Report => serde_json::to_value(self.report(gate, BTreeMap::new())?)?,
            Request::List { service } => serde_json::to_value(self.list(gate, service.as_deref())?)?,
            Request::Explain { who } => serde_json::to_value(self.explain(gate, numbers_of(who, process)?)?)?,
            Request::ExplainSocket { socket } => serde_json::to_value(self.explain_socket(gate, socket)?)?,
            Request::Assign { who, service } => {
                serde_json::to_value(self.assign(numbers_of(who, process)?, &service)?)?
            }
            Request::Limit { change } => serde_json::to_value(self.limit(gate, change)?)?,
        })
    }

    pub fn apply(&mut self, gate: &mut Gate, file: Option<RuleText>) -> Result<String> {
        let source = match file {
            Some(RuleText { name, text }) => Source::new(name, text),
            None if self.path.as_os_str() == "-" => {
                bail!("the daemon has read its file from stdin: name the one to apply")
            }
            None if std::fs::metadata(&self.path).is_ok_and(|of| !of.is_file()) => {
                bail!("{} is no file that can be read again: name the one to apply", self.path.display())
            }
            None => Source::read(&self.path, KIND)?,
        };
        self.put_in_force(gate, &source)?;
        self.kernel.ask_all()?;
        self.limiter.place_own(&self.kernel, &self.numbers)?;
        Ok(self.summary())
    }

    pub fn summary(&self) -> String {
        use crate::format::{number_of, printable};
        format!(
            "{}: {} and {} are in force",
            printable(&self.in_force.file),
            number_of(self.numbers.there().count(), "service"),
            number_of(self.in_force.rules.len(), "rule")
        )
    }

    fn put_in_force(&mut self, gate: &mut Gate, source: &Source) -> Result<()> {
        let file = parsed(source)?;
        self.name_started(gate)?;
        let mut numbers = self.numbers.clone();
        let change = numbers.take(&file.tree)?;
        let book = book(&file, gate.salt(), &numbers)?;
        for number in &change.added {
            self.kernel.add(gate, *number)?;
        }
        let before = (self.limiter.own().clone(), self.limiter.at_end());
        let own = own_limits(&file, &numbers);
        let limited = self.limiter.put_in_force(&self.kernel, &numbers, own, file.at_end);
        let number = match limited.and_then(|()| Ok(self.kernel.put_in_force(gate, &book)?)) {
            Ok(number) => number,
            Err(error) => {
                self.limit_as_before(before);
                return Err(error);
            }
        };
        self.numbers = numbers;
        let started = self.kernel.started(gate)?;
        for (number, heir) in self.numbers.gone() {
            match started.iter().find(|started| started.number == number) {
                Some(started) => self.kernel.forget_started(gate, started, heir),
                None => self.kernel.retire(number, heir),
            }
        }
        // Nobody charges them any more then.
        kernel::cpus::wait_for_all();
        let accounts = self.kernel.accounts(gate)?;
        for (number, heir) in &change.gone {
            // Where its name comes again, it begins anew.
            self.told.remove(number);
            let used = accounts.get(number).copied().unwrap_or_default();
            self.inherited.entry(*heir).or_default().add(used);
            if let Some(more) = self.inherited.remove(number) {
                self.inherited.entry(*heir).or_default().add(more);
            }
        }
        let rules = file.book.rules().iter();
        let in_force = InForce {
            book: number,
            since_ns: now_ns(),
            file: source.name.clone(),
            rules: rules.map(|rule| (source.line(rule.span.start), rule.name.clone())).collect(),
        };
        self.former.push_back(std::mem::replace(&mut self.in_force, in_force));
        self.former.drain(..self.former.len().saturating_sub(FORMER));
        Ok(())
    }

    /// Gives names to what rules have started since this was called last.
    fn name_started(&mut self, gate: &Gate) -> Result<()> {
        let started = self.kernel.started(gate)?;
        let new: Vec<_> =
            started.into_iter().filter(|started| !self.numbers.is_known(started.number)).collect();
        if new.is_empty() {
            return Ok(());
        }
        let members = self.kernel.members()?;
        for started in new {
            let below = self.numbers.heir(started.below);
            let value = named::value(&started, &members);
            let mut name = format!("{}:{value}", self.numbers.get(below).name);
            // Of a program's that is another one by now, or of one elsewhere whose file has the same name.
            if self.numbers.find(&name).is_some() {
                name = format!("{name}#{}", started.number);
            }
            self.numbers.start(started.number, name, below);
            // Limits may have changed between its beginning and now.
            self.limiter.include(&self.kernel, &self.numbers, started.number);
        }
        Ok(())
    }

    fn figures(&mut self, accounts: BTreeMap<u16, Figures>, members: &[Member]) -> BTreeMap<u16, Figures> {
        let mut all = accounts;
        all.retain(|number, _| self.numbers.is_known(*number) && self.numbers.get(*number).is_there);
        for (number, more) in &self.inherited {
            all.entry(*number).or_default().add(*more);
        }
        for member in members {
            all.entry(self.numbers.heir(member.used_for)).or_default().add(member.since);
        }
        for (number, figures) in &mut all {
            // A thread that was charged between the two readings is in neither.
            let before = self.told.get(number).copied().unwrap_or_default();
            *figures = figures.settled().at_least(before);
            self.told.insert(*number, *figures);
        }
        all
    }

    /// What each service has used itself, and who works for them.
    fn used(&mut self, gate: &Gate) -> Result<(BTreeMap<u16, Figures>, Vec<Member>)> {
        self.name_started(gate)?;
        // Accounts first: who is charged in between is in neither, and not in both.
        let accounts = self.kernel.accounts(gate)?;
        let mut members = self.kernel.members()?;
        // Those of one that was started since are told of the next time.
        let numbers = &self.numbers;
        members.retain(|member| [member.service, member.used_for].iter().all(|one| numbers.is_known(*one)));
        Ok((self.figures(accounts, &members), members))
    }

    fn workers(&self, members: &[Member]) -> BTreeMap<u16, Workers> {
        let mut workers: BTreeMap<u16, Workers> = BTreeMap::new();
        for member in members {
            workers.entry(self.numbers.heir(member.service)).or_default().add(member);
        }
        workers
    }

    fn parent_of(&self, number: u16, depth: usize) -> Option<String> {
        (depth > 0).then(|| self.numbers.get(self.numbers.get(number).parent).name.clone())
    }

    pub fn report(&mut self, gate: &Gate, losses: BTreeMap<String, u64>) -> Result<Report> {
        let (figures, members) = self.used(gate)?;
        let machine_cpu_ns = busy_ns().saturating_sub(self.busy_ns);
        let cpu_ns: u64 = figures.values().map(|figures| figures.cpu_ns).sum();
        let workers = self.workers(&members);
        let rows = self.numbers.as_tree().into_iter().map(|(number, depth)| {
            let counts = self.limiter.counts(number);
            let (service, own) = (self.numbers.get(number), workers.get(&number));
            ServiceRow {
                name: service.name.clone(),
                id: number,
                parent: self.parent_of(number, depth),
                depth,
                processes: own.map_or(0, |own| own.processes.len()),
                threads: own.map_or(0, |own| own.threads),
                sockets: counts.sockets,
                refused: counts.refused + counts.moved,
                used: figures.get(&number).copied().unwrap_or_default().into(),
            }
        });
        Ok(Report {
            schema: "tollgate.service.report/1".into(),
            since: humantime::format_rfc3339_seconds(self.since).to_string(),
            elapsed_ns: self.began.elapsed().as_nanos() as u64,
            file: self.in_force.file.clone(),
            rules: self.in_force.rules.len(),
            services: rows.collect(),
            machine_cpu_ns,
            kernel_cpu_ns: machine_cpu_ns.saturating_sub(cpu_ns),
            moves: self.limiter.moves().into(),
            losses,
        })
    }

    /// Sees to it that services have their shares of the machine, as long as they compete.
    pub fn share(&mut self, gate: &Gate) -> Result<()> {
        let now = Instant::now();
        if now < self.share_again {
            return Ok(());
        }
        self.share_again = now + SHARE_EVERY;
        let used = match self.limiter.have_to_share(&self.kernel, SHARE_EVERY) {
            true => Some(self.used(gate)?.0),
            false if self.limiter.is_even() => return Ok(()),
            false => None,
        };
        let shared = self.limiter.share(&self.numbers, used);
        self.share_again = now + SHARE_EVERY.max(SHARE_REST * now.elapsed().as_micros() as u32);
        shared
    }

    /// What is to be looked after from time to time.
    pub fn tend(&mut self) -> Result<()> {
        self.limiter.tend()
    }

    fn limit(&mut self, gate: &Gate, change: Option<LimitChange>) -> Result<LimitReport> {
        self.name_started(gate)?;
        if let Some(change) = change {
            let mut own = self.limiter.own().clone();
            let number = self.numbers.named(&change.service)?;
            if number == wire::SERVICE_ROOT as u16 || number == wire::SERVICE_SHARED as u16 {
                bail!("{} has no limits: it is for what is nobody's", change.service);
            }
            changed(own.entry(number).or_default(), &change, &self.numbers)?;
            own.retain(|_, own| *own != Own::default());
            let before = (self.limiter.own().clone(), self.limiter.at_end());
            if let Err(error) = self.limiter.put_in_force(&self.kernel, &self.numbers, own, before.1) {
                self.limit_as_before(before);
                return Err(error);
            }
            self.limiter.place_own(&self.kernel, &self.numbers)?;
        }
        Ok(self.limiter.report(&self.numbers))
    }

    /// After others could not be put in force.
    fn limit_as_before(&mut self, before: (BTreeMap<u16, Own>, AtEnd)) {
        let limited = self.limiter.put_in_force(&self.kernel, &self.numbers, before.0, before.1);
        let limited = limited.and_then(|()| self.limiter.place_own(&self.kernel, &self.numbers));
        if let Err(error) = limited {
            tell(&format!("the limits are not as they were: {error:#}"));
        }
    }

    fn assign(&self, who: Numbered, service: &str) -> Result<usize> {
        let number = self.numbers.named(service)?;
        let members = || {
            let mut members = self.kernel.members()?;
            members.retain(|member| who.number == if who.is_thread { member.pid } else { member.tgid });
            anyhow::Ok(members)
        };
        if who.number == std::process::id() {
            bail!("{} is this daemon, which works for nobody", who.number);
        }
        // Before it belongs to the service: what it starts then is under the limits.
        let found = members()?;
        let placed = found
            .iter()
            .try_for_each(|member| self.limiter.place(&self.kernel, member, number, &self.numbers));
        if let Err(error) = placed {
            for member in &found {
                // It may not have been moved at all.
                let _ = self.limiter.place(&self.kernel, member, member.service, &self.numbers);
            }
            return Err(error.context(format!("{} cannot be under the limits of {service}", who.number)));
        }
        // Also those that were begun meanwhile, or have executed another program.
        let mut given = BTreeSet::new();
        for _ in 0..ROUNDS {
            let mut left = members()?;
            left.retain(|member| !given.contains(&member.pid));
            if left.is_empty() {
                break;
            }
            left.retain(|member| self.kernel.assign(member, number));
            given.extend(left.iter().map(|member| member.pid));
        }
        if given.is_empty() {
            return Err(who.is_nobody());
        }
        Ok(given.len())
    }
}

/// So that a storm of new threads does not keep anybody here for good.
const ROUNDS: usize = 10;

/// A process, or one thread.
#[derive(Clone, Copy)]
struct Numbered {
    number: u32,
    is_thread: bool,
}

impl Numbered {
    fn is_nobody(self) -> anyhow::Error {
        let number = self.number;
        match process::leader_of(number) {
            None => anyhow!("there is no process or thread {number}"),
            Some(leader) if leader != number && !self.is_thread => {
                anyhow!("{number} is a thread of process {leader}: --thread is for one")
            }
            Some(_) if !process::lives(number) => {
                anyhow!("{number} has ended, and its parent has not asked for its status yet")
            }
            Some(_) => anyhow!("{number} is the kernel's own, or one that it shows to nobody"),
        }
    }
}

/// `process` asks.
fn numbers_of(who: Who, process: u32) -> Result<Numbered> {
    let number = match who {
        Who::OwnProcess => process,
        Who::Process(pid) => pid,
        Who::Thread(tid) => tid,
        Who::OwnThread(tid) => process::thread_of_own_number(process, tid)
            .with_context(|| format!("process {process} has no thread of the number {tid}"))?,
    };
    Ok(Numbered { number, is_thread: matches!(who, Who::OwnThread(_) | Who::Thread(_)) })
}

/// By their numbers.
fn own_limits(file: &RuleFile, numbers: &Numbers) -> BTreeMap<u16, Own> {
    let own = file.limits.iter().map(|(id, limits)| {
        let works_for = match limits.beyond {
            service::Beyond::WorksFor(other) => Some(numbers.of(&file.tree, other)),
            service::Beyond::Fails(_) => None,
        };
        (numbers.of(&file.tree, *id), Own { limits: limits.clone(), works_for })
    });
    own.collect()
}

/// For measuring: nobody asks for anything of them.
pub fn in_force(gate: &mut Gate, session: &Session, rules: &str) -> Result<()> {
    let source = Source::new("its own".into(), rules.into());
    Services::start(gate, session, PathBuf::new(), &source).map(drop)
}

/// What the gate has to do for a file's rules.
pub fn mask(file: &RuleFile) -> u32 {
    let asks_of_files = file.book.rules().iter().any(|rule| rule.events.contains(&Event::Open));
    if asks_of_files { wire::SERVICE | wire::SERVICE_FILES } else { wire::SERVICE }
}

fn why(why: u8) -> &'static str {
    match u32::from(why) {
        wire::WHY_FORK => "fork",
        wire::WHY_EXEC => "exec",
        wire::WHY_FOUND => "found",
        wire::WHY_USER => "user",
        wire::WHY_RECEIVED => "receive",
        wire::WHY_OPENED => "open",
        wire::WHY_RESUMED => "reply",
        wire::WHY_ASSIGNED => "assigned",
        wire::WHY_IO_URING => "io_uring",
        wire::WHY_LIMITED => "limit",
        wire::WHY_ASKED => "asked",
        wire::WHY_SEVERAL => "several",
        _ => "inherited",
    }
}

/// As the kernel side has it.
fn book(file: &RuleFile, salt: u64, numbers: &Numbers) -> Result<services::Book> {
    let keys = Keys::new(&file.book, salt, |id| numbers.of(&file.tree, id))
        .ok()
        .context("the rules ask for more combinations of conditions than an event may have")?;
    let sets = keys.sets.iter().map(|set| wire::service_set {
        fields: set.fields,
        cgroup_depth: set.cgroup_depth,
        client_family: set.client.0,
        client_bits: set.client.1,
        file_depth: set.file_depth,
        ..Default::default()
    });
    let rules = keys.rules.iter().map(|key| (key.set, key.hash, follows(file, key.place, numbers)));
    let fields = file.book.rules().iter().map(|rule| match rule.then {
        Directive::Starts { each: Each::Exe, .. } => wire::FIELD_EXE,
        Directive::Starts { each: Each::Unit, .. } => wire::FIELD_UNIT,
        _ => 0,
    });
    let fields = fields.fold(0, |all, one| all | one);
    Ok(services::Book { fields, sets: sets.collect(), rules: rules.collect(), asked: keys.asked })
}

fn follows(file: &RuleFile, place: usize, numbers: &Numbers) -> wire::service_rule {
    let rule = &file.book.rules()[place];
    let number = |tree: &Tree, id| numbers.of(tree, id);
    let (then, service) = match rule.then {
        Directive::BelongsTo(id) => (wire::THEN_BELONGS, number(&file.tree, id)),
        Directive::Inherits => (wire::THEN_INHERITS, 0),
        Directive::AdoptsPeer => (wire::THEN_ADOPTS_PEER, 0),
        Directive::Starts { below, .. } => (wire::THEN_STARTS, number(&file.tree, below)),
    };
    let each = match rule.then {
        Directive::Starts { each: Each::User, .. } => wire::EACH_USER,
        Directive::Starts { each: Each::Unit, .. } => wire::EACH_UNIT,
        Directive::Starts { each: Each::Exe, .. } => wire::EACH_EXE,
        Directive::Starts { each: Each::Client, .. } => wire::EACH_CLIENT,
        _ => 0,
    };
    let event = |event: &Event| Event::ALL.iter().position(|one| one == event).unwrap_or_default();
    wire::service_rule {
        place: place as u32,
        service,
        then: then as u8,
        events: rule.events.iter().fold(0, |all, one| all | 1 << event(one)),
        names_events: rule.names_events.into(),
        each: each as u8,
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_have_the_same_fields() {
        use service::field;
        let both = [
            (field::EXE, wire::FIELD_EXE),
            (field::USER, wire::FIELD_USER),
            (field::UNIT, wire::FIELD_UNIT),
            (field::SERVICE, wire::FIELD_SERVICE),
            (field::LISTEN_PATH, wire::FIELD_LISTEN_PATH),
            (field::LISTEN_ADDRESS, wire::FIELD_LISTEN_ADDRESS),
            (field::LISTEN_PORT, wire::FIELD_LISTEN_PORT),
            (field::CLIENT, wire::FIELD_CLIENT),
            (field::PEER, wire::FIELD_PEER),
            (field::CGROUP, wire::FIELD_CGROUP),
            (field::FILE, wire::FIELD_FILE),
        ];
        for (pure, kernel) in both {
            assert_eq!(u32::from(pure), kernel);
        }
        assert_eq!(Event::ALL.len(), wire::SERVICE_EVENTS as usize);
        assert_eq!(service::MOST_SETS, wire::SERVICE_SETS as usize);
        assert!(service::MOST_RULES <= wire::SERVICE_RULES as usize);
    }
}
