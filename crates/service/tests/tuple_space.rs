//! Tuple space search finds the same rule as matching the ruleset rule by rule.

use std::net::{IpAddr, SocketAddr};

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use service::{
    Conditions, Folder, Id, Listen, LocalEnd, Rule, RuleAction, RuleEvent, RuleQuery, Ruleset,
    TupleSpace,
};

const PATHS: [&str; 5] = ["/a", "/a/b", "/a/b/c", "/a/d", "/e"];
const ADDRESSES: [&str; 4] = ["10.0.0.1", "10.0.0.2", "10.1.0.1", "::1"];
const NETWORKS: [&str; 5] = ["10.0.0.0/8", "10.0.0.0/24", "10.0.0.1/32", "::1/128", "0.0.0.0/0"];
const USERS: [u32; 2] = [0, 33];
const PORTS: [u16; 2] = [80, 81];

fn id() -> impl Strategy<Value = Id> {
    (0_u16..3).prop_map(Id)
}

fn address() -> impl Strategy<Value = IpAddr> {
    select(&ADDRESSES[..]).prop_map(|text| text.parse().expect("an address"))
}

fn folder() -> impl Strategy<Value = Folder> {
    select(&PATHS[..]).prop_map(|path| Folder::new(path).expect("a path"))
}

fn conditions() -> impl Strategy<Value = Conditions> {
    let listen = (option::weighted(0.2, address()), option::weighted(0.2, select(&PORTS[..])))
        .prop_map(|(address, port)| Listen { address, port, path: None });
    let thread = (
        option::weighted(0.3, select(&PATHS[..])),
        option::weighted(0.3, select(&USERS[..])),
        option::weighted(0.3, folder()),
        option::weighted(0.3, id()),
    );
    let client = select(&NETWORKS[..]).prop_map(|text| text.parse().expect("a network"));
    (
        thread,
        listen,
        option::weighted(0.3, client),
        option::weighted(0.3, id()),
        option::weighted(0.3, folder()),
    )
        .prop_map(|((exe, user, cgroup, service), listen, client, peer, file)| Conditions {
            exe: exe.map(str::to_owned),
            user,
            unit: None,
            cgroup,
            service,
            listen,
            client,
            peer,
            file,
        })
}

fn rule() -> impl Strategy<Value = Rule> {
    (conditions(), -1..2, vec(select(&RuleEvent::ALL[..]), 1..3), any::<bool>()).prop_map(
        |(conditions, priority, events, has_explicit_events)| Rule {
            name: None,
            span: 0..0,
            priority,
            events,
            has_explicit_events,
            conditions,
            action: RuleAction::Inherits,
        },
    )
}

fn any_query() -> impl Strategy<Value = RuleQuery<'static>> {
    let thread = (select(&PATHS[..]), select(&USERS[..]), select(&PATHS[..]), id(), any::<bool>());
    let connection =
        (option::of((address(), select(&PORTS[..]))), option::of(address()), option::of(id()));
    (select(&RuleEvent::ALL[..]), thread, connection, option::of(select(&PATHS[..]))).prop_map(
        |(event, (exe, user, cgroup, service, on_behalf), (listen, client, peer), file)| {
            RuleQuery {
                event,
                on_behalf,
                exe,
                user,
                unit: None,
                cgroup,
                service,
                listen: listen
                    .map(|(address, port)| LocalEnd::Internet(SocketAddr::new(address, port))),
                client,
                peer,
                file,
            }
        },
    )
}

proptest! {
    #[test]
    fn tuple_space_matches_the_ruleset(
        rules in vec(rule(), 0..12),
        all in vec(any_query(), 1..40),
    ) {
        let ruleset = Ruleset::new(rules);
        let tables = TupleSpace::new(&ruleset).expect("few rules");
        for query in all {
            prop_assert_eq!(tables.match_rule(&query), ruleset.match_rule(&query), "{:?}", query);
        }
    }
}

fn thread() -> RuleQuery<'static> {
    RuleQuery {
        event: RuleEvent::Exec,
        on_behalf: false,
        exe: "/a",
        user: 33,
        unit: None,
        cgroup: "/a/b",
        service: Id::ROOT,
        listen: None,
        client: None,
        peer: None,
        file: None,
    }
}

fn on_exec(conditions: Conditions, has_explicit_events: bool) -> Rule {
    let action = RuleAction::BelongsTo(Id::SHARED);
    Rule {
        name: None,
        span: 0..0,
        priority: 0,
        events: vec![RuleEvent::Exec],
        has_explicit_events,
        conditions,
        action,
    }
}

#[test]
fn on_behalf_skips_identity_rules() {
    let conditions = Conditions { user: Some(33), ..Conditions::default() };
    let is_matched = |has_explicit_events, on_behalf| {
        let ruleset = Ruleset::new(vec![on_exec(conditions.clone(), has_explicit_events)]);
        let tables = TupleSpace::new(&ruleset).expect("one tuple");
        tables.match_rule(&RuleQuery { on_behalf, ..thread() }).is_some()
    };
    assert_eq!(
        [is_matched(false, false), is_matched(false, true), is_matched(true, true)],
        [true, false, true]
    );
}

#[test]
fn the_more_specific_rule_decides() {
    let user = Conditions { user: Some(33), ..Conditions::default() };
    let both = Conditions { exe: Some("/a".into()), ..user.clone() };
    let ruleset = Ruleset::new(vec![on_exec(user.clone(), false), on_exec(both.clone(), false)]);
    let tables = TupleSpace::new(&ruleset).expect("two tuples");
    let decides = |query: &RuleQuery| {
        tables.match_rule(query).map(|precedence| ruleset.rules()[precedence].conditions.clone())
    };
    assert_eq!(decides(&thread()), Some(both));
    assert_eq!(decides(&RuleQuery { exe: "/e", ..thread() }), Some(user));
    assert_eq!(decides(&RuleQuery { user: 0, ..thread() }), None);
}
