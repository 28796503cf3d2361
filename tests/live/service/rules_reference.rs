//! For generated rules, the kernel side decides as the reference in `crates/service`, which checks
//! one rule after the other.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use service::{Host, Id, LocalEnd, RuleAction, RuleEvent, RuleFile, RuleQuery, parse};

use crate::harness::services::{ActiveServices, Backend, begin, finish_tenant, programs};

const CASES: u32 = 15;
/// The clients: each has a service of its name, except for the last, which belongs to `root`.
const CLIENTS: [&str; 3] = ["shop", "blog", "other"];
/// Where the server of each program listens.
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

/// Users and paths in these rules need no look-up.
struct PlainHost;

impl Host for PlainHost {
    fn user(&self, _: &str) -> Option<u32> {
        None
    }

    fn real_path(&self, path: &str) -> String {
        path.into()
    }
}

/// A rule that matches only the test's servers.
fn rule() -> impl Strategy<Value = String> {
    let of = |key: &'static str, values: &'static [&'static str]| {
        let line = select(values).prop_map(move |value| format!("{key} = \"{value}\"\n"));
        prop_oneof![2 => Just(String::new()), 1 => line]
    };
    let services = &["root", "shop", "blog", "inner"];
    let thread = (
        select(&["exe = \"FOLDER/first\"\n", "exe = \"FOLDER/second\"\n"][..]),
        of("user", &["0", "65534"]),
        of("service", services),
        select(&["", "priority = 1\n", "priority = -1\n"][..]),
    );
    let connection = (
        of(
            "listen",
            &[":PORT", "127.0.0.1:PORT", "127.0.0.1", "127.0.0.2", "FOLDER/socket", "FOLDER/other"],
        ),
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

struct RuleServer {
    program: String,
    backend: Backend,
    is_on_behalf: bool,
    service: Id,
}

impl RuleServer {
    fn is_at(&mut self, event: RuleEvent, peer: Option<Id>, rules: &RuleFile) {
        let port = self.backend.endpoint.parse().ok();
        let address = port.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let local = address.map_or(LocalEnd::Unix(&self.backend.endpoint), LocalEnd::Internet);
        let facts = RuleQuery {
            event,
            on_behalf: self.is_on_behalf,
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
        match rules.ruleset.match_rule(&facts).map(|index| rules.ruleset.rules()[index].action) {
            Some(RuleAction::BelongsTo(service)) => self.service = service,
            Some(RuleAction::AdoptsPeer) => self.service = peer.expect("only on messages"),
            Some(RuleAction::Inherits) | None => {}
            Some(other) => panic!("{other:?} was not generated"),
        }
        self.is_on_behalf |= event == RuleEvent::Receive;
    }
}

/// Starts both servers anew and sends them requests from these clients in this order. Returns how
/// often a rule decided.
fn decide_the_same(
    services: &ActiveServices,
    generated: &[String],
    requests: &[(usize, usize)],
) -> Result<(), TestCaseError> {
    let folder = services.folder.path();
    let text = |port: &str| {
        let rules = generated.iter().fold(BASE.to_owned(), |mut text, rule| {
            let _ = write!(text, "\n[[rule]]\n{rule}");
            text
        });
        rules.replace("PORT", port)
    };
    let read =
        |text: &str| parse(&text.replace("FOLDER", folder.to_str().expect("text")), &PlainHost);
    // Skips invalid files: two rules with the same conditions, or a cycle.
    prop_assume!(read(&text("1")).is_ok());
    // The servers' first services do not depend on the port, which is known only later.
    services.apply(&text("1"));
    let mut servers = Vec::new();
    for (name, address) in SERVERS {
        let _ = std::fs::remove_file(folder.join(address));
        let backend = Backend::start(folder, name, address, "");
        let program = folder.join(name).display().to_string();
        servers.push(RuleServer { program, backend, is_on_behalf: false, service: Id::ROOT });
    }
    let text = text(&servers[0].backend.endpoint);
    let rules = read(&text).expect("it could be read before");
    services.apply(&text);
    for server in &mut servers {
        server.is_at(RuleEvent::Exec, None, &rules);
    }
    for (server, client) in requests {
        let (server, client) = (&mut servers[*server], CLIENTS[*client]);
        finish_tenant(begin(server.backend.tenant(folder, client, "a 0 1")));
        server.is_at(RuleEvent::Receive, Some(rules.tree.find(client).unwrap_or(Id::ROOT)), &rules);
        let (said, pid) = (rules.tree.name(server.service), server.backend.running.pid());
        prop_assert_eq!(
            services.service_of(pid),
            said,
            "{}, requested by {}:\n{}",
            server.program,
            client,
            text
        );
    }
    for server in servers {
        server.backend.end(folder, "other");
    }
    Ok(())
}

#[test]
fn kernel_matches_the_reference() {
    let services =
        ActiveServices::start(programs(&["shop", "blog", "other", "first", "second"]), BASE);
    let config = ProptestConfig {
        cases: CASES,
        max_shrink_iters: 0,
        failure_persistence: None,
        ..Default::default()
    };
    let queries = vec((0..SERVERS.len(), 0..CLIENTS.len()), 6..10);
    proptest!(config, |(rules in vec(rule(), 1..8), requests in queries)| {
        decide_the_same(&services, &rules, &requests)?;
    });
}
