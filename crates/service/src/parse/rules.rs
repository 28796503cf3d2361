//! The rules of a file: `[[rule]]`.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use toml::de::DeTable;

use super::reader::{At, Reader, did_you_mean};
use super::services::find;
use super::{Host, MOST_RULES, Problem, Problems};
use crate::conditions::{Conditions, Folder, Listen};
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
    let priority = reader.integer("priority").map_or(0, |priority| priority.value);
    let when = conditions(&mut reader, tree, host);
    let then = directive(&mut reader, tree);
    let named = events(&mut reader);
    reader.finish();
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
    let exe = absolute(reader, "exe").map(|path| host.real_path(path.value));
    let user = reader.string("user").and_then(|name| {
        let found = name.value.parse().ok().or_else(|| host.user(name.value));
        if found.is_none() {
            reader.problem(Problem::new(name.span, format!("this machine has no user {:?}", name.value)));
        }
        found
    });
    let unit = reader.string("unit").map(|unit| match unit.value.contains('.') {
        true => unit.value.to_owned(),
        // As systemctl does.
        false => format!("{}.service", unit.value),
    });
    Conditions {
        exe,
        user,
        unit,
        cgroup: folder(reader, "cgroup"),
        service: service(reader, "service", tree),
        listen: reader.string("listen").and_then(|text| listen(reader, &text)).unwrap_or_default(),
        client: reader.string("client").and_then(|text| network(reader, &text)),
        peer: service(reader, "peer", tree),
        file: folder(reader, "file").and_then(|folder| Folder::new(&host.real_path(folder.as_str()))),
    }
}

fn service(reader: &mut Reader, key: &'static str, tree: &Tree) -> Option<Id> {
    let name = reader.string(key)?;
    find(tree, &name, reader.problems)
}

fn absolute<'text>(reader: &mut Reader<'text, '_>, key: &'static str) -> Option<At<&'text str>> {
    let path = reader.string(key)?;
    if Folder::new(path.value).is_none() || path.value.ends_with('/') {
        let text = format!("{key} is to be an absolute path without '.', '..' or a '/' at its end");
        reader.problem(Problem::new(path.span, text));
        return None;
    }
    Some(path)
}

fn folder(reader: &mut Reader, key: &'static str) -> Option<Folder> {
    let path = reader.string(key)?;
    let folder = Folder::new(path.value).filter(|folder| folder.depth() <= 255);
    if folder.is_none() {
        let text =
            format!("{key} is to be an absolute path below '/', without '.' or '..', of at most 255 parts");
        reader.problem(Problem::new(path.span, text));
    }
    folder
}

fn listen(reader: &mut Reader, text: &At<&str>) -> Option<Listen> {
    let nowhere = Listen::default();
    let found = match text.value {
        path if path.starts_with(['/', '@']) => Some(Listen { path: Some(path.into()), ..nowhere }),
        text => text
            .parse::<SocketAddr>()
            .map(|both| Listen {
                address: Some(both.ip().to_canonical()),
                port: Some(both.port()),
                path: None,
            })
            .or_else(|_| {
                text.parse::<IpAddr>()
                    .map(|address| Listen { address: Some(address.to_canonical()), ..Listen::default() })
            })
            .ok()
            .or_else(|| Some(Listen { port: Some(text.strip_prefix(':')?.parse().ok()?), ..nowhere })),
    };
    let found = found.filter(|listen| listen.port != Some(0));
    if found.is_none() {
        let help =
            "write \"127.0.0.1:80\", \"[::1]:80\", \":80\", \"127.0.0.1\", \"/run/a.sock\" or \"@name\"";
        reader.problem(
            Problem::new(text.span.clone(), format!("{:?} is no address or path to listen on", text.value))
                .help(help),
        );
    }
    found
}

fn network(reader: &mut Reader, text: &At<&str>) -> Option<IpNet> {
    let found =
        text.value.parse::<IpNet>().ok().or_else(|| text.value.parse::<IpAddr>().ok().map(IpNet::from));
    match found {
        Some(network) if network.addr() == network.trunc().addr() => found,
        Some(network) => {
            let text_of_it = format!("{network} has bits behind its {}", network.prefix_len());
            let problem = Problem::new(text.span.clone(), text_of_it);
            reader.problem(problem.help(format!("did you mean \"{}\"?", network.trunc())));
            None
        }
        None => {
            let problem =
                Problem::new(text.span.clone(), format!("{:?} is no address or network", text.value));
            reader.problem(problem.help("write \"192.0.2.7\", \"10.0.0.0/8\" or \"2001:db8::/32\""));
            None
        }
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
        let names = Each::ALL.map(Each::name);
        let problem = Problem::new(each.span, format!("no service can be started for each {:?}", each.value));
        reader.problem(problem.help(format!("there are: {}", names.join(", "))));
    }
    let below = find(tree, &below, reader.problems);
    Some(Directive::Starts { below: below?, each: found? })
}

fn events(reader: &mut Reader) -> Option<Vec<Event>> {
    let mut events = Vec::new();
    for name in reader.strings("on")? {
        let Some(event) = Event::ALL.into_iter().find(|event| event.name() == name.value) else {
            let names = Event::ALL.map(Event::name);
            let help =
                did_you_mean(name.value, names).unwrap_or_else(|| format!("there are: {}", names.join(", ")));
            reader.problem(Problem::new(name.span, format!("there is no event {:?}", name.value)).help(help));
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
    if shape.is_of_connections() || then == Directive::AdoptsPeer {
        vec![Event::Receive]
    } else if shape.is_of_files() {
        vec![Event::Open]
    } else {
        vec![Event::Exec, Event::Found, Event::User]
    }
}

/// What cannot be meant.
fn fault(rule: &Rule) -> Option<Problem> {
    let shape = rule.when.shape();
    let only = |event| rule.events.iter().all(|other| *other == event);
    let text = if shape.count == 0 && rule.then != Directive::AdoptsPeer {
        "this rule has no condition: it would be for every thread of the machine, which belong to root anyway"
    } else if rule.events.is_empty() {
        "this rule is asked on no event"
    } else if shape.is_of_connections() && shape.is_of_files() {
        "no event has both a file and a connection: make two rules of it"
    } else if shape.is_of_connections() && !only(Event::Receive) {
        "listen, client and peer are known on \"receive\" only"
    } else if shape.is_of_files() && !only(Event::Open) {
        "file is known on \"open\" only"
    } else if rule.then == Directive::AdoptsPeer && !only(Event::Receive) {
        "a peer can be adopted on \"receive\" only"
    } else if matches!(rule.then, Directive::Starts { each: Each::Client, .. }) && !only(Event::Receive) {
        "a service for each client can be started on \"receive\" only"
    } else if matches!(rule.then, Directive::BelongsTo(id) if rule.when.service == Some(id)) {
        "who belongs to it already is to belong to it: write inherits = true"
    } else {
        return None;
    };
    Some(Problem::new(rule.span.clone(), text))
}

/// What cannot be meant of several rules together.
pub fn check(rules: &[Rule], tree: &Tree, problems: &mut Problems) {
    twins(rules, problems);
    cycles(rules, tree, problems);
}

/// Rules of which none decides before the other.
fn twins(rules: &[Rule], problems: &mut Problems) {
    let mut known: HashMap<(Event, i32, &Conditions), &Rule> = HashMap::new();
    let mut told = HashSet::new();
    for rule in rules {
        for event in &rule.events {
            let first = known.entry((*event, rule.priority, &rule.when)).or_insert(rule);
            if first.span != rule.span && told.insert(rule.span.start) {
                let text =
                    "this rule asks for the same as another of the same priority, and would never decide";
                problems.push(Problem::new(rule.span.clone(), text).other(first.span.clone(), "the other"));
            }
        }
    }
}

/// From a service to the next one, and by which rule.
type Steps<'a> = HashMap<Id, (Id, &'a Rule)>;

/// Rules by which a thread would have another service after each exec, fork or change of user.
fn cycles(rules: &[Rule], tree: &Tree, problems: &mut Problems) {
    let mut steps: HashMap<(Event, Conditions), Steps> = HashMap::new();
    for rule in rules {
        let (Some(from), Directive::BelongsTo(to)) = (rule.when.service, rule.then) else { continue };
        for event in rule.events.iter().filter(|event| event.is_of_identity()) {
            let others = Conditions { service: None, ..rule.when.clone() };
            steps.entry((*event, others)).or_default().insert(from, (to, rule));
        }
    }
    for way in steps.values() {
        for start in way.keys() {
            let mut path = vec![*start];
            while let Some((next, rule)) = way.get(path.last().expect("it has a start")) {
                // Each cycle is told where it is entered at its first service.
                if next == start && path.iter().min() == Some(start) {
                    let names: Vec<_> = path.iter().chain([start]).map(|id| tree.name(*id)).collect();
                    let text =
                        format!("these rules are a cycle: a thread would go from {}", names.join(" to "));
                    let problem = Problem::new(rule.span.clone(), text);
                    // On each of their events.
                    if !problems.contains(&problem) {
                        problems.push(problem);
                    }
                }
                if path.contains(next) {
                    break;
                }
                path.push(*next);
            }
        }
    }
}
