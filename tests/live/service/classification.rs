//! To which service a thread's work belongs, and what that work used. A machine has only one active
//! set of services, but the rules name only programs of the test.

use std::fs;
use std::io::Write as _;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use crate::harness::bpf::{abandoned_links, entries_of};
use crate::harness::cgroup::TestCgroup;
use crate::harness::job::{cpu_ns, is_in_call, state, stop, threads_of, wait_for_refresh, watches};
use crate::harness::report::none_lost;
use crate::harness::services::{
    ActiveServices, Backend, Consumer, TENANTS, assert_charged, begin, finish_tenant, own_work,
    program, programs, write,
};
use crate::harness::{Job, NOBODY, Running, eventually};

/// A noisy and a quiet tenant send requests to a back end; each must be charged its own work.
pub fn tenants_are_charged(address: &str, options: &str, per_connection: u32) {
    let services = ActiveServices::start(programs(&["shop", "blog", "backend"]), TENANTS);
    let folder = services.folder.path();
    let backend = Backend::start(folder, "backend", address, options);
    let shop = backend.tenant(folder, "shop", &format!("a 10 30 {per_connection}"));
    let blog = backend.tenant(folder, "blog", &format!("b 5 20 {per_connection}"));
    let before = services.usage_by_service("cpu_ns");
    let (shop, blog) = (begin(shop), begin(blog));
    let own = [own_work(&shop), own_work(&blog)];
    let after = services.usage_by_service("cpu_ns");
    finish_tenant(shop);
    finish_tenant(blog);
    let worked = backend.end(folder, "shop");
    let expected = [worked["a"] + own[0], worked["b"] + own[1]];
    assert!(worked["a"] >= 300_000_000 && worked["b"] >= 100_000_000, "{worked:?}");
    for (name, work) in ["shop", "blog"].into_iter().zip(expected) {
        assert_charged(name, after[name] - before[name], work, expected.iter().sum());
    }
    assert!(services.usage_by_service("overlaps").values().all(|times| *times == 0));
    none_lost(&services.report());
}

#[test]
fn tcp_backend_is_charged() {
    tenants_are_charged("0", "", 1);
    tenants_are_charged("0", "--threads 1", 5);
    tenants_are_charged("[::1]:0", "", 1);
}

#[test]
fn unix_backend_is_charged() {
    tenants_are_charged("socket", "", 1);
    tenants_are_charged("socket", "--threads 1", 5);
    tenants_are_charged(&abstract_name("tenants"), "", 1);
}

/// An abstract name, which is unique because other tests share the network namespace.
fn abstract_name(of: &str) -> String {
    format!("@tollgate-test-{of}-{}", std::process::id())
}

/// A server that starts a process for each request.
#[test]
fn child_per_request_is_charged_to_the_client() {
    tenants_are_charged("0", "--children 1", 1);
    tenants_are_charged("socket", "--threads 1 --children 1", 5);
}

#[test]
fn preforked_server_is_charged() {
    tenants_are_charged("0", "--forks 3", 3);
    tenants_are_charged("socket", "--forks 3 --threads 1", 3);
}

/// An event loop has requests of both tenants; its request to a back end belongs to the first one.
fn the_first_ones_work_is_its_own(options: &str) {
    let rules = format!("{TENANTS}\n[[rule]]\nexe = \"FOLDER/relay\"\nadopts-peer = true\n");
    let services = ActiveServices::start(programs(&["shop", "blog", "relay", "backend"]), &rules);
    let folder = services.folder.path();
    let backend = Backend::start(folder, "backend", "0", "");
    let is_stuck = !options.is_empty();
    if is_stuck {
        // The back end must not receive the message before the relay has received the second
        // request.
        stop(backend.running.pid());
    }
    let relay = services.program(&format!("relay relay {} {options}", backend.endpoint)).start();
    eventually("the relay", || relay.read("out").ends_with('\n'));
    let endpoint = relay.read("out").trim().to_owned();
    let mut relay = Backend { running: relay, endpoint };
    let shop = begin(relay.tenant(folder, "shop", "a 300 1"));
    eventually("the first one's request", || relay.running.read("out").lines().count() == 2);
    let blog = begin(relay.tenant(folder, "blog", "b 0 1"));
    if is_stuck {
        eventually("its send", || is_in_call(relay.running.pid(), libc::SYS_sendto));
        assert_eq!(services.service_of(relay.running.pid()), "blog");
        backend.running.signal(libc::SIGCONT);
        eventually("its work", || {
            let charged = services.usage_by_service("cpu_ns");
            charged["shop"] + charged["blog"] > 300_000_000
        });
        [shop, blog, relay.running].into_iter().for_each(|running| {
            running.signal(libc::SIGKILL);
            running.finish();
        });
    } else {
        own_work(&shop);
        own_work(&blog);
        // The tenant may have its reply before the server's send returns.
        eventually("shared", || services.service_of(relay.running.pid()) == "shared");
        assert_eq!(services.explain(relay.running.pid())["why"], "several");
        writeln!(relay.running.input()).expect("it waits for a line");
        finish_tenant(shop);
        finish_tenant(blog);
        relay.running.finish().success();
        // The relay replies to the second tenant while it works for the first.
        let overlaps = services.usage_by_service("overlaps");
        assert_eq!((overlaps["shop"], overlaps["blog"]), (1, 0));
        let said = services.request("report").text();
        assert!(
            said.contains("shop: its threads sent 1 reply to other services while working for it"),
            "{said}"
        );
    }
    let charged = services.usage_by_service("cpu_ns");
    let worked = backend.end(folder, "shop")["a"];
    assert!(worked >= 300_000_000);
    // All other work is small.
    assert!(
        charged["shop"] > worked / 10 * 9 && charged["blog"] < worked / 10,
        "{charged:?} {worked}"
    );
}

#[test]
fn connection_keeps_the_openers_binding() {
    the_first_ones_work_is_its_own("");
}

#[test]
fn queued_message_keeps_its_senders_binding() {
    the_first_ones_work_is_its_own("--stuck 1");
}

#[test]
fn exec_rules_and_inheritance() {
    let services = ActiveServices::start(programs(&["shop", "blog"]), TENANTS);
    let before = (
        services.usage_by_service("cpu_ns"),
        services.usage_by_service("calls"),
        services.usage_by_service("labels"),
    );
    services.program("shop calls 100000").finish().success();
    services.program("blog short-processes 20").finish().success();
    let after = (
        services.usage_by_service("cpu_ns"),
        services.usage_by_service("calls"),
        services.usage_by_service("labels"),
    );
    let calls = |name: &str| after.1[name] - before.1[name];
    assert!((100_000..101_000).contains(&calls("shop")), "{}", calls("shop"));
    assert!((60..1_000).contains(&calls("blog")), "{}", calls("blog"));
    assert!(after.0["shop"] > before.0["shop"]);
    // One binding at a thread's end, and another when the kernel frees the thread, a moment later.
    assert!(after.2["blog"] - before.2["blog"] >= 21);
}

#[test]
fn cpu_time_matches_schedstat() {
    let services = ActiveServices::start(programs(&["shop"]), TENANTS);
    let mut worker = services.program("shop calls-on-input 300000").start();
    let pid = worker.pid();
    eventually("its rule", || services.service_of(pid) == "shop");
    let schedstat = || {
        let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).expect("it runs");
        text.split(' ').map(|number| number.trim().parse().expect("a number")).collect::<Vec<u64>>()
    };
    // The process sleeps before and after the measurement.
    let asleep = || crate::harness::job::state(pid) == Some('S');
    eventually("its sleep", asleep);
    let read = || {
        (
            services.usage_by_service("cpu_ns")["shop"],
            services.usage_by_service("wait_ns")["shop"],
            schedstat(),
        )
    };
    let before = read();
    for round in 1..=3 {
        worker.input().write_all(b"x").expect("it reads");
        let calls = || services.usage_by_service("calls")["shop"];
        eventually("its calls", || calls() >= round * 300_000 && asleep());
    }
    let after = read();
    assert_eq!(after.0 - before.0, after.2[0] - before.2[0], "on a processor");
    assert_eq!(after.1 - before.1, after.2[1] - before.2[1], "waiting");
    drop(worker.stdin());
    worker.finish().success();
}

#[test]
fn running_processes_are_attached() {
    let folder = programs(&["shop", "blog", "backend"]);
    let path = folder.path().to_owned();
    let backend = Backend::start(&path, "backend", "0", "--threads 1");
    // This tenant connects before the services start.
    let shop = backend.tenant(&path, "shop", "a 10 100000 100000");
    let shop = begin(shop);
    let blog = backend.tenant(&path, "blog", "b 10 20");
    let services = ActiveServices::start(folder, TENANTS);
    assert_eq!(services.service_of(shop.pid()), "shop");
    assert_eq!(services.explain(blog.pid())["why"], "found");
    assert_eq!(services.explain(blog.pid())["rule"]["line"], 10);
    let blog = begin(blog);
    let own = own_work(&blog);
    finish_tenant(blog);
    shop.signal(libc::SIGKILL);
    shop.finish();
    let charged = services.usage_by_service("cpu_ns");
    let worked = backend.end(&path, "blog");
    assert_charged("blog", charged["blog"], worked["b"] + own, worked["a"] + worked["b"]);
    // Not all of its work, because it began before the services.
    assert!(charged["shop"] <= worked["a"] + 20_000_000, "{charged:?} {worked:?}");
}

pub fn older_replies_rebind_nobody(address: &str) {
    let services = ActiveServices::start(programs(&["one", "backend"]), TENANTS);
    let folder = services.folder.path();
    let backend = Backend::start(folder, "backend", address, "");
    let tenant = begin(backend.tenant(folder, "one", "a 50 40 40"));
    // The tenant has sent requests for `root` and receives the replies.
    services.request(&format!("assign {} blog", tenant.pid()));
    let received = || services.usage_by_service("received_bytes")["blog"];
    eventually("replies", || received() > 10);
    assert_eq!(services.service_of(tenant.pid()), "blog");
    // Its later requests are for the new service.
    assert_eq!(services.service_of(backend.running.pid()), "blog");
    finish_tenant(tenant);
    backend.end(folder, "one");
}

#[test]
fn old_reply_does_not_restore_a_binding() {
    older_replies_rebind_nobody("0");
}

#[test]
fn reply_does_not_rebind_own_work() {
    let services = ActiveServices::start(programs(&["shop", "backend"]), TENANTS);
    let folder = services.folder.path();
    let backend = Backend::start(folder, "backend", "0", "");
    let tenant = begin(backend.tenant(folder, "shop", "a 0 20"));
    own_work(&tenant);
    let why = services.explain(tenant.pid());
    assert_eq!(
        (&why["service"], &why["why"], &why["borrowed"]),
        (&"shop".into(), &"exec".into(), &false.into())
    );
    let why = services.explain(backend.running.pid());
    assert_eq!(
        (&why["service"], &why["why"], &why["borrowed"]),
        (&"shop".into(), &"receive".into(), &true.into())
    );
    assert_eq!(why["rule"]["is_former"], false);
    let line = why["rule"]["line"].clone();
    // The cached rule is not matched again.
    services.apply(&format!("[[rule]]\nexe = \"/nowhere\"\nadopts-peer = true\n{TENANTS}"));
    let rule = services.explain(backend.running.pid())["rule"].clone();
    assert_eq!((&rule["is_former"], &rule["line"]), (&true.into(), &line));
    assert!(
        services
            .request(&format!("explain {}", backend.running.pid()))
            .text()
            .contains("(in an earlier file)")
    );
    finish_tenant(tenant);
    backend.end(folder, "shop");
}

#[test]
fn io_uring_work_is_shared() {
    // A thread that sets up a ring, and one that uses another thread's ring.
    [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter]
        .into_iter()
        .for_each(works_for_shared_after);
}

fn works_for_shared_after(call: libc::c_long) {
    let services = ActiveServices::start(programs(&["shop", "backend"]), TENANTS);
    let folder = services.folder.path();
    let backend = Backend::start(folder, "backend", "0", &format!("--io-uring {call}"));
    assert_eq!(services.service_of(backend.running.pid()), "root");
    let tenant = begin(backend.tenant(folder, "shop", "a 20 5"));
    own_work(&tenant);
    let why = services.explain(backend.running.pid());
    assert_eq!((&why["service"], &why["why"]), (&"shared".into(), &"io_uring".into()));
    let pid = backend.running.pid();
    let text = services.request("list shared").text();
    assert!(
        text.contains(&format!(
            "{pid} backend: works for shared, because it began to use io_uring"
        )),
        "{text}"
    );
    let list = services.request("list shared --json").json();
    let thread = |thread: &serde_json::Value| (thread["tid"].clone(), thread["why"].clone());
    let threads: Vec<_> = list["threads"].as_array().expect("threads").iter().map(thread).collect();
    assert!(threads.contains(&(pid.into(), "io_uring".into())), "{list}");
    assert_eq!(list["services"][0]["name"], "shared");
    assert!(services.usage_by_service("cpu_ns")["shared"] >= 100_000_000);
    finish_tenant(tenant);
    backend.end(folder, "shop");
}

#[test]
fn closed_connection_leaves_no_entry() {
    let services = ActiveServices::start(programs(&["shop", "backend"]), TENANTS);
    let folder = services.folder.path();
    let backend = Backend::start(folder, "backend", "0", "");
    let before = entries_of("service_tcp_directions");
    finish_tenant(begin(backend.tenant(folder, "shop", "a 0 500")));
    // Other processes of the machine have connections as well.
    eventually("the connections' end", || entries_of("service_tcp_directions") < before + 50);
    backend.end(folder, "shop");
}

#[test]
fn apply_is_atomic() {
    let services = ActiveServices::start(programs(&["shop", "blog"]), TENANTS);
    let shop = services.program("shop calls-on-input 1").start();
    let pid = shop.pid();
    eventually("its rule", || services.service_of(pid) == "shop");
    let line = services.explain(pid)["rule"]["line"].clone();
    assert_eq!(
        (line, services.explain(pid)["rule"]["name"].as_str()),
        (5.into(), Some("the shop's"))
    );

    let wrong = services.path("wrong.toml");
    std::fs::write(&wrong, "[[rule]]\nbelongs-to = \"nobody\"\n").expect("a file");
    let refused =
        services.client_job(&format!("apply {}", wrong.display())).finish().exits_with(125);
    refused.says("wrong.toml:2").says("has 1 problem");
    assert_eq!(services.service_of(pid), "shop");

    // The service is removed and its members are reclassified; what they used before goes to its
    // parent.
    let used = services.usage_by_service("calls");
    let rules = TENANTS.replace("[service.shop]", "[service.all]").replace("\"shop\"", "\"all\"");
    let said = services.apply(&rules).text();
    assert!(said.contains("4 services and 3 rules are active"), "{said}");
    eventually("the other one", || services.service_of(pid) == "all");
    let now = services.usage_by_service("calls");
    assert!(!now.contains_key("shop"), "{now:?}");
    assert!(now["root"] >= used["root"] + used["shop"], "{used:?} {now:?}");
    assert_eq!(services.explain(pid)["why"], "found");
    assert_eq!(services.explain(pid)["rule"]["is_former"], false);
    services
        .client_job("apply /dev/zero")
        .finish()
        .exits_with(125)
        .says("the size limit of a file of services");
}

#[test]
fn assign_binds_a_process() {
    let services = ActiveServices::start(programs(&["one"]), TENANTS);
    let one = services.program("one calls-on-input 1 ").start();
    assert_eq!(services.service_of(one.pid()), "root");
    services.request(&format!("assign {} blog", one.pid()));
    assert_eq!(services.service_of(one.pid()), "blog");
    assert_eq!(services.explain(one.pid())["why"], "assigned");
    services
        .client_job(&format!("assign {} nobody", one.pid()))
        .finish()
        .exits_with(125)
        .says("there is no service");
    services
        .client_job("assign 4194305 blog")
        .finish()
        .exits_with(125)
        .says("there is no process or thread");
    let daemon = services.daemon.pid();
    services
        .client_job(&format!("assign {daemon} blog"))
        .finish()
        .exits_with(125)
        .says("is this daemon");
    only_one_thread_is_assigned(&services);
    // SAFETY: a plain query.
    let own_thread = unsafe { libc::gettid() };
    services
        .client_job(&format!("assign {own_thread} blog"))
        .finish()
        .exits_with(125)
        .says(&format!("is a thread of process {}", std::process::id()));

    let mut job = Job::from_command_line("run --service shop --");
    job.command.arg(services.path("one")).args(["calls", "5000"]);
    job.command.env("TOLLGATE_SOCKET", services.path("control"));
    let before = services.usage_by_service("calls")["shop"];
    let ran = job.finish().success();
    assert_eq!((ran.text(), ran.err), (String::new(), String::new()));
    assert!(services.usage_by_service("calls")["shop"] - before >= 5000);
}

fn only_one_thread_is_assigned(services: &ActiveServices) {
    let two = services.program("one threads 2 1000000000").start();
    let threads = || threads_of(two.pid());
    eventually("its threads", || threads().len() > 1);
    let (first, other) =
        (two.pid(), threads().into_iter().find(|thread| *thread != two.pid()).expect("another"));
    services.request(&format!("assign --thread {other} blog"));
    let services_of =
        || services.request(&format!("explain --json {first}")).json()["threads"].clone();
    for thread in services_of().as_array().expect("threads") {
        let assigned = thread["tid"] == other;
        assert_eq!(thread["service"], if assigned { "blog" } else { "root" }, "{thread}");
    }
    two.signal(libc::SIGKILL);
    two.finish();
}

/// The work that a thread did before it was assigned to another service, while it has not run
/// since, belongs to its first service.
#[test]
fn sleeping_thread_is_charged_to_its_old_service() {
    const MS: u64 = 1_000_000;
    let services = ActiveServices::start(programs(&["one"]), TENANTS);
    let mut one = Consumer::start(&services, "one");
    let burned = |one: &mut Consumer| one.request("burn 300").parse::<u64>().expect("a time");
    let first = burned(&mut one);
    let before = services.usage_by_service("cpu_ns");
    services.request(&format!("assign {} blog", one.0.pid()));
    thread::sleep(Duration::from_millis(300));
    let after = services.usage_by_service("cpu_ns");
    assert_eq!(after["blog"], 0, "{after:?}");
    assert!(after["root"] >= before["root"] && before["root"] >= first, "{before:?} {after:?}");
    let since = services.explain(one.0.pid())["since_ns"].as_u64().expect("a time");
    assert!(since >= 300 * MS, "{since}");

    let second = burned(&mut one);
    let used = services.usage_by_service("cpu_ns");
    assert!((second..second + 100 * MS).contains(&used["blog"]), "{second} {used:?}");
    assert!(services.explain(one.0.pid())["since_ns"].as_u64().expect("a time") > since);

    // While it sleeps, its service is removed, and another of the same name is created.
    services.apply("[service.shop]\n");
    assert_eq!(services.service_of(one.0.pid()), "root");
    assert!(services.usage_by_service("cpu_ns")["root"] >= used["root"] + used["blog"]);
    services.apply(TENANTS);
    assert_eq!(services.service_of(one.0.pid()), "root");
    burned(&mut one);
    assert_eq!(services.usage_by_service("cpu_ns")["blog"], 0);
    none_lost(&services.report());
}

#[test]
fn user_condition() {
    let rules = format!(
        "{TENANTS}\n[[rule]]\nexe = \"FOLDER/one\"\nuser = \"{NOBODY}\"\nbelongs-to = \
        \"blog\"\n[[rule]]\nexe = \"FOLDER/one\"\nbelongs-to = \"shop\"\n"
    );
    let services = ActiveServices::start(programs(&["one"]), &rules);
    let calls = |user: Option<u32>| {
        let before = services.usage_by_service("calls");
        let mut job = services.program("one calls 3000");
        if let Some(user) = user {
            std::os::unix::process::CommandExt::uid(&mut job.command, user);
        }
        job.finish().success();
        let after = services.usage_by_service("calls");
        ["shop", "blog"].map(|name| after[name] - before[name] >= 3000)
    };
    assert_eq!(calls(None), [true, false]);
    assert_eq!(calls(Some(NOBODY)), [false, true]);
}

/// The user changes while the process runs.
#[test]
fn setuid_reclassifies() {
    let rules = format!(
        "{TENANTS}\n[[rule]]\nexe = \"FOLDER/one\"\nuser = \"{NOBODY}\"\nbelongs-to = \"blog\"\n"
    );
    let services = ActiveServices::start(programs(&["one"]), &rules);
    let mut one = Consumer::start(&services, "one");
    let first: u64 = one.request("burn 100").parse().expect("a time");
    assert_eq!(services.service_of(one.0.pid()), "root");
    assert_eq!(one.request_counts(&format!("setuid {NOBODY}")), (1, 0));
    let second: u64 = one.request("burn 100").parse().expect("a time");
    let why = services.explain(one.0.pid());
    assert_eq!(
        (&why["service"], &why["why"], &why["borrowed"]),
        (&"blog".into(), &"user".into(), &false.into())
    );
    let used = services.usage_by_service("cpu_ns")["blog"];
    assert!((second..second + first / 4).contains(&used), "{used} of {second} ns, after {first}");
}

/// What several services are charged for the work of one thread adds up to the kernel's count for
/// this thread.
#[test]
fn charges_add_up_across_rebindings() {
    let services = ActiveServices::start(programs(&["shop", "blog", "backend"]), TENANTS);
    let folder = services.folder.path();
    let backend = Backend::start(folder, "backend", "0", "");
    let first = begin(backend.tenant(folder, "shop", "a 0 1"));
    own_work(&first);
    let mut all = [
        first,
        backend.tenant(folder, "shop", "a 0 2000"),
        backend.tenant(folder, "blog", "b 0 2000"),
    ];
    let pids: Vec<_> = all.iter().map(Running::pid).chain([backend.running.pid()]).collect();
    let counted = || pids.iter().map(|pid| cpu_ns(*pid)).sum::<u64>();
    let read = || {
        loop {
            eventually("their sleep", || pids.iter().all(|pid| state(*pid) == Some('S')));
            let (before, charged) = (counted(), services.usage_by_service("cpu_ns"));
            if before == counted() {
                return (before, charged["shop"] + charged["blog"]);
            }
        }
    };
    let before = read();
    for tenant in &mut all[1..] {
        tenant.input().write_all(b"\n").expect("it waits");
    }
    for tenant in &all[1..] {
        own_work(tenant);
    }
    let after = read();
    assert_eq!(after.1 - before.1, after.0 - before.0);
    all.into_iter().for_each(finish_tenant);
    backend.end(folder, "shop");
}

/// Activates the rule, lets a tenant without a service send one request, and returns the service
/// for which the back end works.
pub fn works_for(services: &ActiveServices, backend: &Backend, rule: &str) -> String {
    services.apply(&format!(
        "{TENANTS}\n[service.found]\n[[rule]]\nexe = \"FOLDER/server\"\n{rule}\nbelongs-to = \
        \"found\"\n"
    ));
    finish_tenant(begin(backend.tenant(services.folder.path(), "one", "a 0 1")));
    services.service_of(backend.running.pid())
}

#[test]
fn connection_conditions() {
    let services = ActiveServices::start(programs(&["one", "server"]), TENANTS);
    let folder = services.folder.path();
    let tcp = Backend::start(folder, "server", "0", "");
    let unix = Backend::start(folder, "server", "socket", "");
    let (port, other) = (tcp.endpoint.clone(), tcp.endpoint.parse::<u16>().expect("a port") ^ 1);
    let no = |rule: String| (rule, "root");
    let yes = |rule: String| (rule, "found");
    for (rule, service) in [
        no(format!("listen = \":{other}\"")),
        no(format!("listen = \"127.0.0.2:{port}\"")),
        no("client = \"10.0.0.0/8\"".into()),
        no("client = \"::/0\"".into()),
        no("listen = \"/run/other\"".into()),
        no("peer = \"shop\"".into()),
        no(format!("listen = \":{port}\"\nuser = \"{NOBODY}\"")),
        yes(format!("listen = \":{port}\"")),
    ] {
        assert_eq!(works_for(&services, &tcp, &rule), service, "{rule}");
    }
    // A process keeps its service, so each rule is tested with a new process.
    for rule in [
        "listen = \"127.0.0.1:PORT\"".to_owned(),
        "listen = \"127.0.0.1\"".into(),
        "client = \"127.0.0.1\"".into(),
        "client = \"127.0.0.0/8\"".into(),
        "client = \"0.0.0.0/0\"".into(),
        "peer = \"root\"".into(),
        "client = \"127.0.0.0/9\"\nlisten = \":PORT\"\nuser = \"0\"\nservice = \"root\"".into(),
    ] {
        let tcp = Backend::start(folder, "server", "0", "");
        let rule = rule.replace("PORT", &tcp.endpoint);
        assert_eq!(works_for(&services, &tcp, &rule), "found", "{rule}");
        tcp.end(folder, "one");
    }
    for (address, rules) in [
        ("[::1]:0", ["listen = \"ADDRESS\"", "client = \"::/0\"", "client = \"::1\""].as_slice()),
        (&abstract_name("conditions"), &["listen = \"ADDRESS\""]),
    ] {
        for rule in rules {
            let other = Backend::start(folder, "server", address, "");
            assert_eq!(works_for(&services, &other, "client = \"127.0.0.0/8\""), "root");
            assert_eq!(works_for(&services, &other, "listen = \"@other\""), "root");
            let rule = rule.replace("ADDRESS", &other.endpoint);
            assert_eq!(works_for(&services, &other, &rule), "found", "{rule}");
            other.end(folder, "one");
        }
    }
    let rule = format!("listen = \"{}\"", unix.endpoint);
    assert_eq!(works_for(&services, &unix, &rule), "found", "{rule}");
}

/// Both tenants send a request to each back end, one after the other.
#[test]
fn peer_condition() {
    let rules = format!(
        "{TENANTS}\n[service.found]\n[[rule]]\nexe = \"FOLDER/server\"\npeer = \
        \"shop\"\nbelongs-to = \"found\"\n"
    );
    let services = ActiveServices::start(programs(&["shop", "blog", "server"]), &rules);
    let folder = services.folder.path();
    for address in ["0", "socket"] {
        let backend = Backend::start(folder, "server", address, "");
        for (tenant, service) in [("blog", "root"), ("shop", "found")] {
            finish_tenant(begin(backend.tenant(folder, tenant, "a 0 1")));
            assert_eq!(
                services.service_of(backend.running.pid()),
                service,
                "{address}, requested by {tenant}"
            );
        }
        backend.end(folder, "blog");
    }
}

/// The rules of both files match the same program, so that it always has a service.
#[test]
fn events_see_old_or_new_rules_only() {
    const FILES: usize = 6;
    let services = ActiveServices::start(programs(&["one"]), TENANTS);
    let one = |service: &str| {
        format!("{TENANTS}\n[[rule]]\nexe = \"FOLDER/one\"\nbelongs-to = \"{service}\"\n")
    };
    services.apply(&one("shop"));
    let mut times = 0;
    let mut call = || {
        services.program("one calls 2000").finish().success();
        times += 1;
    };
    for service in ["blog", "shop"].into_iter().cycle().take(FILES) {
        write(services.folder.path(), "services.toml", &one(service));
        let apply = services.client_job("apply").start();
        while !apply.is_over() {
            call();
        }
        apply.finish().success();
        call();
    }
    let calls = services.usage_by_service("calls");
    let charged = calls["shop"] + calls["blog"];
    assert!((times * 2000..times * 3000).contains(&charged), "{calls:?} of {times} programs");
    assert!(calls["shop"] > 0 && calls["blog"] > 0, "{calls:?}");
    none_lost(&services.report());
}

/// The thread continues to work for the nearest remaining ancestor, which also gets the removed
/// service's usage.
#[test]
fn removed_service_hands_usage_to_its_parent() {
    let below =
        TENANTS.replace("[service.shop]", "[service.all]\n[service.shop]\nparent = \"all\"");
    let services = ActiveServices::start(programs(&["shop", "blog", "backend"]), &below);
    let folder = services.folder.path();
    let backend = Backend::start(folder, "backend", "0", "");
    let tenant = begin(backend.tenant(folder, "shop", "a 400 1"));
    eventually("its work", || services.usage_by_service("cpu_ns")["shop"] > 100_000_000);
    services.apply("[service.all]\n[[rule]]\nexe = \"FOLDER/backend\"\nadopts-peer = true\n");
    assert_eq!(services.service_of(backend.running.pid()), "all");
    let own = own_work(&tenant);
    let charged = services.usage_by_service("cpu_ns");
    finish_tenant(tenant);
    let worked = backend.end(folder, "shop")["a"];
    // Allows for the tenant's start.
    let slack = worked / 10;
    assert!(
        charged["all"] >= 400_000_000 && charged["all"] <= worked + own + slack,
        "{charged:?} {worked}"
    );
    none_lost(&services.report());
}

#[test]
fn cgroup_and_unit_conditions() {
    let services = ActiveServices::start(programs(&["one"]), TENANTS);
    let cgroup = TestCgroup::new();
    let unit = cgroup.inner("wanted.service");
    let within = unit.inner("deeper");
    let name = cgroup.0.file_name().expect("a name").to_str().expect("text").to_owned();
    let one = services.program("one calls-on-input 1").start();
    within.add(one.pid());
    for (rule, service) in [
        (format!("cgroup = \"/{name}/other\""), "root"),
        ("unit = \"other.service\"".into(), "root"),
        (format!("cgroup = \"/{name}\""), "found"),
        (format!("cgroup = \"/{name}/wanted.service\""), "found"),
        ("user = \"0\"".into(), "root"),
        ("unit = \"wanted.service\"".into(), "found"),
    ] {
        // Removes the service, so that the process belongs to `root` again.
        services.apply(TENANTS);
        services.apply(&format!(
            "{TENANTS}\n[service.found]\n[[rule]]\nexe = \"FOLDER/{}\"\n{rule}\nbelongs-to = \
            \"found\"\n",
            if rule.starts_with("user") { "two" } else { "one" },
        ));
        assert_eq!(services.service_of(one.pid()), service, "{rule}");
    }
}

#[test]
fn dynamic_services_per_user_and_client() {
    let rules = r#"
[service.users]
[service.clients]

[[rule]]
exe = "FOLDER/one"
starts-below = "users"
each = "user"

[[rule]]
exe = "FOLDER/backend"
starts-below = "clients"
each = "client"
"#;
    let services = ActiveServices::start(programs(&["one", "backend"]), rules);
    for user in [0, NOBODY, NOBODY] {
        let mut job = services.program("one calls 3000");
        std::os::unix::process::CommandExt::uid(&mut job.command, user);
        job.finish().success();
    }
    let folder = services.folder.path();
    let backend = Backend::start(folder, "backend", "0", "");
    finish_tenant(begin(backend.tenant(folder, "one", "a 20 5")));
    backend.end(folder, "one");
    let (calls, cpu) = (services.usage_by_service("calls"), services.usage_by_service("cpu_ns"));
    let users: Vec<_> = calls.iter().filter(|(name, _)| name.starts_with("users:")).collect();
    assert_eq!(users.len(), 2, "{calls:?}");
    let mut made: Vec<_> = users.iter().map(|(_, calls)| **calls / 3000).collect();
    made.sort_unstable();
    assert_eq!(made, [1, 2], "{calls:?}");
    assert!(cpu["clients:127.0.0.1"] >= 100_000_000, "{cpu:?}");
    // Dynamic services are removed with their parent, and their usage goes to its parent.
    let used = calls.values().sum::<u64>();
    services.apply("");
    let left = services.usage_by_service("calls");
    assert_eq!(left.keys().collect::<Vec<_>>(), ["root", "shared"]);
    assert!(left["root"] >= used, "{used} {left:?}");
}

/// The service of a process that ended before the daemon could examine it is named by the file's
/// name alone.
#[test]
fn dynamic_services_per_program_and_unit() {
    let rule = |name: &str, each: &str| {
        format!("[[rule]]\nexe = \"FOLDER/{name}\"\nstarts-below = \"all\"\neach = \"{each}\"\n")
    };
    let each = [("one", "exe"), ("two", "exe"), ("three", "unit")];
    let text = each.map(|(name, each)| rule(name, each)).concat();
    let services = ActiveServices::start(
        programs(&["one", "two", "three"]),
        &format!("[service.all]\n{text}"),
    );
    let there = services.program("two calls-on-input 3000").start();
    eventually("its name", || {
        services.service_of(there.pid()) == format!("all:{}", services.path("two").display())
    });
    for name in ["one", "two", "one"] {
        services.program(&format!("{name} calls 3000")).finish().success();
    }
    let (calls, two) = (services.usage_by_service("calls"), services.service_of(there.pid()));
    assert_eq!(
        ["all:one", &two].map(|name| calls.get(name).map(|calls| calls / 3000)),
        [Some(2), Some(1)],
        "{calls:?}"
    );

    let cgroup = TestCgroup::new();
    let units = ["a.service", "b.service"].map(|name| (name, cgroup.inner(name)));
    for (name, unit) in &units {
        let procs = unit.0.join("cgroup.procs");
        let mut job =
            services.program("three calls 3000").before_exec(move || fs::write(&procs, "0"));
        job.command.stdin(Stdio::null());
        job.finish().success();
        let calls = services.usage_by_service("calls");
        assert_eq!(
            calls.get(&format!("all:{name}")).map(|calls| calls / 3000),
            Some(1),
            "{calls:?}"
        );
    }
}

#[test]
fn binding_survives_an_older_lens() {
    let rules = TENANTS.replace("FOLDER/shop", "FOLDER/tg-watched");
    let folder = programs(&["tg-watched"]);
    let first = program(folder.path(), "tg-watched calls-on-input 1").start();
    let lens = Job::lens("--comm tg-watched").start();
    watches(&lens);
    let services = ActiveServices::start(folder, &rules);
    let mut later = services.program("tg-watched calls-on-input 5000").start();
    wait_for_refresh(&lens);
    assert_eq!([first.pid(), later.pid()].map(|pid| services.service_of(pid)), ["shop", "shop"]);
    later.input().write_all(b"x").expect("it reads");
    eventually("its calls", || services.usage_by_service("calls")["shop"] >= 5000);
    drop(later.stdin());
    later.finish().success();
    lens.signal(libc::SIGINT);
    let report = lens.finish().success().report();
    assert!(report.count("getppid") >= 5000);
    assert_eq!(services.service_of(first.pid()), "shop");
}

#[test]
fn only_one_services_daemon() {
    let services = ActiveServices::start(programs(&["shop"]), TENANTS);
    let other = programs(&[]);
    write(other.path(), "services.toml", TENANTS);
    let refused = ActiveServices::job(other.path()).finish().exits_with(125);
    refused.says(&format!("process {} already has active services", services.daemon.pid()));
    services.request("report");
}

/// The programs stay attached while another Tollgate holds the gate.
mod alone {
    use super::*;

    #[test]
    fn killed_daemon_leaves_no_services() {
        let folder = programs(&["shop"]);
        let services = ActiveServices::start(folder, TENANTS);
        services.daemon.signal(libc::SIGKILL);
        eventually("its end", || services.daemon.is_over());
        let ended = services.end();
        eventually("its programs' end", || abandoned_links().is_empty());
        let folder = ended.into_folder();
        let again = ActiveServices::start(folder, TENANTS);
        let shop = again.program("shop calls-on-input 1").start();
        eventually("its rule", || again.service_of(shop.pid()) == "shop");
        let control = again.path("control");
        again.daemon.signal(libc::SIGTERM);
        eventually("its end", || again.daemon.is_over());
        assert!(again.daemon.read("err").contains("ended"), "{}", again.daemon.read("err"));
        assert!(!control.exists());
        eventually("its programs' end", || abandoned_links().is_empty());
    }
}
