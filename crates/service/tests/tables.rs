//! The tables decide as the book of rules does, which is asked rule by rule.

use std::net::{IpAddr, SocketAddr};

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use service::{Book, Conditions, Directive, Event, Facts, Folder, Id, Listen, Local, Rule, Tables};

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
    (conditions(), -1..2, vec(select(&Event::ALL[..]), 1..3), any::<bool>()).prop_map(
        |(when, priority, events, names_events)| Rule {
            name: None,
            span: 0..0,
            priority,
            events,
            names_events,
            when,
            then: Directive::Inherits,
        },
    )
}

fn facts() -> impl Strategy<Value = Facts<'static>> {
    let thread = (select(&PATHS[..]), select(&USERS[..]), select(&PATHS[..]), id(), any::<bool>());
    let connection = (option::of((address(), select(&PORTS[..]))), option::of(address()), option::of(id()));
    (select(&Event::ALL[..]), thread, connection, option::of(select(&PATHS[..]))).prop_map(
        |(event, (exe, user, cgroup, service, borrowed), (listen, client, peer), file)| Facts {
            event,
            borrowed,
            exe,
            user,
            unit: None,
            cgroup,
            service,
            listen: listen.map(|(address, port)| Local::Internet(SocketAddr::new(address, port))),
            client,
            peer,
            file,
        },
    )
}

proptest! {
    #[test]
    fn tables_decide_as_the_book(rules in vec(rule(), 0..12), all in vec(facts(), 1..40)) {
        let book = Book::new(rules);
        let tables = Tables::new(&book).expect("fewer rules than sets");
        for facts in all {
            prop_assert_eq!(tables.decide(&facts), book.decide(&facts), "{:?}", facts);
        }
    }
}

fn thread() -> Facts<'static> {
    Facts {
        event: Event::Exec,
        borrowed: false,
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

fn on_exec(when: Conditions, names_events: bool) -> Rule {
    let then = Directive::BelongsTo(Id::SHARED);
    Rule { name: None, span: 0..0, priority: 0, events: vec![Event::Exec], names_events, when, then }
}

#[test]
fn who_works_for_somebody_else_is_left_alone() {
    let when = Conditions { user: Some(33), ..Conditions::default() };
    let asked = |names_events, borrowed| {
        let book = Book::new(vec![on_exec(when.clone(), names_events)]);
        let tables = Tables::new(&book).expect("one set");
        tables.decide(&Facts { borrowed, ..thread() }).is_some()
    };
    assert_eq!([asked(false, false), asked(false, true), asked(true, true)], [true, false, true]);
}

#[test]
fn the_more_specific_rule_decides() {
    let user = Conditions { user: Some(33), ..Conditions::default() };
    let both = Conditions { exe: Some("/a".into()), ..user.clone() };
    let book = Book::new(vec![on_exec(user.clone(), false), on_exec(both.clone(), false)]);
    let tables = Tables::new(&book).expect("two sets");
    let decides = |facts: &Facts| tables.decide(facts).map(|place| book.rules()[place].when.clone());
    assert_eq!(decides(&thread()), Some(both));
    assert_eq!(decides(&Facts { exe: "/e", ..thread() }), Some(user));
    assert_eq!(decides(&Facts { user: 0, ..thread() }), None);
}
