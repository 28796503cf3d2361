//! Parses valid rule files and checks the problems of invalid ones.

use service::{Conditions, Host, Id, Listen, RuleAction, RuleEvent, RuleFile, SplitBy, parse};
use toml_reader::Problem;

struct TestHost;

impl Host for TestHost {
    fn user(&self, name: &str) -> Option<u32> {
        (name == "www-data").then_some(33)
    }

    fn real_path(&self, path: &str) -> String {
        path.replace("/usr/sbin/fpm", "/usr/sbin/php-fpm8.2").replace("/srv/all", "/")
    }
}

fn good(text: &str) -> RuleFile {
    parse(text, &TestHost).unwrap_or_else(|problems| panic!("{problems:#?}"))
}

/// The message of the only problem, and the text at its position.
#[track_caller]
fn problem(text: &str) -> (String, &str) {
    let problems = parse(text, &TestHost).expect_err("it is wrong");
    let [Problem { span, message, .. }] = &problems[..] else { panic!("{problems:#?}") };
    (message.clone(), &text[span.clone()])
}

#[track_caller]
fn says(text: &str, message: &str, marked: &str) {
    assert_eq!(problem(text), (message.to_owned(), marked));
}

#[test]
fn file_with_all_features() {
    let file = good(
        r#"
        [service.shop]
        parent = "customers"
        [service.customers]

        [[rule]]
        name = "back end"
        exe = "/usr/sbin/fpm"
        adopts-peer = true

        [[rule]]
        user = "www-data"
        unit = "nginx"
        listen = "127.0.0.1:8080"
        client = "10.0.0.0/8"
        priority = -3
        belongs-to = "shop"

        [[rule]]
        cgroup = "/system.slice/"
        user = "1000"
        on = ["fork", "exec"]
        inherits = true
        "#,
    );
    let shop = file.tree.find("shop").expect("declared");
    let customers = file.tree.find("customers").expect("declared");
    assert_eq!(file.tree.ancestors(shop).collect::<Vec<_>>(), [shop, customers, Id::ROOT]);
    let [both, back_end, last] = file.ruleset.rules() else { panic!("{:#?}", file.ruleset) };
    assert_eq!(
        (both.has_explicit_events, &both.events[..]),
        (true, &[RuleEvent::Fork, RuleEvent::Exec][..])
    );
    assert_eq!((both.action, both.conditions.user), (RuleAction::Inherits, Some(1000)));
    assert_eq!(both.conditions.cgroup.as_ref().expect("a group").as_str(), "/system.slice");
    assert_eq!(
        (back_end.name.as_deref(), back_end.action),
        (Some("back end"), RuleAction::AdoptsPeer)
    );
    assert_eq!(back_end.events, [RuleEvent::Receive]);
    let exe = Some("/usr/sbin/php-fpm8.2".into());
    assert_eq!(back_end.conditions, Conditions { exe, ..Conditions::default() });
    assert_eq!((last.priority, last.action), (-3, RuleAction::BelongsTo(shop)));
    assert_eq!(
        (last.conditions.user, last.conditions.unit.as_deref()),
        (Some(33), Some("nginx.service"))
    );
    let listen = Listen { address: "127.0.0.1".parse().ok(), port: Some(8080), path: None };
    assert_eq!(
        (&last.conditions.listen, last.conditions.client),
        (&listen, "10.0.0.0/8".parse().ok())
    );
}

#[test]
fn where_servers_listen() {
    for (text, address, port, path) in [
        (":80", None, Some(80), None),
        ("[::1]:80", Some("::1"), Some(80), None),
        ("::ffff:127.0.0.1", Some("127.0.0.1"), None, None),
        ("/run/a.sock", None, None, Some("/run/a.sock")),
        ("@a", None, None, Some("@a")),
    ] {
        let file = good(&format!("[[rule]]\nlisten = {text:?}\nbelongs-to = \"root\""));
        let listen = Listen {
            address: address.map(|a| a.parse().expect("one")),
            port,
            path: path.map(str::to_owned),
        };
        assert_eq!(file.ruleset.rules()[0].conditions.listen, listen);
    }
}

#[test]
fn dynamic_services() {
    let file = good("[[rule]]\nunit = \"a\"\nstarts-below = \"root\"\neach = \"user\"");
    assert_eq!(
        file.ruleset.rules()[0].action,
        RuleAction::StartsDynamic { parent: Id::ROOT, split: SplitBy::User }
    );
}

#[test]
fn empty_file_is_valid() {
    assert!(good("").ruleset.rules().is_empty());
}

#[test]
fn wrong_services() {
    says("[service.a]\nparent = \"b\"", "there is no service \"b\"", "\"b\"");
    says(
        "[service.root]",
        "a service cannot be called \"root\": it always exists, and has no settings",
        "root",
    );
    says(
        "[service.\"a b\"]",
        "a service cannot be called \"a b\": a name has letters, digits, '_', '-' and '.' only",
        "\"a b\"",
    );
    says("[service]\na = 1", "service \"a\" must be a table", "1");
    says("[service.a]\npaernt = \"root\"", "unknown key \"paernt\"", "paernt");
    says("[service.a]\nparent = \"a\"", "\"a\" would be below itself: a, a", "\"a\"");
    let cycle =
        "[service.a]\nparent = \"b\"\n[service.b]\nparent = \"c\"\n[service.c]\nparent = \"a\"";
    says(cycle, "\"c\" would be below itself: c, a, b, c", "\"a\"");
    let chain = |n: usize| (1..=n).map(|n| format!("[service.s{n}]\nparent = \"s{}\"\n", n - 1));
    let chain = |n| chain(n).collect::<String>().replace("s0", "root");
    good(&chain(7));
    says(&chain(9), "\"s8\" has more than 7 services above it", "\"s7\"");
    let text = "\"a\" cannot be below \"shared\", which is for work that cannot be attributed to \
    a service";
    says("[service.a]\nparent = \"shared\"", text, "\"shared\"");
}

#[test]
fn wrong_conditions() {
    let rule = |line: &str| format!("[[rule]]\n{line}\nbelongs-to = \"root\"");
    for (line, message) in [
        (
            "exe = \"nginx\"",
            "\"nginx\" is not an absolute path below '/', or it has a '.' or '..' part",
        ),
        ("exe = 1", "exe must be a string, not 1"),
        ("file = \"/srv/all\"", "\"/srv/all\" leads to \"/\", which a rule cannot match"),
        ("cgroup = \"/sys/fs/cgroup/a\"", "cgroup must be a path within the cgroup hierarchy"),
        ("unit = \"user.slice\"", "\"user.slice\" is not a unit that can have processes"),
        ("user = \"+33\"", "this machine has no user \"+33\""),
        ("listen = \"0.0.0.0:80\"", "\"0.0.0.0:80\" is not the address of a connection"),
        ("listen = \"[::]:80\"", "\"[::]:80\" is not the address of a connection"),
        ("listen = \"::1:80\"", "\"::1:80\" is not the address of a connection"),
        ("listen = \"[127.0.0.1]\"", "\"[127.0.0.1]\" is not the address of a connection"),
        ("listen = \"/run/../a\"", "\"/run/../a\" is not the address of a connection"),
        ("listen = \"@\"", "\"@\" is not the address of a connection"),
        ("listen = \":+80\"", "\":+80\" is not the address of a connection"),
        ("client = \"::ffff:10.0.0.1/104\"", "10.0.0.1/8 has bits set beyond its prefix of 8 bits"),
        ("exe = \"\"", "exe is empty"),
        ("user = \"nobody-knows\"", "this machine has no user \"nobody-knows\""),
        ("listen = \"80\"", "\"80\" is not the address of a connection"),
        ("listen = \":0\"", "\":0\" is not the address of a connection"),
        ("client = \"10.0.0.1/8\"", "10.0.0.1/8 has bits set beyond its prefix of 8 bits"),
        ("client = \"localhost\"", "\"localhost\" is not an address or a network"),
        ("peer = \"rooot\"", "there is no service \"rooot\""),
        ("file = \"/\"", "\"/\" is not an absolute path below '/', or it has a '.' or '..' part"),
    ] {
        let text = rule(line);
        says(&text, message, line.split_once(" = ").expect("a value").1);
    }
    let exe = "exe = \"/bin/true\"\n";
    for (lines, message) in [
        ("", "this rule has no condition, so it would match every thread of the machine"),
        (
            "file = \"/srv\"\npeer = \"root\"",
            "no event has both a file and a connection: split this rule in two",
        ),
        ("peer = \"root\"\non = \"exec\"", "listen, client and peer are known only on \"receive\""),
        ("file = \"/srv\"\non = [\"open\", \"exec\"]", "file is known only on \"open\""),
        ("user = \"0\"\non = []", "this rule applies at no event, as `on` is empty"),
    ] {
        assert_eq!(problem(&rule(lines)).0, message);
    }
    says(&rule(&format!("{exe}on = \"exce\"")), "unknown event \"exce\"", "\"exce\"");
    says(
        &rule(&format!("{exe}priority = 3000000000")),
        "priority must be an integer from -2147483648 to 2147483647, not 3000000000",
        "3000000000",
    );
}

#[test]
fn wrong_directives() {
    let rule = |lines: &str| format!("[[rule]]\nexe = \"/bin/true\"\n{lines}");
    let needs = "it needs exactly one of belongs-to, inherits, adopts-peer or starts-below";
    for (lines, message) in [
        ("", format!("this rule has no action: {needs}")),
        (
            "inherits = true\nadopts-peer = true",
            format!("this rule has more than one action: {needs}"),
        ),
        ("inherits = false", "inherits must be true (or left out), not false".into()),
        (
            "adopts-peer = true\non = \"exec\"",
            "adopts-peer needs a peer, which is known only on \"receive\" and \"fork\"".into(),
        ),
        (
            "starts-below = \"root\"\neach = \"client\"\non = \"exec\"",
            "the client is known only on \"receive\"".into(),
        ),
        (
            "starts-below = \"root\"",
            "starts-below and each must be given together: starts-below = \"SERVICE\", and each = \
                one of user, unit, exe, client"
                .into(),
        ),
        (
            "starts-below = \"shared\"\neach = \"user\"",
            "no service can be started below \"shared\"".into(),
        ),
        ("starts-below = \"root\"\neach = \"day\"", "the value of each cannot be \"day\"".into()),
    ] {
        assert_eq!(problem(&rule(lines)).0, message);
    }
}

#[test]
fn rules_that_do_not_go_together() {
    let twins =
        "[[rule]]\nuser = \"0\"\ninherits = true\n[[rule]]\nuser = \"0\"\nbelongs-to = \"shared\"";
    let message = "on \"exec\" the order of this rule and another one is undefined: they have \
        the same conditions and the same priority";
    assert_eq!(problem(twins).0, message);
    good(&twins.replace("inherits", "priority = 1\ninherits"));
    good(&twins.replace("inherits", "on = \"fork\"\ninherits"));
    let services = "[service.a]\n[service.b]\n[service.c]\n";
    let step = |from, to| {
        format!("[[rule]]\nservice = \"{from}\"\nexe = \"/bin/sh\"\nbelongs-to = \"{to}\"\n")
    };
    let [to_b, to_c, to_a] = [step("a", "b"), step("b", "c"), step("c", "a")];
    good(&format!("{services}{to_b}{to_c}"));
    let cycle = format!("{services}{to_b}{to_c}{to_a}");
    assert_eq!(
        problem(&cycle).0,
        "these rules form a cycle: a thread would go from a to b to c to a"
    );
    good(&format!("{services}{to_b}{to_c}{}", to_a.replace("/bin/sh", "/bin/bash")));
}

#[test]
fn dynamic_services_may_be_on_a_cycle() {
    let rule = |from: &str, to: &str| {
        format!("[[rule]]\nservice = {from:?}\nstarts-below = {to:?}\neach = \"user\"\n")
    };
    let services = "[service.a]\n[service.b]\n";
    good(&format!("{services}{}", rule("a", "a")));
    let cycle = format!("{services}{}{}", rule("a", "b"), rule("b", "a"));
    assert_eq!(problem(&cycle).0, "these rules form a cycle: a thread would go from a to b to a");
}

#[test]
fn cycle_follows_the_matching_rule() {
    let services = "[service.day]\n[service.night]\n[service.x]\n";
    let step = |from, to, priority: i32| {
        format!("[[rule]]\nservice = \"{from}\"\nbelongs-to = \"{to}\"\npriority = {priority}\n")
    };
    let [to_night, to_x, back] =
        [step("day", "night", 10), step("day", "x", 0), step("night", "day", 0)];
    let round = format!("{services}{to_night}{to_x}{back}");
    assert_eq!(
        problem(&round).0,
        "these rules form a cycle: a thread would go from day to night to day"
    );
    let [to_night, to_x] = [step("day", "night", 0), step("day", "x", 10)];
    good(&format!("{services}{to_x}{to_night}{back}"));
}

#[test]
fn addresses_are_canonical() {
    let client = |text: &str| {
        let file = good(&format!("[[rule]]\nclient = {text:?}\nbelongs-to = \"root\""));
        file.ruleset.rules()[0].conditions.client.expect("a network").to_string()
    };
    assert_eq!(client("::ffff:10.0.0.0/104"), "10.0.0.0/8");
    assert_eq!(client("::ffff:10.0.0.1"), "10.0.0.1/32");
    assert_eq!(client("::/0"), "::/0");
    assert_eq!(client("192.0.2.7"), "192.0.2.7/32");
}

#[test]
fn listen_and_client_families_must_agree() {
    let rule = |listen, client| {
        format!("[[rule]]\nlisten = {listen:?}\nclient = {client:?}\nbelongs-to = \"root\"")
    };
    assert_eq!(
        problem(&rule("/run/a", "10.0.0.1")).0,
        "the clients of a Unix socket have no address"
    );
    let mixed = rule("127.0.0.1:80", "::1");
    assert_eq!(problem(&mixed).0, "listen and client must both be IPv4 or both be IPv6");
    good(&rule(":80", "::1"));
}

#[test]
fn names_with_dots_are_declared_in_quotes() {
    let help = |text: &str| parse(text, &TestHost).expect_err("it is wrong").remove(0).help;
    let missing = |name: &str| help(&format!("[service.a]\nparent = {name:?}"));
    assert_eq!(
        missing("shop.example.com").as_deref(),
        Some("declare it: [service.\"shop.example.com\"]")
    );
    assert_eq!(missing("my shop"), None);
    assert_eq!(
        help("[service.shop.example]").as_deref(),
        Some(
            "a service below \"shop\" needs a table of its own: [service.example] with \
            parent = \"shop\"; a name with a dot needs quotes: \
             [service.\"shop.example\"]"
        )
    );
    assert_eq!(
        help("[limits.shop]\ncpu-max = \"5%\"").as_deref(),
        Some("the limits of a service belong in its own table: [service.shop]")
    );
}

#[test]
fn reserved_names_are_refused() {
    for name in ["none", "EAGAIN"] {
        let text = format!("[service.{name}]");
        let why = "this word has another meaning in `tollgate service limit`";
        says(&text, &format!("a service cannot be called {name:?}: {why}"), name);
    }
}

#[test]
fn wrong_limit_types_have_examples() {
    let limit = |text: &str| {
        let text = format!("[service.a]\n{text}");
        let mut problems = parse(&text, &TestHost).expect_err("it is wrong");
        assert_eq!(problems.len(), 1, "{problems:#?}");
        problems.remove(0)
    };
    let share = limit("cpu-max = 150");
    assert_eq!(share.message, "cpu-max must be a string, not 150");
    assert_eq!(share.help.as_deref(), Some("write cpu-max = \"150%\""));
    assert_eq!(
        limit("tasks-max = 4194305").message,
        "tasks-max must be an integer from 1 to 4194304, not 4194305"
    );
    assert_eq!(
        limit("cpu-weight = 0").message,
        "cpu-weight must be an integer from 1 to 10000, not 0"
    );
    assert!(limit("memory-max = \"512MiB\"").message.ends_with("(1K is 1024 bytes)"));
}

#[test]
fn long_messages_are_cut() {
    let (message, _) =
        problem(&format!("[[rule]]\nexe = {:?}\ninherits = true", "/a".repeat(1 << 19)));
    assert!(message.chars().count() == 301 && message.ends_with('…'), "{message}");
    let key = format!("[limits.\"\\u001b{}\"]", "a".repeat(1 << 19));
    let help = parse(&key, &TestHost).expect_err("it is wrong").remove(0).help.expect("some");
    assert!(help.chars().count() == 301 && !help.contains('\u{1b}'), "{help}");
}

/// Comparing names and searching for cycles stays fast in large files.
#[test]
fn large_and_wrong() {
    let unknown: String = (0..20_000)
        .map(|n| format!("[[rule]]\nuser = \"{n}\"\nbelongs-to = \"tenant-{n}\"\n"))
        .collect();
    let services: String = (0..4_000).map(|n| format!("[service.tenant{n}]\n")).collect();
    assert_eq!(
        parse(&(services.clone() + &unknown), &TestHost).expect_err("it is wrong").len(),
        20_000
    );
    let step = |n: usize| {
        let to = (n + 1) % 4_000;
        format!("[[rule]]\nservice = \"tenant{n}\"\nbelongs-to = \"tenant{to}\"\n")
    };
    let circle: String = (0..4_000).map(step).collect();
    assert!(
        problem(&(services + &circle))
            .0
            .starts_with("these rules form a cycle: a thread would go from tenant0 to ")
    );
}

#[test]
fn not_toml() {
    let problems = parse("x = \n[service.a]\ny = \n", &TestHost).expect_err("it is none");
    assert!(problems.len() > 1, "all of them at once: {problems:?}");
    says("[sevrice.a]", "unknown key \"sevrice\"", "sevrice");
    says("rule = 1", "rule must be an array of tables ([[…]]), not 1", "1");
}

#[test]
fn size_limits() {
    let rules: String =
        (0..65_001).map(|n| format!("[[rule]]\nuser = \"{n}\"\ninherits = true\n")).collect();
    assert_eq!(problem(&rules).0, "there are 65001 rules, but at most 65000 are possible");
    let services: String = (0..4097).map(|n| format!("[service.s{n}]\n")).collect();
    assert_eq!(problem(&services).0, "there are 4097 services, but at most 4096 are possible");
    let path = |n: usize| "/d".repeat(n + 1);
    let files: String =
        (0..33).map(|n| format!("[[rule]]\nfile = {:?}\ninherits = true\n", path(n))).collect();
    let message = "the rules on open have 33 different combinations of conditions, but at most 32 \
        are possible";
    assert_eq!(problem(&files).0, message);
}

#[test]
fn ten_thousand_rules_of_one_tuple_are_one_lookup() {
    let rules: String = (0..10_000)
        .map(|n| format!("[[rule]]\nuser = \"{n}\"\nbelongs-to = \"shared\"\n"))
        .collect();
    let file = good(&rules);
    assert_eq!(
        (file.ruleset.rules().len(), file.tuple_space.tuple_count(RuleEvent::Exec)),
        (10_000, 1)
    );
}
