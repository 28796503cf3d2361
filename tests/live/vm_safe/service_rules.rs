//! Whatever rules there are, the kernel side decides as the reference in `crates/service` does, which looks at one rule after
//! the other.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use service::{Directive, Event, Facts, Host, Id, Local, RuleFile, parse};

use crate::harness::services::{Backend, InForce, begin, over, programs};

const CASES: u32 = 15;
/// Who asks: each has a service of its name, but the last one, which is root's.
const CLIENTS: [&str; 3] = ["shop", "blog", "other"];
/// Where a new server of each program listens.
const SERVERS: [(&str, &str); 2] = [("first", "0"), ("second", "socket")];
const BASE: &str = r#"
[service.shop]
[service.blog]
[service.inner]
parent = "shop"

[[rule]]
exe = "FOLDER/shop"
belongs-to = "shop"

[[rule]]
exe = "FOLDER/blog"
belongs-to = "blog"
"#;

/// All names in the rules are numbers or real paths.
struct Plain;

impl Host for Plain {
    fn user(&self, _: &str) -> Option<u32> {
        None
    }

    fn real_path(&self, path: &str) -> String {
        path.into()
    }
}

/// A rule on nobody but the test's own servers.
fn rule() -> impl Strategy<Value = String> {
    let of = |key: &'static str, values: &'static [&'static str]| prop_oneof![2 => Just(String::new()), 1 => select(values).prop_map(move |value| format!("{key} = \"{value}\"\n"))];
    let services = &["root", "shop", "blog", "inner"];
    let thread = (
        select(&["exe = \"FOLDER/first\"\n", "exe = \"FOLDER/second\"\n"][..]),
        of("user", &["0", "65534"]),
        of("service", services),
        select(&["", "priority = 1\n", "priority = -1\n"][..]),
    );
    let connection = (
        of("listen", &[":PORT", "127.0.0.1:PORT", "127.0.0.1", "127.0.0.2", "FOLDER/socket", "FOLDER/other"]),
        of("client", &["127.0.0.1", "127.0.0.0/8", "10.0.0.0/8", "0.0.0.0/0", "::/0"]),
        of("peer", services),
    );
    let belongs = select(&services[..]).prop_map(|service| format!("belongs-to = \"{service}\"\n"));
    let receives = (
        thread.clone(),
        connection,
        prop_oneof![
            3 => belongs.clone(),
            1 => Just("inherits = true\n".into()),
            1 => Just("adopts-peer = true\n".into()),
        ],
    )
        .prop_map(|((exe, user, service, priority), (listen, client, peer), then)| {
            format!("{exe}{user}{service}{priority}{listen}{client}{peer}{then}on = \"receive\"\n")
        });
    let begins = (thread, belongs).prop_map(|((exe, user, service, priority), then)| {
        format!("{exe}{user}{service}{priority}{then}on = \"exec\"\n")
    });
    prop_oneof![4 => receives, 1 => begins]
}

struct Server {
    program: String,
    backend: Backend,
    is_adopted: bool,
    service: Id,
}

impl Server {
    fn is_at(&mut self, event: Event, peer: Option<Id>, rules: &RuleFile) {
        let port = self.backend.place.parse().ok();
        let address = port.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let local = address.map_or(Local::Unix(&self.backend.place), Local::Internet);
        let facts = Facts {
            event,
            borrowed: self.is_adopted,
            exe: &self.program,
            user: 0,
            unit: None,
            cgroup: "/",
            service: self.service,
            listen: peer.map(|_| local),
            client: peer.and(address).map(|_| IpAddr::V4(Ipv4Addr::LOCALHOST)),
            peer,
            file: None,
        };
        match rules.book.decide(&facts).map(|place| rules.book.rules()[place].then) {
            Some(Directive::BelongsTo(service)) => self.service = service,
            Some(Directive::AdoptsPeer) => self.service = peer.expect("only on messages"),
            Some(Directive::Inherits) | None => {}
            Some(other) => panic!("{other:?} was not asked for"),
        }
        self.is_adopted |= event == Event::Receive;
    }
}

/// Both servers are started anew, and asked by these one after the other. How often a rule decided.
fn decide_the_same(
    services: &InForce,
    generated: &[String],
    asked: &[(usize, usize)],
) -> Result<(), TestCaseError> {
    let folder = services.folder.path();
    let text = |port: &str| {
        let rules = generated.iter().fold(BASE.to_owned(), |mut text, rule| {
            let _ = write!(text, "\n[[rule]]\n{rule}");
            text
        });
        rules.replace("PORT", port)
    };
    let read = |text: &str| parse(&text.replace("FOLDER", folder.to_str().expect("text")), &Plain);
    // Two with the same conditions, or a cycle, say.
    prop_assume!(read(&text("1")).is_ok());
    // What the servers begin as does not depend on the port, which is known only afterwards.
    services.apply(&text("1"));
    let mut servers = Vec::new();
    for (name, place) in SERVERS {
        let _ = std::fs::remove_file(folder.join(place));
        let backend = Backend::start(folder, name, place, "");
        let program = folder.join(name).display().to_string();
        servers.push(Server { program, backend, is_adopted: false, service: Id::ROOT });
    }
    let text = text(&servers[0].backend.place);
    let rules = read(&text).expect("it could be read before");
    services.apply(&text);
    for server in &mut servers {
        server.is_at(Event::Exec, None, &rules);
    }
    for (server, client) in asked {
        let (server, client) = (&mut servers[*server], CLIENTS[*client]);
        over(begin(server.backend.tenant(folder, client, "a 0 1")));
        server.is_at(Event::Receive, Some(rules.tree.find(client).unwrap_or(Id::ROOT)), &rules);
        let (said, pid) = (rules.tree.name(server.service), server.backend.running.pid());
        prop_assert_eq!(services.service_of(pid), said, "{}, asked by {}:\n{}", server.program, client, text);
    }
    for server in servers {
        server.backend.end(folder, "other");
    }
    Ok(())
}

#[test]
fn the_kernel_decides_as_the_reference_does() {
    let services = InForce::start(programs(&["shop", "blog", "other", "first", "second"]), BASE);
    let config =
        ProptestConfig { cases: CASES, max_shrink_iters: 0, failure_persistence: None, ..Default::default() };
    proptest!(config, |(rules in vec(rule(), 1..8), asked in vec((0..SERVERS.len(), 0..CLIENTS.len()), 6..10))| {
        decide_the_same(&services, &rules, &asked)?;
    });
}
