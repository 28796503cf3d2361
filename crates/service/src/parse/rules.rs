//! The rules of a file: `[[rule]]`.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use ipnet::{IpNet, Ipv4Net};
use toml::de::DeTable;

use super::reader::{At, Reader};
use super::services::{MOST_ABOVE, find};
use super::{Host, MOST_RULES, Problem, Problems};
use crate::conditions::{Conditions, Folder, Listen, MOST_PARTS};
use crate::rule::{Directive, Each, Event, Rule};
use crate::tree::{Id, Tree};

const DIRECTIVES: &str = "belongs-to, inherits, adopts-peer or starts-below";

pub fn read(tables: Vec<At<&DeTable>>, tree: &Tree, host: &dyn Host, problems: &mut Problems) -> Vec<Rule> {
    if let Some(one_more) = tables.get(MOST_RULES) {
        let text = format!("there are {} rules, of which {MOST_RULES} are possible", tables.len());
        problems.push(Problem::new(one_more.span.clone(), text));
        return Vec::new();
    }
    tables.into_iter().filter_map(|table| one(table, tree, host, problems)).collect()
}

/// A rule, as far as it is one.
fn one(table: At<&DeTable>, tree: &Tree, host: &dyn Host, problems: &mut Problems) -> Option<Rule> {
    let known = problems.len();
    let mut reader = Reader::new(table.value, table.span.clone(), problems);
    let name = reader.string("name").map(|name| name.value.to_owned());
    let priority = reader.integer("priority", i32::MIN.into()..=i32::MAX.into());
    let priority = priority.map_or(0, |priority| priority.value as i32);
    let when = conditions(&mut reader, tree, host);
    let then = directive(&mut reader, tree);
    let named = events(&mut reader);
    reader.finish(|_| "a rule's settings stand in it as they are: exe = \"/usr/sbin/nginx\"".into());
    if problems.len() > known {
        return None;
    }
    let (then, span) = (then?, table.span);
    let events = named.clone().unwrap_or_else(|| usual_events(&when, then));
    let rule = Rule { name, span, priority, events, names_events: named.is_some(), when, then };
    problems.extend(fault(&rule));
    (problems.len() == known).then_some(rule)
}

fn conditions(reader: &mut Reader, tree: &Tree, host: &dyn Host) -> Conditions {
    let exe = reader.string("exe").and_then(|path| real(reader, &path, host));
    let known = reader.problems.len();
    let user = reader.string("user");
    reader.help_since(known, || "write user = \"33\", or the user's name".into());
    let user = user.and_then(|name| {
        let is_number = name.value.bytes().all(|byte| byte.is_ascii_digit());
        let found = if is_number { name.value.parse().ok() } else { host.user(name.value) };
        if found.is_none() {
            let problem = Problem::new(name.span, format!("this machine has no user {:?}", name.value));
            reader.problem(problem.help("users that /etc/passwd does not have can be given by number"));
        }
        found
    });
    let cgroup = reader.string("cgroup").and_then(|path| {
        if path.value.starts_with("/sys/fs/cgroup") {
            let problem = Problem::new(path.span, "cgroup is to be a path in the tree of control groups");
            reader.problem(problem.help("leave /sys/fs/cgroup away: \"/system.slice/nginx.service\""));
            return None;
        }
        folder(reader, &path)
    });
    Conditions {
        exe: exe.map(|path| path.as_str().to_owned()),
        user,
        unit: reader.string("unit").and_then(|name| unit(reader, &name)),
        cgroup,
        service: service(reader, "service", tree),
        listen: reader.string("listen").and_then(|text| listen(reader, &text)).unwrap_or_default(),
        client: reader.string("client").and_then(|text| network(reader, &text)),
        peer: service(reader, "peer", tree),
        file: reader.string("file").and_then(|path| real(reader, &path, host)),
    }
}

/// systemd.unit(5): types of units that may have processes, and of those that have none of their own.
const WITH_PROCESSES: [&str; 5] = [".service", ".scope", ".mount", ".socket", ".swap"];
const WITHOUT: [&str; 6] = [".slice", ".target", ".timer", ".path", ".device", ".automount"];

/// As systemctl does, it is a service where it has no type.
fn unit(reader: &mut Reader, name: &At<&str>) -> Option<String> {
    let ends_in = |types: &[&str]| types.iter().any(|ending| name.value.ends_with(ending));
    if ends_in(&WITHOUT) || name.value.contains('/') {
        let problem =
            Problem::new(name.span.clone(), format!("{:?} is no unit that has processes", name.value));
        reader.problem(problem.help("for all that is in a slice, write cgroup = \"/NAME.slice\""));
        return None;
    }
    Some(if ends_in(&WITH_PROCESSES) { name.value.to_owned() } else { format!("{}.service", name.value) })
}

fn service(reader: &mut Reader, key: &'static str, tree: &Tree) -> Option<Id> {
    let name = reader.string(key)?;
    find(tree, &name, reader.problems)
}

fn folder(reader: &mut Reader, path: &At<&str>) -> Option<Folder> {
    let folder = Folder::new(path.value);
    if folder.is_none() {
        let text = match path.value.matches('/').count() > MOST_PARTS {
            true => format!("{:?} has more than {MOST_PARTS} parts", path.value),
            false => format!("{:?} is no absolute path below '/', without '.' and '..'", path.value),
        };
        reader.problem(Problem::new(path.span.clone(), text));
    }
    folder
}

/// Where the path leads to.
fn real(reader: &mut Reader, path: &At<&str>, host: &dyn Host) -> Option<Folder> {
    let real = host.real_path(folder(reader, path)?.as_str());
    let folder = Folder::new(&real);
    if folder.is_none() {
        let text = format!("{:?} leads to {real:?}, which cannot be asked for", path.value);
        reader.problem(Problem::new(path.span.clone(), text));
    }
    folder
}

/// sockaddr_un has 108 bytes for it, the last of which is a NUL.
const LONGEST_PATH: usize = 107;

fn listen(reader: &mut Reader, text: &At<&str>) -> Option<Listen> {
    let found = socket(text.value);
    let any = |listen: &Listen| listen.address.is_some_and(|address| address.is_unspecified());
    let help = match &found {
        Some(listen) if !any(listen) => return found,
        Some(Listen { port: Some(port), .. }) => {
            format!("connections have an address: write \":{port}\" for any")
        }
        None if is_ambiguous(text.value) => {
            let (address, port) = text.value.rsplit_once(':').expect("it was looked for");
            format!(
                "write \"[{address}]:{port}\" for a port, \"[{address}:{port}]\" for an address without one"
            )
        }
        _ => "write \"127.0.0.1:80\", \"[::1]:80\", \":80\", \"127.0.0.1\", \"/run/a.sock\" or \"@name\""
            .into(),
    };
    let problem = Problem::new(text.span.clone(), format!("{:?} is no address of a connection", text.value));
    reader.problem(problem.help(help));
    None
}

/// An end of a connection, as rules and commands name it.
pub fn socket(text: &str) -> Option<Listen> {
    let nowhere = Listen::default();
    if text.starts_with(['/', '@']) {
        let is_name = text.starts_with('@') && text != "@";
        let is_path = text.len() <= LONGEST_PATH && (is_name || Folder::new(text).is_some());
        return is_path.then(|| Listen { path: Some(text.into()), ..nowhere });
    }
    let port = |text: &str| {
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|port| is_number && *port != 0)
    };
    if let Some(text) = text.strip_prefix(':').filter(|text| !text.contains(':')) {
        return Some(Listen { port: Some(port(text)?), ..nowhere });
    }
    if let Ok(both) = text.parse::<SocketAddr>() {
        let address = Some(both.ip().to_canonical());
        return (both.port() != 0).then(|| Listen { address, port: Some(both.port()), ..nowhere });
    }
    let address = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    let address = match address {
        Some(text) => IpAddr::V6(text.parse().ok()?),
        None if is_ambiguous(text) => return None,
        None => text.parse().ok()?,
    };
    Some(Listen { address: Some(address.to_canonical()), ..nowhere })
}

/// An address of IPv6 that may be a shorter one with a port.
fn is_ambiguous(text: &str) -> bool {
    let is_decimal = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    text.rsplit_once(':').is_some_and(|(address, port)| {
        is_decimal(port) && address.parse::<Ipv6Addr>().is_ok() && text.parse::<Ipv6Addr>().is_ok()
    })
}

fn network(reader: &mut Reader, text: &At<&str>) -> Option<IpNet> {
    let found =
        text.value.parse::<IpNet>().ok().or_else(|| text.value.parse::<IpAddr>().ok().map(IpNet::from));
    let Some(network) = found.map(canonical) else {
        let problem = Problem::new(text.span.clone(), format!("{:?} is no address or network", text.value));
        reader.problem(problem.help("write \"192.0.2.7\", \"10.0.0.0/8\" or \"2001:db8::/32\""));
        return None;
    };
    if network != network.trunc() {
        let message = format!("{network} has bits behind its {}", network.prefix_len());
        let problem = Problem::new(text.span.clone(), message);
        reader.problem(problem.help(format!("did you mean \"{}\"?", network.trunc())));
        return None;
    }
    Some(network)
}

/// IPv4 in IPv6 is IPv4, as connections tell it.
fn canonical(network: IpNet) -> IpNet {
    match (network.addr().to_canonical(), network.prefix_len().checked_sub(96)) {
        (IpAddr::V4(address), Some(bits)) if network.addr().is_ipv6() => {
            Ipv4Net::new(address, bits).map_or(network, IpNet::from)
        }
        _ => network,
    }
}

fn directive(reader: &mut Reader, tree: &Tree) -> Option<Directive> {
    let known = reader.problems.len();
    let belongs = service(reader, "belongs-to", tree).map(Directive::BelongsTo);
    let inherits = reader.flag("inherits").map(|_| Directive::Inherits);
    let adopts = reader.flag("adopts-peer").map(|_| Directive::AdoptsPeer);
    let starts = starts(reader, tree);
    let mut all = [belongs, inherits, adopts, starts].into_iter().flatten();
    let (first, second) = (all.next(), all.next());
    if reader.problems.len() == known && (first.is_none() || second.is_some()) {
        let what = if first.is_none() { "does nothing" } else { "says more than one thing" };
        reader.problem(Problem::new(
            reader.span.clone(),
            format!("this rule {what}: it needs one of {DIRECTIVES}"),
        ));
        return None;
    }
    first
}

fn starts(reader: &mut Reader, tree: &Tree) -> Option<Directive> {
    let below = reader.string("starts-below");
    let each = reader.string("each");
    let (below, each) = match (below, each) {
        (None, None) => return None,
        (Some(below), Some(each)) => (below, each),
        (Some(at), None) | (None, Some(at)) => {
            let names = Each::ALL.map(Each::name).join(", ");
            let text = format!("starts-below = \"SERVICE\" and each = one of {names} go together");
            reader.problem(Problem::new(at.span, text));
            return None;
        }
    };
    let found = Each::ALL.into_iter().find(|one| one.name() == each.value);
    if found.is_none() {
        let problem = Problem::new(each.span, format!("no service can be started for each {:?}", each.value));
        let problem = one_of(problem, each.value, Each::ALL.map(Each::name), reader);
        reader.problem(problem);
    }
    let parent = find(tree, &below, reader.problems)?;
    if parent == Id::SHARED || tree.way_up(parent).count() > MOST_ABOVE {
        let text = format!("no service can be started below {:?}", below.value);
        reader.problem(Problem::new(below.span, text));
        return None;
    }
    Some(Directive::Starts { below: parent, each: found? })
}

/// With the names that there are.
fn one_of<const N: usize>(
    problem: Problem,
    name: &str,
    known: [&'static str; N],
    reader: &Reader,
) -> Problem {
    problem.suggest(name, known, reader.problems, || Some(format!("there are: {}", known.join(", "))))
}

fn events(reader: &mut Reader) -> Option<Vec<Event>> {
    let mut events = Vec::new();
    for name in reader.strings("on")? {
        let Some(event) = Event::ALL.into_iter().find(|event| event.name() == name.value) else {
            let problem = Problem::new(name.span, format!("there is no event {:?}", name.value));
            let problem = one_of(problem, name.value, Event::ALL.map(Event::name), reader);
            reader.problem(problem);
            continue;
        };
        if events.contains(&event) {
            reader.problem(Problem::new(name.span, format!("{:?} is there twice", name.value)));
        }
        events.push(event);
    }
    Some(events)
}

/// Those that the conditions can be known at, but for fork: a child works for whom its parent works.
fn usual_events(when: &Conditions, then: Directive) -> Vec<Event> {
    let shape = when.shape();
    if shape.is_of_connections() || is_of_peers(then) {
        vec![Event::Receive]
    } else if shape.is_of_files() {
        vec![Event::Open]
    } else {
        vec![Event::Exec, Event::Found, Event::User]
    }
}

/// Whether it asks who is at the other end.
fn is_of_peers(then: Directive) -> bool {
    matches!(then, Directive::AdoptsPeer | Directive::Starts { each: Each::Client, .. })
}

/// What cannot be meant.
fn fault(rule: &Rule) -> Option<Problem> {
    let (when, shape) = (&rule.when, rule.when.shape());
    let only = |event| rule.events.iter().all(|other| *other == event);
    let is_of_peers = is_of_peers(rule.then);
    let adopts = rule.then == Directive::AdoptsPeer;
    let has_peers = |event: &Event| matches!(event, Event::Receive | Event::Fork);
    let listens_at_path = when.listen.path.is_some();
    let text = if shape.count == 0 && matches!(rule.then, Directive::BelongsTo(_) | Directive::Inherits) {
        "this rule has no condition: it would be for every thread of the machine"
    } else if rule.events.is_empty() {
        "this rule is asked on no event"
    } else if (shape.is_of_connections() || is_of_peers) && shape.is_of_files() {
        "no event has both a file and a connection: make two rules of it"
    } else if shape.is_of_connections() && !only(Event::Receive) {
        "listen, client and peer are known on \"receive\" only"
    } else if shape.is_of_files() && !only(Event::Open) {
        "file is known on \"open\" only"
    } else if adopts && !rule.events.iter().all(has_peers) {
        "whose service it adopts is known on \"receive\" and \"fork\" only"
    } else if is_of_peers && !adopts && !only(Event::Receive) {
        "who is at the other end is known on \"receive\" only"
    } else if listens_at_path && (when.client.is_some() || rule.then != Directive::AdoptsPeer && is_of_peers)
    {
        "the clients of a Unix socket have no address"
    } else if when
        .listen
        .address
        .zip(when.client)
        .is_some_and(|(own, client)| own.is_ipv4() != client.addr().is_ipv4())
    {
        "the two ends of a connection are both IPv4 or both IPv6"
    } else {
        return None;
    };
    Some(Problem::new(rule.span.clone(), text))
}

/// What cannot be meant of several rules together; `rules` are in the order in which they decide.
pub fn check(rules: &[Rule], tree: &Tree, problems: &mut Problems) {
    twins(rules, problems);
    cycles(rules, tree, problems);
}

/// Rules of which neither decides before the other.
fn twins(rules: &[Rule], problems: &mut Problems) {
    let mut known: HashMap<(Event, i32, &Conditions), &Rule> = HashMap::new();
    for rule in rules {
        let twin = rule.events.iter().find_map(|event| {
            let first = *known.entry((*event, rule.priority, &rule.when)).or_insert(rule);
            (first.span != rule.span).then_some((event, first))
        });
        if let Some((event, first)) = twin {
            let text = format!(
                "on \"{}\" neither this rule nor another decides first: they ask for the same, at the same priority",
                event.name()
            );
            problems.push(Problem::new(rule.span.clone(), text).other(first.span.clone(), "the other"));
        }
    }
}

/// Which service it gives. One that was started is asked for as the one below which it is, and not started again there.
fn next(rule: &Rule) -> Option<Id> {
    match rule.then {
        Directive::BelongsTo(to) => Some(to),
        Directive::Starts { below, .. } => Some(below).filter(|below| rule.when.service != Some(*below)),
        Directive::Inherits | Directive::AdoptsPeer => None,
    }
}

/// From a service to the next one, and by which rule.
type Steps<'a> = HashMap<Id, (Id, &'a Rule)>;

/// Rules on the same conditions by which a thread would have another service after each exec, fork or change of user.
fn cycles(rules: &[Rule], tree: &Tree, problems: &mut Problems) {
    let mut all: HashMap<(Event, Conditions), Steps> = HashMap::new();
    for rule in rules {
        let (Some(from), Some(to)) = (rule.when.service, next(rule)) else { continue };
        for event in rule.events.iter().filter(|event| event.is_of_identity()) {
            let others = Conditions { service: None, ..rule.when.clone() };
            // Of several steps from a service the first rule's is taken.
            all.entry((*event, others)).or_default().entry(from).or_insert((to, rule));
        }
    }
    let mut told: Vec<usize> = Vec::new();
    for steps in all.values() {
        for way in circles(steps) {
            // A cycle is told once, and not on each of its events.
            let rules = || way.iter().map(|id| steps[id].1);
            let rule = rules().max_by_key(|rule| rule.span.start).expect("it has a step");
            let other = rules().min_by_key(|rule| rule.span.start).filter(|other| other.span != rule.span);
            if !told.contains(&rule.span.start) {
                told.push(rule.span.start);
                let names: Vec<_> = way.iter().chain(&way[..1]).take(8).map(|id| tree.name(*id)).collect();
                let text = format!("these rules are a cycle: a thread would go from {}", names.join(" to "));
                let problem = Problem::new(rule.span.clone(), text);
                problems.push(match other {
                    Some(other) => problem.other(other.span.clone(), "with this one"),
                    None => problem,
                });
            }
        }
    }
}

/// The ways that end where they began, each from its first service on. A service that was on a way is not gone from again.
fn circles(steps: &Steps) -> Vec<Vec<Id>> {
    let mut circles = Vec::new();
    let mut seen: HashMap<Id, Id> = HashMap::new();
    let mut starts: Vec<_> = steps.keys().copied().collect();
    starts.sort_unstable();
    for start in starts {
        let mut way = Vec::new();
        let mut here = start;
        while !seen.contains_key(&here) && steps.contains_key(&here) {
            seen.insert(here, start);
            way.push(here);
            here = steps[&here].0;
        }
        if seen.get(&here) == Some(&start)
            && let Some(begin) = way.iter().position(|id| *id == here)
        {
            let mut circle = way.split_off(begin);
            let first = (0..circle.len()).min_by_key(|place| circle[*place]).expect("it has a step");
            circle.rotate_left(first);
            circles.push(circle);
        }
    }
    circles
}
