//! The rules of a file: `[[rule]]`.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use ipnet::{IpNet, Ipv4Net};
use toml_reader::{At, DeTable, Problem, Problems, TableReader};

use super::host::Host;
use super::names::find;
use super::services::MAX_ANCESTORS;
use crate::conditions::{Conditions, Folder, Listen, MAX_PATH_PARTS};
use crate::event::RuleEvent;
use crate::rule::{Rule, RuleAction, SplitBy};
use crate::tree::{Id, Tree};

/// The maximum number of rules in a file.
pub const MAX_RULES: usize = 65_000;
const ACTIONS: &str = "belongs-to, inherits, adopts-peer or starts-below";

pub fn read(
    tables: Vec<At<&DeTable>>,
    tree: &Tree,
    host: &dyn Host,
    problems: &mut Problems,
) -> Vec<Rule> {
    if let Some(one_more) = tables.get(MAX_RULES) {
        let text =
            format!("there are {} rules, but at most {MAX_RULES} are possible", tables.len());
        problems.push(Problem::new(one_more.span.clone(), text));
        return Vec::new();
    }
    tables.into_iter().filter_map(|table| read_rule(table, tree, host, problems)).collect()
}

/// A rule, or `None` if it has problems.
fn read_rule(
    table: At<&DeTable>,
    tree: &Tree,
    host: &dyn Host,
    problems: &mut Problems,
) -> Option<Rule> {
    let problems_before = problems.len();
    let mut reader = TableReader::new(table.value, table.span.clone(), problems);
    let name = reader.string("name").map(|name| name.value.to_owned());
    let priority = reader.integer("priority", i32::MIN.into()..=i32::MAX.into());
    let priority = priority.map_or(0, |priority| priority.value as i32);
    let conditions = conditions(&mut reader, tree, host);
    let action = action(&mut reader, tree);
    let named = events(&mut reader);
    reader.finish(|_| {
        "a rule has no tables; write its settings directly: exe = \"/usr/sbin/nginx\"".into()
    });
    if problems.len() > problems_before {
        return None;
    }
    let (action, span) = (action?, table.span);
    let events = named.clone().unwrap_or_else(|| default_events(&conditions, action));
    let rule = Rule {
        name,
        span,
        priority,
        events,
        has_explicit_events: named.is_some(),
        conditions,
        action,
    };
    problems.extend(validation_error(&rule));
    (problems.len() == problems_before).then_some(rule)
}

fn conditions(reader: &mut TableReader, tree: &Tree, host: &dyn Host) -> Conditions {
    let exe = reader.string("exe").and_then(|path| resolve_path(reader, &path, host));
    let help = "write user = \"33\", or the user's name";
    let user = reader.with_help(help, |reader| reader.string("user"));
    let user = user.and_then(|name| {
        let is_number = name.value.bytes().all(|byte| byte.is_ascii_digit());
        let found = if is_number { name.value.parse().ok() } else { host.user(name.value) };
        if found.is_none() {
            let problem =
                Problem::new(name.span, format!("this machine has no user {:?}", name.value));
            reader
                .problem(problem.help("users that are not in /etc/passwd can be given by number"));
        }
        found
    });
    let cgroup = reader.string("cgroup").and_then(|path| {
        if path.value.starts_with("/sys/fs/cgroup") {
            let problem =
                Problem::new(path.span, "cgroup must be a path within the cgroup hierarchy");
            reader
                .problem(problem.help("leave out /sys/fs/cgroup: \"/system.slice/nginx.service\""));
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
        file: reader.string("file").and_then(|path| resolve_path(reader, &path, host)),
    }
}

/// The types of units that may have processes, and those that never have any (systemd.unit(5)).
const WITH_PROCESSES: [&str; 5] = [".service", ".scope", ".mount", ".socket", ".swap"];
const WITHOUT: [&str; 6] = [".slice", ".target", ".timer", ".path", ".device", ".automount"];

/// Completes the name of a unit: as in systemctl, a name without a type gets `.service`.
fn unit(reader: &mut TableReader, name: &At<&str>) -> Option<String> {
    let ends_in = |types: &[&str]| types.iter().any(|ending| name.value.ends_with(ending));
    if ends_in(&WITHOUT) || name.value.contains('/') {
        let problem = Problem::new(
            name.span.clone(),
            format!("{:?} is not a unit that can have processes", name.value),
        );
        reader.problem(
            problem.help("to match everything in a slice, write cgroup = \"/NAME.slice\""),
        );
        return None;
    }
    Some(if ends_in(&WITH_PROCESSES) {
        name.value.to_owned()
    } else {
        format!("{}.service", name.value)
    })
}

fn service(reader: &mut TableReader, key: &'static str, tree: &Tree) -> Option<Id> {
    let name = reader.string(key)?;
    find(tree, &name, reader.problems)
}

fn folder(reader: &mut TableReader, path: &At<&str>) -> Option<Folder> {
    let folder = Folder::new(path.value);
    if folder.is_none() {
        let text = match path.value.matches('/').count() > MAX_PATH_PARTS {
            true => format!("{:?} has more than {MAX_PATH_PARTS} parts", path.value),
            false => {
                format!(
                    "{:?} is not an absolute path below '/', or it has a '.' or '..' part",
                    path.value
                )
            }
        };
        reader.problem(Problem::new(path.span.clone(), text));
    }
    folder
}

/// Resolves the symbolic links of a path.
fn resolve_path(reader: &mut TableReader, path: &At<&str>, host: &dyn Host) -> Option<Folder> {
    let real = host.real_path(folder(reader, path)?.as_str());
    let folder = Folder::new(&real);
    if folder.is_none() {
        let text = format!("{:?} leads to {real:?}, which a rule cannot match", path.value);
        reader.problem(Problem::new(path.span.clone(), text));
    }
    folder
}

/// The maximum length of the path of a socket: `sun_path` has 108 bytes, the last of which is a
/// NUL.
const MAX_SOCKET_PATH_LEN: usize = 107;

fn listen(reader: &mut TableReader, text: &At<&str>) -> Option<Listen> {
    let found = socket(text.value);
    let any = |listen: &Listen| listen.address.is_some_and(|address| address.is_unspecified());
    let help = match &found {
        Some(listen) if !any(listen) => return found,
        Some(Listen { port: Some(port), .. }) => {
            format!("no connection has this address: write \":{port}\" to match any address")
        }
        None if is_ambiguous(text.value) => {
            let (address, port) = text.value.rsplit_once(':').expect("it was looked for");
            format!(
                "write \"[{address}]:{port}\" for a port, \"[{address}:{port}]\" for an address \
                without one"
            )
        }
        _ => "write \"127.0.0.1:80\", \"[::1]:80\", \":80\", \"127.0.0.1\", \"/run/a.sock\" or \
            \"@name\""
            .into(),
    };
    let problem = Problem::new(
        text.span.clone(),
        format!("{:?} is not the address of a connection", text.value),
    );
    reader.problem(problem.help(help));
    None
}

/// Parses one end of a connection as rules and commands write it.
pub fn socket(text: &str) -> Option<Listen> {
    let unspecified = Listen::default();
    if text.starts_with(['/', '@']) {
        let is_name = text.starts_with('@') && text != "@";
        let is_path = text.len() <= MAX_SOCKET_PATH_LEN && (is_name || Folder::new(text).is_some());
        return is_path.then(|| Listen { path: Some(text.into()), ..unspecified });
    }
    let port = |text: &str| {
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|port| is_number && *port != 0)
    };
    if let Some(text) = text.strip_prefix(':').filter(|text| !text.contains(':')) {
        return Some(Listen { port: Some(port(text)?), ..unspecified });
    }
    if let Ok(both) = text.parse::<SocketAddr>() {
        let address = Some(both.ip().to_canonical());
        return (both.port() != 0).then(|| Listen {
            address,
            port: Some(both.port()),
            ..unspecified
        });
    }
    let address = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    let address = match address {
        Some(text) => IpAddr::V6(text.parse().ok()?),
        None if is_ambiguous(text) => return None,
        None => text.parse().ok()?,
    };
    Some(Listen { address: Some(address.to_canonical()), ..unspecified })
}

/// Whether the text of an IPv6 address could also be a shorter address with a port.
fn is_ambiguous(text: &str) -> bool {
    let is_decimal = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    text.rsplit_once(':').is_some_and(|(address, port)| {
        is_decimal(port) && address.parse::<Ipv6Addr>().is_ok() && text.parse::<Ipv6Addr>().is_ok()
    })
}

fn network(reader: &mut TableReader, text: &At<&str>) -> Option<IpNet> {
    let found = text
        .value
        .parse::<IpNet>()
        .ok()
        .or_else(|| text.value.parse::<IpAddr>().ok().map(IpNet::from));
    let Some(network) = found.map(canonical) else {
        let problem = Problem::new(
            text.span.clone(),
            format!("{:?} is not an address or a network", text.value),
        );
        reader.problem(problem.help("write \"192.0.2.7\", \"10.0.0.0/8\" or \"2001:db8::/32\""));
        return None;
    };
    if network != network.trunc() {
        let message =
            format!("{network} has bits set beyond its prefix of {} bits", network.prefix_len());
        let problem = Problem::new(text.span.clone(), message);
        reader.problem(problem.help(format!("did you mean \"{}\"?", network.trunc())));
        return None;
    }
    Some(network)
}

/// Converts an IPv4-mapped IPv6 network to IPv4, the form in which connections are recorded.
fn canonical(network: IpNet) -> IpNet {
    match (network.addr().to_canonical(), network.prefix_len().checked_sub(96)) {
        (IpAddr::V4(address), Some(bits)) if network.addr().is_ipv6() => {
            Ipv4Net::new(address, bits).map_or(network, IpNet::from)
        }
        _ => network,
    }
}

fn action(reader: &mut TableReader, tree: &Tree) -> Option<RuleAction> {
    let problems_before = reader.problems.len();
    let belongs = service(reader, "belongs-to", tree).map(RuleAction::BelongsTo);
    let inherits = reader.flag("inherits").map(|_| RuleAction::Inherits);
    let adopts = reader.flag("adopts-peer").map(|_| RuleAction::AdoptsPeer);
    let dynamic_service = dynamic_service(reader, tree);
    let mut all = [belongs, inherits, adopts, dynamic_service].into_iter().flatten();
    let (first, second) = (all.next(), all.next());
    if reader.problems.len() == problems_before && (first.is_none() || second.is_some()) {
        let what = if first.is_none() { "has no action" } else { "has more than one action" };
        reader.problem(Problem::new(
            reader.span.clone(),
            format!("this rule {what}: it needs exactly one of {ACTIONS}"),
        ));
        return None;
    }
    first
}

fn dynamic_service(reader: &mut TableReader, tree: &Tree) -> Option<RuleAction> {
    let below = reader.string("starts-below");
    let each = reader.string("each");
    let (below, each) = match (below, each) {
        (None, None) => return None,
        (Some(below), Some(each)) => (below, each),
        (Some(at), None) | (None, Some(at)) => {
            let names = SplitBy::ALL.map(SplitBy::name).join(", ");
            let text = format!(
                "starts-below and each must be given together: starts-below = \"SERVICE\", and \
                each = one of {names}"
            );
            reader.problem(Problem::new(at.span, text));
            return None;
        }
    };
    let found = SplitBy::ALL.into_iter().find(|one| one.name() == each.value);
    if found.is_none() {
        let problem =
            Problem::new(each.span, format!("the value of each cannot be {:?}", each.value));
        let problem = one_of(problem, each.value, SplitBy::ALL.map(SplitBy::name), reader);
        reader.problem(problem);
    }
    let parent = find(tree, &below, reader.problems)?;
    if parent == Id::SHARED || tree.ancestors(parent).count() > MAX_ANCESTORS {
        let text = format!("no service can be started below {:?}", below.value);
        reader.problem(Problem::new(below.span, text));
        return None;
    }
    Some(RuleAction::StartsDynamic { parent, split: found? })
}

/// Adds a suggestion or the list of known names to a problem.
fn one_of<const N: usize>(
    problem: Problem,
    name: &str,
    known: [&'static str; N],
    reader: &TableReader,
) -> Problem {
    problem.suggest(name, known, reader.problems, || {
        Some(format!("known names: {}", known.join(", ")))
    })
}

fn events(reader: &mut TableReader) -> Option<Vec<RuleEvent>> {
    let mut events = Vec::new();
    for name in reader.strings("on")? {
        let Some(event) = RuleEvent::ALL.into_iter().find(|event| event.name() == name.value)
        else {
            let problem = Problem::new(name.span, format!("unknown event {:?}", name.value));
            let problem = one_of(problem, name.value, RuleEvent::ALL.map(RuleEvent::name), reader);
            reader.problem(problem);
            continue;
        };
        if events.contains(&event) {
            reader.problem(Problem::new(name.span, format!("{:?} is listed twice", name.value)));
        }
        events.push(event);
    }
    Some(events)
}

/// The events at which the conditions can be known. Fork is left out, because a child works for its
/// parent's service.
fn default_events(conditions: &Conditions, action: RuleAction) -> Vec<RuleEvent> {
    let shape = conditions.shape();
    if shape.needs_connection() || needs_peer(action) {
        vec![RuleEvent::Receive]
    } else if shape.needs_file() {
        vec![RuleEvent::Open]
    } else {
        vec![RuleEvent::Exec, RuleEvent::Found, RuleEvent::User]
    }
}

/// Whether the action depends on the other end of the connection.
fn needs_peer(action: RuleAction) -> bool {
    matches!(
        action,
        RuleAction::AdoptsPeer | RuleAction::StartsDynamic { split: SplitBy::Client, .. }
    )
}

/// The problem of a rule that can never match or makes no sense.
fn validation_error(rule: &Rule) -> Option<Problem> {
    let (conditions, shape) = (&rule.conditions, rule.conditions.shape());
    let only = |event| rule.events.iter().all(|other| *other == event);
    let is_of_peers = needs_peer(rule.action);
    let adopts = rule.action == RuleAction::AdoptsPeer;
    let has_peers = |event: &RuleEvent| matches!(event, RuleEvent::Receive | RuleEvent::Fork);
    let listens_at_path = conditions.listen.path.is_some();
    let text = if shape.count == 0
        && matches!(rule.action, RuleAction::BelongsTo(_) | RuleAction::Inherits)
    {
        "this rule has no condition, so it would match every thread of the machine"
    } else if rule.events.is_empty() {
        "this rule applies at no event, as `on` is empty"
    } else if (shape.needs_connection() || is_of_peers) && shape.needs_file() {
        "no event has both a file and a connection: split this rule in two"
    } else if shape.needs_connection() && !only(RuleEvent::Receive) {
        "listen, client and peer are known only on \"receive\""
    } else if shape.needs_file() && !only(RuleEvent::Open) {
        "file is known only on \"open\""
    } else if adopts && !rule.events.iter().all(has_peers) {
        "adopts-peer needs a peer, which is known only on \"receive\" and \"fork\""
    } else if is_of_peers && !adopts && !only(RuleEvent::Receive) {
        "the client is known only on \"receive\""
    } else if listens_at_path
        && (conditions.client.is_some() || rule.action != RuleAction::AdoptsPeer && is_of_peers)
    {
        "the clients of a Unix socket have no address"
    } else if conditions
        .listen
        .address
        .zip(conditions.client)
        .is_some_and(|(own, client)| own.is_ipv4() != client.addr().is_ipv4())
    {
        "listen and client must both be IPv4 or both be IPv6"
    } else {
        return None;
    };
    Some(Problem::new(rule.span.clone(), text))
}

/// Checks rules against each other; `rules` are in the order of their precedence.
pub fn check(rules: &[Rule], tree: &Tree, problems: &mut Problems) {
    equal_rules(rules, problems);
    check_rule_cycles(rules, tree, problems);
}

/// Finds rules without a defined order.
fn equal_rules(rules: &[Rule], problems: &mut Problems) {
    let mut known: HashMap<(RuleEvent, i32, &Conditions), &Rule> = HashMap::new();
    for rule in rules {
        let duplicate = rule.events.iter().find_map(|event| {
            let first = *known.entry((*event, rule.priority, &rule.conditions)).or_insert(rule);
            (first.span != rule.span).then_some((event, first))
        });
        if let Some((event, first)) = duplicate {
            let text = format!(
                "on \"{}\" the order of this rule and another one is undefined: they have the \
                same conditions and the same priority",
                event.name()
            );
            problems.push(
                Problem::new(rule.span.clone(), text).other(first.span.clone(), "the other rule"),
            );
        }
    }
}

/// The service that a rule assigns. A thread of a dynamic service matches rules as a thread of the
/// parent service. Therefore a rule that starts dynamic services below a service, and has the
/// same service as its condition, does not lead to another service.
fn resulting_service(rule: &Rule) -> Option<Id> {
    match rule.action {
        RuleAction::BelongsTo(to) => Some(to),
        RuleAction::StartsDynamic { parent, .. } => {
            Some(parent).filter(|parent| rule.conditions.service != Some(*parent))
        }
        RuleAction::Inherits | RuleAction::AdoptsPeer => None,
    }
}

/// For each service, the service that a rule assigns next, and the rule.
type RuleEdges<'a> = HashMap<Id, (Id, &'a Rule)>;

/// Finds cycles of rules: rules whose conditions differ only in the service, and that would give a
/// thread another service at every exec, fork or change of user.
fn check_rule_cycles(rules: &[Rule], tree: &Tree, problems: &mut Problems) {
    let mut all: HashMap<(RuleEvent, Conditions), RuleEdges> = HashMap::new();
    for rule in rules {
        let (Some(from), Some(to)) = (rule.conditions.service, resulting_service(rule)) else {
            continue;
        };
        for event in rule.events.iter().filter(|event| event.is_identity_event()) {
            let others = Conditions { service: None, ..rule.conditions.clone() };
            // If several rules lead from a service, the first one takes precedence.
            all.entry((*event, others)).or_default().entry(from).or_insert((to, rule));
        }
    }
    let mut reported: Vec<usize> = Vec::new();
    for steps in all.values() {
        for cycle in find_cycles(steps) {
            // Report a cycle once, not for each of its events.
            let rules = || cycle.iter().map(|id| steps[id].1);
            let rule = rules().max_by_key(|rule| rule.span.start).expect("it has a step");
            let other =
                rules().min_by_key(|rule| rule.span.start).filter(|other| other.span != rule.span);
            if !reported.contains(&rule.span.start) {
                reported.push(rule.span.start);
                let names: Vec<_> =
                    cycle.iter().chain(&cycle[..1]).take(8).map(|id| tree.name(*id)).collect();
                let text = format!(
                    "these rules form a cycle: a thread would go from {}",
                    names.join(" to ")
                );
                let problem = Problem::new(rule.span.clone(), text);
                problems.push(match other {
                    Some(other) => problem.other(other.span.clone(), "together with this rule"),
                    None => problem,
                });
            }
        }
    }
}

/// Finds the cycles. Each cycle begins with the service that has the lowest number. The search
/// visits every service once.
fn find_cycles(steps: &RuleEdges) -> Vec<Vec<Id>> {
    let mut cycles = Vec::new();
    let mut seen: HashMap<Id, Id> = HashMap::new();
    let mut starts: Vec<_> = steps.keys().copied().collect();
    starts.sort_unstable();
    for start in starts {
        let mut path = Vec::new();
        let mut current = start;
        while !seen.contains_key(&current) && steps.contains_key(&current) {
            seen.insert(current, start);
            path.push(current);
            current = steps[&current].0;
        }
        if seen.get(&current) == Some(&start)
            && let Some(begin) = path.iter().position(|id| *id == current)
        {
            let mut cycle = path.split_off(begin);
            let first = (0..cycle.len()).min_by_key(|index| cycle[*index]).expect("it has a step");
            cycle.rotate_left(first);
            cycles.push(cycle);
        }
    }
    cycles
}
